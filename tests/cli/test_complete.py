"""`pelton complete` against the default model, and its refusals."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.running import RUN, environment, invoke, modules_after, run
from tests.measure.verify_parts import tiny_talker

from pelton import LLM, SamplingParams
from pelton.backends.cpu.machine import allowed_threads
from pelton.cli.answer import Printed
from pelton.cli.loading import sampling
from pelton.sampling.effective import defaults_of, effective

PROMPT = "The capital of France is"
GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture
def reused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The commands take this model instead of loading one."""
    monkeypatch.setattr("pelton.cli.commands.complete.load", lambda *given: nullcontext(llm))
    return llm


def line(text: str) -> str:
    """An answer as it is printed: its last line is ended."""
    return text if text.endswith("\n") else text + "\n"


def expected(llm: LLM, prompt: str, **params: object) -> str:
    wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **params})  # type: ignore[arg-type]
    return llm.generate(prompt, wanted, use_tqdm=False)[0].outputs[0].text


def test_prints_what_the_engine_gives_and_nothing_else(llm: LLM, smollm2: Path) -> None:
    result = invoke("complete", str(smollm2), PROMPT, *GREEDY)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == line(expected(llm, PROMPT))
    assert result.stderr == ""


def test_warnings_of_a_start_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pelton.backends.cpu.packed.LEAST_BYTES", 1)
    words = ("complete", str(tiny_talker(tmp_path / "tiny")), "a", "--max-tokens", "1")
    first = invoke(*words)
    assert first.exit_code == 0, first.stderr
    (file,) = (tmp_path / "cache" / "packed").iterdir()
    file.write_bytes(b"damaged")
    again = invoke(*words)
    (line,) = set(again.stderr.splitlines()) - set(first.stderr.splitlines())
    assert line.startswith(f"note: Packed weights in {file} are not used") and line.endswith("packed again.")
    for text in first.stderr.splitlines():
        assert again.stderr.count(text) == first.stderr.count(text) == 1, "told once"


def test_a_lone_argument_is_the_prompt_of_the_default_model(llm: LLM) -> None:
    assert invoke("complete", PROMPT, *GREEDY).stdout == line(expected(llm, PROMPT))


def test_a_text_comes_out_the_same_by_sentences(reused: LLM) -> None:
    result = invoke("complete", PROMPT, *GREEDY, "--stream-granularity", "sentence")
    assert result.stdout == line(expected(reused, PROMPT))
    wrong = invoke("complete", PROMPT, "--stream-granularity", "line")
    assert wrong.exit_code == 2 and "'token', 'word', 'sentence'" in wrong.stderr


