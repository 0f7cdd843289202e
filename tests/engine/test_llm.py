"""LLM: shapes and order of outputs, seeds, refused prompts, stop strings, streams, and what is left behind."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.conftest import FakeLLM
from tests.engine.fakes import EOS, POISON, VOCAB, expected

from pelton.core.clock import FakeClock
from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import Logprob, RequestOutput, slot_session

Make = Callable[..., FakeLLM]
PARAMS = SamplingParams(seed=1, max_tokens=12)


def text_of(ids: list[int]) -> str:
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def test_prompts_in_all_shapes_give_outputs_in_their_order(fake_llm: Make) -> None:
    llm = fake_llm(rows=2, budget=7).llm
    ids = list(b"hello")
    prompts = ["hello", {"prompt": "hello"}, {"prompt_token_ids": ids}, {"prompt": "said", "prompt_token_ids": ids}]
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)  # type: ignore[arg-type]
    wanted = expected(ids, 1, 12)
    assert [tokens(output) for output in outputs] == [wanted] * 4
    assert [output.prompt for output in outputs] == ["hello", "hello", None, "said"]
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3"]
    assert all(output.finished and output.seed == 1 and output.error is None for output in outputs)
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert outputs[0].outputs[0].text == text_of(wanted) and outputs[0].outputs[0].index == 0
    for one in prompts:
        assert tokens(llm.generate(one, PARAMS, use_tqdm=False)[0]) == wanted  # type: ignore[arg-type]
    assert llm.generate([], PARAMS, use_tqdm=False) == []


def test_each_prompt_may_have_its_own_params(fake_llm: Make) -> None:
    llm = fake_llm().llm
    several = [SamplingParams(seed=n, max_tokens=n + 1) for n in range(5)]
    outputs = llm.generate(["same"] * 5, several, use_tqdm=False)
    assert [tokens(output) for output in outputs] == [expected(list(b"same"), n, n + 1) for n in range(5)]
    with pytest.raises(RequestError, match="5 prompts, but 2 sampling_params"):
        llm.generate(["same"] * 5, several[:2], use_tqdm=False)


def test_a_priority_that_would_have_no_effect_is_refused(fake_llm: Make) -> None:
    llm = fake_llm().llm
    with pytest.raises(RequestError, match=r"priority=1 .* scheduling_policy=priority\.") as caught:
        llm.generate("hello", priority=1, use_tqdm=False)
    assert caught.value.param == "priority"
    assert len(llm.generate("hello", priority=0, use_tqdm=False)) == 1


def test_defaults_are_the_models_and_max_tokens_none_is_all_that_fits(fake_llm: Make) -> None:
    llm = fake_llm(max_len=40).llm
    assert len(tokens(llm.generate("hello", use_tqdm=False)[0])) == 3 == llm.get_default_sampling_params().max_tokens
    (output,) = llm.generate("hello", SamplingParams(max_tokens=None), use_tqdm=False)
    assert len(tokens(output)) == 35 and output.outputs[0].finish_reason == "length"
    (output,) = llm.generate("hello", SamplingParams(max_tokens=1000), use_tqdm=False)
    assert len(tokens(output)) == 35


def test_fresh_seeds_differ_are_reported_and_repeat_the_answer(fake_llm: Make) -> None:
    make = fake_llm
    first = make().llm.generate(["same"] * 3, SamplingParams(), use_tqdm=False)
    assert len({output.seed for output in first}) == 3
    for output in first:
        assert tokens(output) == expected(list(b"same"), output.seed, 16)
    again = make().llm.generate(["same"] * 3, SamplingParams(), use_tqdm=False)
    assert [output.seed for output in again] == [output.seed for output in first], "the engine's seed repeats them"


BAD = [
    ({"prompt_token_ids": []}, "The prompt is empty", "prompt"),
    ("", "The prompt is empty", "prompt"),
    ({"prompt_token_ids": [1, VOCAB]}, rf"prompt_token_ids\[1\]={VOCAB} is not a token id", "prompt_token_ids"),
    ({"prompt_token_ids": [-1]}, r"prompt_token_ids\[0\]=-1", "prompt_token_ids"),
    ({"prompt_token_ids": [True]}, "True is not a token id", "prompt_token_ids"),
    ({"prompt_token_ids": [1.0]}, "1.0 is not a token id", "prompt_token_ids"),
    ({"prompt_token_ids": "abc"}, "of type str, not a list", "prompt_token_ids"),
    ({"prompt_token_ids": 5}, "of type int, not a list", "prompt_token_ids"),
    ({"prompt": 5}, "prompt is of type int", "prompt"),
    ({"text": "hello"}, "no key 'text'", "prompt"),
    ({}, "neither prompt nor prompt_token_ids", "prompt"),
    (5, "of type int", "prompt"),
    ([1, 2, 3], "of type list", "prompt"),
    ("x" * 50, r"has 50 tokens; with its answer it may have 50. Shorten it to at most 49", "prompt"),
    ("bad \ud800", "lone surrogate", "prompt"),
]


@pytest.mark.parametrize(("prompt", "words", "param"), BAD)
def test_a_bad_prompt_is_refused_by_its_place_before_any_runs(
    fake_llm: Make, prompt: object, words: str, param: str
) -> None:
    fake = fake_llm(max_len=50)
    with pytest.raises(RequestError, match=words) as caught:
        fake.llm.generate(["good", prompt, "good"], PARAMS, use_tqdm=False)  # type: ignore[list-item]
    assert caught.value.cause.startswith("prompts[1]: ") and caught.value.param == param
    assert fake.executable.steps == 0 and not fake.session.engine.has_work
    assert len(fake.llm.generate(["good", "x" * 49], PARAMS, use_tqdm=False)) == 2


TEXTS_OUTSIDE = [
    "no <pad>",
    {"prompt": "<start>no <poison>"},
]


@pytest.mark.parametrize("prompt", TEXTS_OUTSIDE)
def test_a_text_that_needs_a_token_the_model_lacks_is_refused(fake_llm: Make, prompt: str) -> None:
    """A tokenizer may have more tokens than the model it comes with."""
    fake = fake_llm()
    maker = fake.llm._parts.requests
    object.__setattr__(maker._encoder, "_vocab", 258)
    with pytest.raises(RequestError, match=r"becomes token 25[89] \('<\w+>'\), and the model has only 258") as caught:
        fake.llm.generate(["good<start>", prompt, "good"], PARAMS, use_tqdm=False)
    assert caught.value.cause.startswith("prompts[1]: ") and caught.value.param == "prompt"
    with pytest.raises(RequestError, match="becomes token 258") as caught:
        fake.llm.chat([{"role": "user", "content": "<pad>"}], PARAMS, use_tqdm=False)
    assert caught.value.param == "messages"
    assert fake.executable.steps == 0 and not fake.session.engine.has_work


def test_a_hopelessly_long_text_is_refused_before_it_is_tokenized(
    fake_llm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake_llm(max_len=300).llm
    text = "é" * (1 << 18)
    longest = llm.get_tokenizer().longest_token_bytes
    assert longest == len("<poison>")

    def tokenize(*_: object, **__: object) -> list[int]:
        raise AssertionError("tokenized")

    for kind in ("encode", "encode_prompt"):
        monkeypatch.setattr(llm.get_tokenizer(), kind, tokenize)
    words = f"has {2 << 18} bytes, which is at least {(2 << 18) // 8} tokens; with its answer it may have 300"
    with pytest.raises(RequestError, match=words) as caught:
        llm.generate(["good"[:0] + text], PARAMS, use_tqdm=False)
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match="bytes, which is at least") as caught:
        llm.chat([{"role": "user", "content": text}], PARAMS, use_tqdm=False)
    assert caught.value.param == "messages"
    with pytest.raises(RequestError, match=f"has {10**6} tokens; with its answer"):
        llm.generate({"prompt_token_ids": [-1] * 10**6}, PARAMS, use_tqdm=False)


@pytest.mark.parametrize("params", [5, "x", 0, {"top_k": 4}, [PARAMS, 5], [None, None], SamplingParams])
def test_what_is_no_sampling_params_is_refused(fake_llm: Make, params: object) -> None:
    fake = fake_llm()
    with pytest.raises(RequestError, match=r"^sampling_params(\[\d\])? is of type .* Give SamplingParams") as caught:
        fake.llm.generate(["hi", "ho"], params, use_tqdm=False)  # type: ignore[arg-type]
    assert caught.value.param == "sampling_params"
    with pytest.raises(RequestError, match="^sampling_params is of type"):
        fake.llm.stream("hi", params)  # type: ignore[arg-type]
    assert not fake.session.engine.has_work


HI = [{"role": "user", "content": "hi"}]
BAD_CHATS = [
    (None, {}, "messages", "^messages is of type NoneType"),
    ([], {}, "messages", "^messages is empty"),
    ("hi", {}, "messages", "^messages is of type str"),
    (HI[0], {}, "messages", "^messages is of type dict"),
    (["hi"], {}, "messages", "^messages is of type str"),
    ([*HI, "hi"], {}, "messages", r"^messages\[1\] is of type str"),
    ([HI, []], {}, "messages", r"^messages\[1\]: messages is empty"),
    ([HI, [*HI, 5]], {}, "messages", r"^messages\[1\]: messages\[1\] is of type int"),
    ([[]], {}, "messages", "^messages is empty"),
    (HI, {"chat_template": 5}, "chat_template", "^chat_template is of type int"),
    (HI, {"chat_template": ["{{ 1 }}"]}, "chat_template", "^chat_template is of type list"),
    (HI, {"chat_template": "{{"}, "messages", "does not compile"),
    (HI, {"chat_template_kwargs": 5}, "chat_template_kwargs", "^chat_template_kwargs is of type int"),
    (HI, {"chat_template_kwargs": {5: 1}}, "chat_template_kwargs", "has the key 5"),
    *(
        (HI, {"chat_template_kwargs": {name: []}}, "chat_template_kwargs", f"may not hold '{name}'")
        for name in ("messages", "add_generation_prompt", "continue_final_message", "tools", "self")
    ),
]


@pytest.mark.parametrize(("messages", "options", "param", "words"), BAD_CHATS)
def test_what_is_no_conversation_is_refused(
    fake_llm: Make, messages: object, options: dict[str, object], param: str, words: str
) -> None:
    fake = fake_llm()
    with pytest.raises(RequestError, match=words) as caught:
        fake.llm.chat(messages, PARAMS, use_tqdm=False, **options)  # type: ignore[arg-type]
    assert caught.value.param == param and fake.executable.steps == 0
    assert len(fake.llm.chat((HI, tuple(HI)), PARAMS, use_tqdm=False)) == 2  # type: ignore[arg-type]


def test_numbers_of_other_kinds_are_ids_too(fake_llm: Make) -> None:
    np = pytest.importorskip("numpy")
    llm = fake_llm().llm
    (output,) = llm.generate({"prompt_token_ids": np.array([104, 105])}, PARAMS, use_tqdm=False)
    assert output.prompt_token_ids == [104, 105] and all(type(token) is int for token in output.prompt_token_ids)


def test_logprobs_have_vllms_shape(fake_llm: Make) -> None:
    llm = fake_llm().llm
    (output,) = llm.generate("hi", SamplingParams(seed=1, max_tokens=4, logprobs=2), use_tqdm=False)
    answer = output.outputs[0]
    assert answer.logprobs is not None and len(answer.logprobs) == 4
    for token, place in zip(answer.token_ids, answer.logprobs, strict=True):
        assert list(place) == [token, token + 1]
        assert place[token] == Logprob(-(token + 1) / 8, token % 3 + 1, text_of([token]))
        assert place[token + 1] == Logprob(-2.0, 2, text_of([token + 1]))
    assert answer.cumulative_logprob == sum(-(token + 1) / 8 for token in answer.token_ids)
    (output,) = llm.generate("hi", SamplingParams(seed=1, max_tokens=4, logprobs=0), use_tqdm=False)
    assert output.outputs[0].logprobs is not None and all(len(place) == 1 for place in output.outputs[0].logprobs)
    (output,) = llm.generate("hi", PARAMS, use_tqdm=False)
    assert output.outputs[0].logprobs is None and output.outputs[0].cumulative_logprob is None


def seed_with_ascii(prompt: bytes, count: int) -> int:
    """A seed whose answer is plain text, so that stop strings can be cut out of it."""
    return next(seed for seed in range(10**6) if all(32 < token < 127 for token in expected(list(prompt), seed, count)))


def test_an_engine_rests_once_after_each_call_however_its_answers_ended(fake_llm: Make) -> None:
    """Also where the text met a stop string, of which the engine has not told the end by then."""
    fake, rests = fake_llm(), list[int]()
    fake.session.engine.scheduler.tiers.on_idle = lambda: rests.append(fake.held)
    seed = seed_with_ascii(b"hi", 6)
    stop = text_of(expected(list(b"hi"), seed, 6))[3:5]
    for number, params in enumerate(
        (SamplingParams(max_tokens=4), SamplingParams(seed=seed, max_tokens=50, stop=stop))
    ):
        fake.llm.generate("hi", params, use_tqdm=False)
        assert rests == [0] * (number + 1)


def test_stop_strings_end_the_text_before_them_and_free_the_row(fake_llm: Make) -> None:
    fake = fake_llm()
    seed = seed_with_ascii(b"hi", 6)
    whole = text_of(expected(list(b"hi"), seed, 6))
    stop = whole[3:5]
    for include in (False, True):
        params = SamplingParams(seed=seed, max_tokens=50, stop=["~none~", stop], include_stop_str_in_output=include)
        (output,) = fake.llm.generate("hi", params, use_tqdm=False)
        answer = output.outputs[0]
        assert answer.text == (whole[:5] if include else whole[:3])
        assert (answer.finish_reason, answer.stop_reason, len(answer.token_ids)) == ("stop", stop, 5)
        assert fake.held == 0
    assert not [event for event in fake.session.engine.step() if event.request_id != output.request_id]


def test_a_stop_string_counts_behind_min_tokens_only(fake_llm: Make) -> None:
    llm = fake_llm().llm
    seed = seed_with_ascii(b"hi", 6)
    whole = text_of(expected(list(b"hi"), seed, 6))
    assert whole.count(whole[1:3]) == whole.count(whole[2:5]) == 1

    def answer(stop: list[str], least: int) -> tuple[str, int | str | None]:
        params = SamplingParams(seed=seed, max_tokens=6, stop=stop, min_tokens=least)
        found = llm.generate("hi", params, use_tqdm=False)[0].outputs[0]
        return found.text, found.stop_reason

    assert answer([whole[1:3]], 2) == (whole[:1], whole[1:3])
    assert answer([whole[1:3]], 3) == (whole, None)
    assert answer([whole[1:3], whole[2:5]], 3) == (whole[:2], whole[2:5])


def test_a_stop_string_ends_the_work_at_once(fake_llm: Make) -> None:
    fake = fake_llm()
    seed = seed_with_ascii(b"hi", 6)
    stop = text_of(expected(list(b"hi"), seed, 6))[:2]
    maker = fake.llm._parts.requests
    fake.session.start([maker.make("other", SamplingParams(seed=1, max_tokens=50))])
    fake.session.start([maker.make("hi", SamplingParams(seed=seed, max_tokens=50, stop=stop))])
    steps = 1
    while not fake.session.advance():
        steps += 1
    assert steps == 2 and fake.session.engine.scheduler.num_running == 1


@pytest.mark.parametrize("room", [50, 6])
def test_a_stop_string_is_counted_as_such_at_once(fake_llm: Make, room: int) -> None:
    """Also where the token that completes it is the last one that was asked for."""
    llm = fake_llm().llm
    seed = seed_with_ascii(b"hi", 6)
    stop = text_of(expected(list(b"hi"), seed, 6))[4:]
    (output,) = llm.generate("hi", SamplingParams(seed=seed, max_tokens=room, stop=stop), use_tqdm=False)
    assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("stop", 6)
    finished = {name: count for name, count in llm.get_metrics().items() if name.startswith("finished_") and count}
    assert finished == {"finished_stop": 1}


def test_a_stop_string_met_by_the_end_of_the_text_is_counted_as_such(fake_llm: Make) -> None:
    """An unfinished character becomes U+FFFD only when nothing follows: after the engine has ended the request."""
    llm = fake_llm().llm
    lead = range(0xC3, 0xF0)  # first bytes of longer characters
    seed = next(seed for seed in range(10**6) if expected(list(b"hi"), seed, 1)[0] in lead)
    (output,) = llm.generate("hi", SamplingParams(seed=seed, max_tokens=1, stop="\ufffd"), use_tqdm=False)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "\ufffd")
    finished = {name: count for name, count in llm.get_metrics().items() if name.startswith("finished_") and count}
    assert finished == {"finished_stop": 1}


def test_a_closed_stream_is_counted_at_once(fake_llm: Make) -> None:
    llm = fake_llm().llm
    stream = llm.stream("hi", PARAMS)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.get_metrics()["finished_abort"] == 1


def test_end_tokens_are_counted_but_not_shown(fake_llm: Make) -> None:
    llm = fake_llm().llm
    seed = seed_with_ascii(b"hi", 4)
    whole = expected(list(b"hi"), seed, 4)
    assert whole[2] not in whole[:2]
    params = SamplingParams(seed=seed, stop_token_ids=[whole[2]])
    answer = llm.generate("hi", params, use_tqdm=False)[0].outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", whole[2])
    assert answer.token_ids == whole[:3] and answer.text == text_of(whole[:2])
    params = SamplingParams(seed=seed, stop_token_ids=[whole[2]], include_stop_str_in_output=True)
    assert llm.generate("hi", params, use_tqdm=False)[0].outputs[0].text == text_of(whole[:3])


def test_ignore_eos_and_the_models_own_end(fake_llm: Make) -> None:
    fake = fake_llm()
    end = expected(list(b"hi"), 3, 8)[5]
    maker = fake.llm._parts.requests
    object.__setattr__(maker._limits, "end_ids", frozenset({EOS, end}))
    answer = fake.llm.generate("hi", SamplingParams(seed=3, max_tokens=8), use_tqdm=False)[0].outputs[0]
    assert (answer.finish_reason, answer.stop_reason, answer.token_ids[-1]) == ("stop", None, end)
    params = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
    answer = fake.llm.generate("hi", params, use_tqdm=False)[0].outputs[0]
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 8)


def test_without_detokenising_there_are_ids_only(fake_llm: Make) -> None:
    params = SamplingParams(seed=1, max_tokens=4, detokenize=False)
    answer = fake_llm().llm.generate("hi", params, use_tqdm=False)[0].outputs[0]
    assert answer.text == "" and answer.token_ids == expected(list(b"hi"), 1, 4)


def test_a_fault_fails_only_its_request(fake_llm: Make) -> None:
    llm = fake_llm().llm
    bad = {"prompt_token_ids": [1, POISON]}
    good, failed, other = llm.generate(["hi", bad, "ho"], PARAMS, use_tqdm=False)
    assert tokens(good) == expected(list(b"hi"), 1, 12) and tokens(other) == expected(list(b"ho"), 1, 12)
    assert failed.finished and failed.outputs[0].finish_reason == "error" and "NaN" in (failed.error or "")
    assert (failed.error or "").endswith("Its weights may be damaged; fetch or convert them again.")


def test_a_broken_step_raises_and_the_next_call_works(fake_llm: Make) -> None:
    fake = fake_llm()
    stream = fake.llm.stream("ho", PARAMS)
    next(stream)
    fake.executable.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        fake.llm.generate(["hi", "ho"], PARAMS, use_tqdm=False)
    fake.executable.broken = False
    assert fake.held == 0
    *_, last = stream
    assert last.output is not None and last.output.outputs[0].finish_reason == "error"
    assert tokens(fake.llm.generate("hi", PARAMS, use_tqdm=False)[0]) == expected(list(b"hi"), 1, 12)


def test_streamed_pieces_join_to_the_whole(fake_llm: Make) -> None:
    llm = fake_llm().llm
    pieces = list(llm.stream("hi", PARAMS))
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    output = pieces[-1].output
    assert output is not None
    assert "".join(piece.text for piece in pieces) == output.outputs[0].text
    assert [token for piece in pieces for token in piece.token_ids] == tokens(output) == expected(list(b"hi"), 1, 12)
    assert output.outputs == llm.generate("hi", PARAMS, use_tqdm=False)[0].outputs
    with pytest.raises(RequestError, match="empty"):
        llm.stream("", PARAMS)


def test_closing_a_stream_aborts_and_others_go_on(fake_llm: Make) -> None:
    fake = fake_llm()
    one, other = fake.llm.stream("hi", PARAMS), fake.llm.stream("ho", PARAMS)
    next(one), next(other)
    assert fake.held == 2
    one.close()  # type: ignore[attr-defined]
    assert fake.held == 1
    assert tokens(fake.llm.generate("hi", PARAMS, use_tqdm=False)[0]) == expected(list(b"hi"), 1, 12)
    *_, last = other
    assert last.output is not None and tokens(last.output) == expected(list(b"ho"), 1, 12)
    assert fake.held == 0
    fake.llm.stream("never started", PARAMS)
    assert not fake.session.engine.scheduler.num_waiting


def test_chat_renders_the_template(fake_llm: Make) -> None:
    llm = fake_llm().llm
    messages = [{"role": "user", "content": "hi"}]
    prompt = llm.chat_prompt(messages)
    assert prompt["prompt"] == "<start>user:hi<end><start>assistant:"
    assert prompt["prompt_token_ids"] == [257, *b"user:hi", 256, 257, *b"assistant:"], "special tokens are tokens"
    (one,) = llm.chat(messages, PARAMS, use_tqdm=False)
    assert tokens(one) == expected(list(prompt["prompt_token_ids"]), 1, 12)  # type: ignore[call-overload]
    several = llm.chat([messages, messages], PARAMS, use_tqdm=False)
    assert [tokens(output) for output in several] == [tokens(one)] * 2
    assert llm.chat_prompt(messages, chat_template="{{ messages[0].content }}{{ x }}", chat_template_kwargs={"x": "!"})[
        "prompt"
    ] == ("hi!")
    assert llm.chat_prompt(messages, add_generation_prompt=False)["prompt"] == "<start>user:hi<end>"
    assert llm.chat_prompt(messages, continue_final_message=True)["prompt"] == "<start>user:hi"
    with pytest.raises(RequestError, match="template"):
        llm.chat(messages, PARAMS, use_tqdm=False, chat_template="{{ 1 / 0 }}")


def test_a_template_can_be_set_for_all_calls(fake_llm: Make) -> None:
    fake = fake_llm()
    object.__setattr__(fake.llm._parts.front.config.model, "chat_template", "{{ messages | length }}")
    assert fake.llm.chat_prompt([{"role": "user", "content": "hi"}])["prompt"] == "1"


def test_close_ends_everything_and_can_be_repeated(fake_llm: Make) -> None:
    fake = fake_llm()
    with fake.llm as llm:
        stream = llm.stream("hi", PARAMS)
        next(stream)
    assert fake.held == 0 and fake.executable.closed
    llm.close()
    *_, last = stream
    assert last.output is not None and last.output.outputs[0].finish_reason == "abort"
    with pytest.raises(RequestError, match="closed"):
        llm.generate("hi", PARAMS, use_tqdm=False)


def test_interrupt_waits_for_the_end_of_the_step_and_leaves_nothing(
    fake_llm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_llm()
    run, done = fake.executable.run, []

    def interrupted(inputs: object) -> object:
        signal.raise_signal(signal.SIGINT)
        outputs = run(inputs)  # type: ignore[arg-type]
        done.append(True)
        return outputs

    monkeypatch.setattr(fake.executable, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fake.llm.generate(["hi", "ho"], PARAMS, use_tqdm=False)
    assert done == [True] and fake.held == 0
    monkeypatch.setattr(fake.executable, "run", run)
    fake.session.engine.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert tokens(fake.llm.generate("hi", PARAMS, use_tqdm=False)[0]) == expected(list(b"hi"), 1, 12)


def test_progress_is_shown_per_prompt(fake_llm: Make, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm().llm
    llm.generate(["hi", "ho"], PARAMS)
    assert "2/2" in capsys.readouterr().err
    llm.generate(["hi", "ho"], PARAMS, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_sessions_are_held_for_the_next_turn(fake_llm: Make) -> None:
    fake = fake_llm(max_len=100)
    prompt = "a conversation with several blocks"
    outputs = fake.llm.generate([prompt, prompt[::-1]], PARAMS, use_tqdm=False, session_id=["one", "other"])
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert fake.held > 0 and fake.llm.get_metrics()["sessions"] == 2
    assert fake.llm.end_session("one") and not fake.llm.end_session("one") and fake.llm.end_session("other")
    assert fake.held == 0
    list(fake.llm.stream(prompt, PARAMS, session_id="one", cache_salt="salt"))
    assert not fake.llm.end_session("one") and fake.llm.end_session("one", cache_salt="salt")
    fake.llm.chat([{"role": "user", "content": prompt}], PARAMS, use_tqdm=False, session_id="chat")
    assert fake.llm.end_session("chat")
    with pytest.raises(RequestError, match="1 prompts, but 2 session_id"):
        fake.llm.generate(prompt, PARAMS, use_tqdm=False, session_id=["one", "other"])


def test_names_may_be_left_out_and_are_never_empty(fake_llm: Make) -> None:
    fake = fake_llm(max_len=100)
    prompt = "a conversation with several blocks"
    fake.llm.generate([prompt, "hi"], PARAMS, use_tqdm=False, session_id=[None, "one"], user=None)
    fake.llm.generate(prompt, PARAMS, use_tqdm=False, session_id=None)
    assert fake.llm.get_metrics()["sessions"] == 1
    list(fake.llm.stream(prompt, PARAMS, session_id=None, user=None))
    calls: list[tuple[str, Callable[[Any], object]]] = [
        ("session_id", lambda name: fake.llm.generate(prompt, PARAMS, use_tqdm=False, session_id=name)),
        ("user", lambda name: fake.llm.generate(prompt, PARAMS, use_tqdm=False, user=name)),
        ("session_id", lambda name: fake.llm.stream(prompt, PARAMS, session_id=name)),
        ("user", lambda name: fake.llm.stream(prompt, PARAMS, user=name)),
        ("session_id", fake.llm.end_session),
        ("cache_salt", lambda name: fake.llm.end_session("one", cache_salt=name or 5)),
    ]
    for param, call in calls:
        for value in ("", 5, "half \ud800"):
            with pytest.raises(RequestError, match=f"^{param} (is|holds) ") as caught:
                call(value)
            assert caught.value.param == param
    with pytest.raises(RequestError, match="session_id is of type NoneType"):
        fake.llm.end_session(None)  # type: ignore[arg-type]
    assert fake.llm.end_session("one")


def test_a_closed_engine_says_so(fake_llm: Make) -> None:
    fake = fake_llm()
    fake.session.close()
    for call in (
        lambda: fake.llm.generate("hi", PARAMS, use_tqdm=False),
        lambda: list(fake.llm.stream("hi", PARAMS)),
        lambda: fake.llm.end_session("one"),
        lambda: fake.llm.reset_prefix_cache(),
    ):
        with pytest.raises(RequestError, match=r"The engine is closed\. Open the model again"):
            call()


def test_a_session_without_effect_is_refused(monkeypatch: pytest.MonkeyPatch, fake_llm: Make) -> None:
    llm = fake_llm(prefixes=False).llm
    maker = llm._parts.requests
    monkeypatch.setattr(maker, "_no_sessions", "enable_prefix_caching is off")
    with pytest.raises(
        RequestError, match=r"session_id='s' would have no effect: enable_prefix_caching is off"
    ) as caught:
        llm.generate("hello", PARAMS, use_tqdm=False, session_id="s")
    assert caught.value.param == "session_id"
    with pytest.raises(RequestError, match=r"^id_slot=3 would have no effect: enable_prefix_caching is off") as caught:
        llm.generate("hello", PARAMS, use_tqdm=False, session_id=slot_session(3))
    assert caught.value.param == "id_slot"


def test_a_user_and_a_time_that_is_up(fake_llm: Make) -> None:
    fake = fake_llm(max_len=100)
    clock = fake.session.engine.clock
    assert isinstance(clock, FakeClock)
    stream = fake.llm.stream("hello", SamplingParams(seed=1, max_tokens=50), timeout=1.5, user="me")
    next(stream)
    (request,) = (one.request for one in fake.session.engine._open.values())
    assert (request.owner, request.deadline) == ("me", 1.5)
    clock.advance(2.0)
    last = list(stream)[-1].output
    assert last is not None and last.error_code == "request_timeout" and "1.5 s" in (last.error or "")
    for bad in (0, -1, float("nan"), float("inf"), 2e6, "soon", True):
        with pytest.raises(RequestError, match="timeout=") as caught:
            fake.llm.generate("hello", PARAMS, use_tqdm=False, timeout=bad)  # type: ignore[arg-type]
        assert caught.value.param == "timeout"
    with pytest.raises(RequestError, match="user is of type int"):
        fake.llm.generate("hello", PARAMS, use_tqdm=False, user=5)  # type: ignore[arg-type]