def test_a_suffix_asks_for_the_gap(reused: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("complete", PROMPT, "--suffix", ".")
    assert result.exit_code == 1 and "This model has no tokens for filling in the middle" in result.stderr
    asked: list[object] = []

    def answer(llm: LLM, prompt: object, params: SamplingParams) -> Printed:
        asked.append(prompt)
        return Printed("x\n")

    monkeypatch.setattr("pelton.cli.commands.complete.print_answer", answer)
    assert invoke("complete", PROMPT, "--suffix", ".").stdout == "" and asked == [{"prompt": PROMPT, "suffix": "."}]
    assert invoke("complete", PROMPT, "--suffix", "").exit_code == 0 and asked[1] == {"prompt": PROMPT}


def test_a_lone_model_reads_stdin(reused: LLM, smollm2: Path) -> None:
    result = invoke("complete", str(smollm2), *GREEDY, stdin=f"{PROMPT}\n")
    assert result.stdout == line(expected(reused, PROMPT))


def test_only_one_newline_is_taken_off(reused: LLM, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(f"{PROMPT}\n\n".encode())
    result = invoke("complete", "--prompt-file", str(file), *GREEDY)
    assert result.stdout == line(expected(reused, PROMPT + "\n"))
    assert result.stdout != line(expected(reused, PROMPT))


def test_with_model_the_argument_is_a_prompt(reused: LLM) -> None:
    """Also where it looks like a model."""
    assert invoke("complete", "-m", "smollm2", "smollm2", *GREEDY).stdout == line(expected(reused, "smollm2"))


def test_seed_decides_the_draws(reused: LLM) -> None:
    def draw(seed: int) -> str:
        return invoke("complete", PROMPT, "--seed", str(seed), "--max-tokens", "12").stdout

    first = draw(5)
    assert first == draw(5) == line(expected(reused, PROMPT, temperature=0.7, top_p=0.95, seed=5))
    assert first != draw(6)


@pytest.mark.parametrize(
    ("recommended", "flags", "wanted"),
    [
        ({}, {}, (0.7, 0.95, 0)),
        ({}, {"top_k": 5}, (1.0, 1.0, 5)),
        ({}, {"temperature": 0.0}, (0.0, 1.0, 0)),
        ({"temperature": 0.2}, {}, (0.2, 1.0, 0)),
        ({"temperature": 0.2, "top_p": 0.9}, {"temperature": 1.5}, (1.5, 0.9, 0)),
    ],
)
def test_who_says_how_to_draw(
    recommended: dict[str, float], flags: dict[str, object], wanted: tuple[float, float, int]
) -> None:
    """Flags over the model's recommendation; a fallback only where there is neither."""
    defaults = defaults_of(recommended, None, True)
    llm = SimpleNamespace(explain_sampling=lambda given: effective(given, defaults))
    chosen = sampling(llm, flags).params  # type: ignore[arg-type]
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == wanted


def test_stop_strings(reused: LLM) -> None:
    whole = expected(reused, PROMPT)
    stop = whole.split()[1]
    result = invoke("complete", PROMPT, *GREEDY, "--stop", "not there", "--stop", stop, "--stats")
    assert result.stdout.rstrip("\n") == whole[: whole.index(stop)].rstrip("\n")
    assert "ended by stop" in result.stderr


def test_logprobs_go_to_stderr(reused: LLM) -> None:
    result = invoke("complete", PROMPT, "--temperature", "0", "--max-tokens", "3", "--logprobs", "2")
    assert result.stdout == line(expected(reused, PROMPT, max_tokens=3))
    header, *lines = result.stderr.splitlines()
    assert header.split() == ["token", "logprob", "rank", "likeliest"]
    assert len(lines) == 3
    output = reused.generate(PROMPT, SamplingParams(temperature=0, max_tokens=3, logprobs=2), use_tqdm=False)[
        0
    ].outputs[0]
    assert output.logprobs is not None
    first = output.logprobs[0][output.token_ids[0]]
    assert lines[0].startswith(repr(first.decoded_token)) and f"{first.logprob:.4f}" in lines[0]


def test_logprobs_of_the_prompt(reused: LLM) -> None:
    result = invoke("complete", PROMPT, "--temperature", "0", "--max-tokens", "1", "--prompt-logprobs", "1")
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = reused.generate(PROMPT, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    header, *lines = result.stderr.splitlines()
    assert len(lines) == len(output.prompt_token_ids) - 1
    for line_, token, place in zip(lines, output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert place is not None and f"{place[token].logprob:.4f}" in line_


def test_several_answers(reused: LLM) -> None:
    words = ("complete", PROMPT, "--n", "3", "--seed", "4", "--max-tokens", "6")
    result = invoke(*words)
    params = SamplingParams(n=3, seed=4, max_tokens=6, temperature=0.7, top_p=0.95)
    answers = [answer.text for answer in reused.generate(PROMPT, params, use_tqdm=False)[0].outputs]
    assert sorted(result.stdout.splitlines()) == sorted("\n".join(answers).splitlines())
    assert [line_ for line_ in result.stderr.splitlines() if "of 3" in line_] == ["(1 of 3)", "(2 of 3)", "(3 of 3)"]
    assert result.exit_code == 0


def test_flags_of_sampling_take_effect(reused: LLM) -> None:
    words = ("complete", PROMPT, *GREEDY)
    plain = invoke(*words).stdout
    fields: dict[tuple[str, ...], dict[str, object]] = {
        ("--repetition-penalty", "1.8"): {"repetition_penalty": 1.8},
        ("--presence-penalty", "1.5", "--frequency-penalty=1.5"): {"presence_penalty": 1.5, "frequency_penalty": 1.5},
        ("--bad-word", plain.split()[-1]): {"bad_words": plain.split()[-1]},
    }
    for flags, params in fields.items():
        assert invoke(*words, *flags).stdout == line(expected(reused, PROMPT, **params))


def test_verbose_tells_what_is_drawn_from(reused: LLM) -> None:
    told = invoke("complete", PROMPT, "--top-k", "5", "--max-tokens", "2", "--verbose").stderr
    assert "sampling temperature 1.0 (default), top_p 1.0 (default), top_k 5 (its flag), min_p 0.0 (default)" in told
    told = invoke("complete", PROMPT, "--max-tokens", "2", "--verbose").stderr
    assert "temperature 0.7 (default), top_p 0.95 (default)" in told


def test_verbose_tells_the_start() -> None:
    result = invoke("complete", PROMPT, "--max-tokens", "1", "--verbose", "--threads", "1")
    assert "dtype bfloat16" in result.stderr and "1 thread," in result.stderr


def test_notes_are_told_once_and_without_being_asked() -> None:
    """Those of the log too: a process without any logging set up would show warnings by itself."""
    done = run("complete", PROMPT, "--max-tokens", "1", "--num-blocks", "10", "--threads", "1")
    assert done.returncode == 0
    (told,) = done.stderr.decode().splitlines()
    assert told.startswith("note: max_model_len is 320 and not the model's 8192")
    verbose = invoke("complete", PROMPT, "--max-tokens", "1", "--num-blocks", "10", "-v").stderr
    assert verbose.count("max_model_len is 320") == 1 and "weights  5." in verbose


def test_an_answer_that_is_cut_says_so(reused: LLM) -> None:
    """Unless it is as long as was asked for."""
    cut = invoke("complete", PROMPT, "--temperature", "0", "--ignore-eos")
    assert cut.stderr == "(cut after 128 tokens; --max-tokens allows more)\n"
    assert invoke("complete", PROMPT, "--temperature", "0", "--ignore-eos", "--max-tokens", "128").stderr == ""


def test_a_full_context_is_told() -> None:
    result = invoke("complete", PROMPT, "--ignore-eos", "--max-tokens", "100000", "--num-blocks", "1")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[1:] == ["(the context of 32 tokens is full)"]


def test_more_threads_than_cores_are_told() -> None:
    threads = allowed_threads() + 1
    result = invoke("complete", PROMPT, "--max-tokens", "1", "--threads", str(threads))
    assert f"note: {threads} threads on " in result.stderr and "they will get in each other's way" in result.stderr


def test_settings_reach_the_engine() -> None:
    result = invoke("complete", PROMPT, "--max-tokens", "1", "-v", "--dtype", "float32", "--max-model-len", "100")
    assert "dtype float32" in result.stderr and "at most 100 per request" in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--temperature", "-1"), "--temperature -1.0 "),
        (("--temperature", "nan"), "--temperature nan "),
        (("--top-p", "0"), "--top-p 0.0 "),
        (("--top-k", "-2"), "--top-k -2 "),
        (("--min-p", "2"), "--min-p 2.0 "),
        (("--max-tokens", "0"), "'--max-tokens': 0"),
        (("--max-tokens", "many"), "--max-tokens"),
        (("--seed", "-1"), "--seed -1 "),
        (("--stop", ""), "--stop contains ''"),
        (("--stop-token-id", "-4"), "--stop-token-id contains -4"),
        (("--logprobs", "21"), "--logprobs"),
        (("--dtype", "float17"), "--dtype"),
        (("--threads", "-1"), "--threads -1 "),
        (("--max-model-len", "0"), "--max-model-len 0 "),
        (("--chat-template", "not/there"), "--chat-template"),
        (("--kv-cache-memory-bytes", "9" * 400), "more memory than a machine can address"),
        (("--model", ""), "--model is empty"),
    ],
)
def test_impossible_values_are_usage_errors(words: tuple[str, ...], named: str) -> None:
    """Told before the model is looked at: there is none of this name."""
    result = invoke("complete", "-m", "no/such.gguf", PROMPT, *words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


def test_a_value_beyond_the_model_is_an_error() -> None:
    result = invoke("complete", PROMPT, "--max-model-len", "9000")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --max-model-len 9000 is beyond the 8192 tokens")


def test_settings_that_do_not_fit_are_named_by_their_flags() -> None:
    told = invoke("complete", PROMPT, "--max-model-len", "4000", "--num-blocks", "4").stderr
    assert told.startswith("error: --max-model-len 4000 needs 125 KV blocks")
    assert "Set --max-model-len 128 (or auto), or --kv-cache-memory-bytes " in told


@pytest.mark.parametrize("tokenizer", ["nothing", "no/such.gguf", "folder"])
def test_a_tokenizer_that_is_none_names_its_flag(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    name = str(tmp_path / tokenizer) if tokenizer == "folder" else tokenizer
    result = invoke("complete", PROMPT, "--tokenizer", name)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --tokenizer: ") and name in result.stderr


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(reference: str, flags: object) -> LLM:
        raise MemoryError

    monkeypatch.setattr("pelton.cli.commands.complete.load", load)
    result = invoke("complete", PROMPT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: Not enough memory for these settings. Choose smaller ones, or a smaller model.\n"


def test_two_models_or_two_prompts(tmp_path: Path) -> None:
    result = invoke("complete", "a.gguf", "hi", "--model", "b.gguf")
    assert result.exit_code == 2 and "Two models are given: 'a.gguf' and --model 'b.gguf'" in result.stderr
    file = tmp_path / "prompt"
    file.write_text("hi")
    result = invoke("complete", "hi", "--prompt-file", str(file))
    assert result.exit_code == 2 and "given twice" in result.stderr


def test_text_that_is_no_text() -> None:
    result = invoke("complete", stdin=b"abc\xff")
    assert result.exit_code == 1
    assert result.stderr == "error: The prompt from stdin is not UTF-8 text (byte 3). Convert it to UTF-8.\n"


def test_an_empty_prompt() -> None:
    result = invoke("complete", stdin="")
    assert result.exit_code == 1
    assert "The prompt is empty." in result.stderr


def test_a_lone_surrogate_argument() -> None:
    done = run("complete", b"caf\xe9", *GREEDY)
    assert done.returncode == 1
    assert done.stdout == b""
    message = done.stderr.decode()
    assert (
        message.startswith("error: The prompt holds bytes that are no UTF-8 text, the encoding of the locale (LC_ALL")
        and message.count("\n") == 1
    )


def test_a_lone_surrogate_model() -> None:
    done = run("complete", "-m", b"caf\xe9.gguf", "hi")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr and done.stderr.startswith(b"error: 'caf")


def test_an_output_that_cannot_say_it_all(llm: LLM) -> None:
    prompt = "é è é è é è é"
    whole = expected(llm, prompt)
    assert not whole.isascii()
    done = run("complete", prompt, *GREEDY, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii") == whole.encode("ascii", "replace").decode() + "\n"


def test_a_reader_that_goes_away() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, "complete", PROMPT, "--ignore-eos", "--max-tokens", "400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout is not None
    child.stdout.read(1)
    child.stdout.close()
    _, complaint = child.communicate(timeout=50)
    assert child.returncode == 1
    assert complaint == b""


def test_no_torch_is_loaded() -> None:
    """What the core installation has not got must not be needed; here it is installed, and must not be touched."""
    modules = modules_after("complete", PROMPT, "--max-tokens", "2")
    assert "pelton.engine.llm" in modules
    assert not {"torch", "transformers", "safetensors", "gguf"} & {name.partition(".")[0] for name in modules}
