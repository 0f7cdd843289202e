"""RequestMaker: what it checks against the model, and what it makes of words, priorities, salts and ids."""

import pytest
from tests.engine.fakes import EOS, VOCAB, byte_tokenizer
from tests.tokenize.vocabularies import tiny_tokenizer

from pelton.core.clock import FakeClock
from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.engine.prompts import PromptLimits, RequestMaker


def maker(vocab: int = VOCAB) -> RequestMaker:
    return RequestMaker(byte_tokenizer(), PromptLimits(vocab, 50, frozenset({EOS})), FakeClock(3.0), seed=1)


def test_all_that_a_request_says_is_in_it() -> None:
    params = SamplingParams(n=2, seed=4, max_tokens=10**9, stop_token_ids=[7], logit_bias={"3": 1})
    request = maker().make("hi", params, request_id="mine", priority=-3, cache_salt="s")
    assert (request.request_id, request.priority, request.cache_salt, request.arrival) == ("mine", -3, "s", 3.0)
    assert (request.max_tokens, request.stop_token_ids, request.prompt) == (48, {7, EOS}, "hi")
    first, second = request.children()
    assert (first.request_id, first.child, first.parent) == ("mine", 0, None)
    assert (second.request_id, second.child, second.parent) == ("mine/1", 1, "mine")
    given = maker().make({"prompt": "hi", "cache_salt": "own"}, SamplingParams(ignore_eos=True, max_tokens=0))
    assert (given.cache_salt, given.max_tokens, given.stop_token_ids, given.request_id) == ("own", 0, frozenset(), "0")
    assert given.params.seed is not None


@pytest.mark.parametrize(("params", "param", "words"), [
    ({"allowed_token_ids": [1, 260]}, "allowed_token_ids", "allowed_token_ids has token 260.*the model has only"),
    ({"logit_bias": {260: 1.0}}, "logit_bias", "logit_bias has token 260"),
    ({"stop_token_ids": [5, 999]}, "stop_token_ids", "stop_token_ids has token 999"),
    ({"min_tokens": 49, "max_tokens": None}, "min_tokens", "min_tokens=49 is more than the 48 tokens.*Set at most 48"),
    ({"stop": "a\ud800"}, "stop", r"stop holds the lone surrogate U\+D800 at character 1"),
    ({"bad_words": ["a", "\udfff"]}, "bad_words", "bad_words holds the lone surrogate"),
])  # fmt: skip
def test_what_the_model_cannot_do_is_refused(params: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        maker().make("hi", SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.param == param
    assert maker().make("h", SamplingParams(min_tokens=49, max_tokens=None)).max_tokens == 49


@pytest.mark.parametrize("params", [
    {"allowed_token_ids": [EOS], "min_tokens": 3},
    {"allowed_token_ids": [EOS, 7], "min_tokens": 1, "stop_token_ids": [7]},
    {"allowed_token_ids": [7], "min_tokens": 1, "stop_token_ids": [7], "ignore_eos": True},
    {"allowed_token_ids": [97, 97, 98], "bad_words": ["a", "b"]},
    {"allowed_token_ids": [97, EOS], "bad_words": ["a"], "min_tokens": 1},
])  # fmt: skip
def test_a_first_draw_without_any_token_is_refused(params: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="allowed_token_ids has no token that may come first") as caught:
        maker().make("hi", SamplingParams(**params))  # type: ignore[arg-type]
    assert (caught.value.param, caught.value.code) == ("allowed_token_ids", "no_token_left")
    listed = params["allowed_token_ids"]
    assert isinstance(listed, list)
    for more in (
        {"allowed_token_ids": [*listed, 99]},
        {"min_tokens": 0, "bad_words": ["ab"]},
        {"allowed_token_ids": None},
    ):
        assert maker().make("hi", SamplingParams(**{**params, **more})).prompt == "hi"  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "param"), [
    ({"request_id": "\ud800"}, "request_id"),
    ({"request_id": 5}, "request_id"),
    ({"cache_salt": "\ud800"}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"priority": 1 << 31}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"priority": True}, "priority"),
])  # fmt: skip
def test_what_no_request_can_be_called_is_refused(options: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        maker().make("hi", SamplingParams(), **options)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_text_beside_ids_is_checked_too() -> None:
    for key in ("prompt", "cache_salt"):
        with pytest.raises(RequestError, match="lone surrogate") as caught:
            maker().make({"prompt_token_ids": [1], key: "\ud800"}, SamplingParams())
        assert caught.value.param == key
    assert maker().make({"prompt_token_ids": [1], "prompt": "said"}, SamplingParams()).prompt == "said"


@pytest.mark.parametrize("prompt", ["x" * 50, {"prompt_token_ids": [1] * 50}, "x" * (1 << 20)], ids=len)
def test_a_prompt_beyond_the_context_has_its_code(prompt: str | dict[str, object]) -> None:
    with pytest.raises(RequestError, match="with its answer it may have 50. Shorten it to at most 49") as caught:
        maker().make(prompt, SamplingParams())
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(RequestError) as caught:
        maker().make_all(["hi", prompt], SamplingParams())
    assert caught.value.code == "context_length_exceeded" and caught.value.cause.startswith("prompts[1]: ")


def test_bad_words_are_banned_behind_a_space_and_without() -> None:
    made = maker().make("hi", SamplingParams(bad_words=["ab", " ab", " "]))
    assert made.bad_word_ids == ((97, 98), (32, 97, 98), (32,), (32, 32))
    made = maker(vocab=258).make("hi", SamplingParams(bad_words=["<end>", "a<pad>"]))
    assert made.bad_word_ids == ((EOS,), (32, EOS)), "what the model has no token for, it cannot say"
    tokenizer = tiny_tokenizer()
    made = RequestMaker(tokenizer, PromptLimits(tokenizer.vocab_size, 50, frozenset()), FakeClock(), None).make(
        "hi", SamplingParams(bad_words="hel")
    )
    assert {tokenizer.decode(ids) for ids in made.bad_word_ids} == {"hel", " hel"}


def test_priorities_are_one_for_all_or_one_for_each() -> None:
    def urgency(priority: object) -> list[int]:
        made = maker().make_all(["a", "b", "c"], SamplingParams(), priority=priority)  # type: ignore[arg-type]
        return [request.priority for request in made]

    assert urgency(4) == [4, 4, 4] and urgency([1, 2, 3]) == [1, 2, 3]
    with pytest.raises(RequestError, match="There are 3 prompts, but 2 priority"):
        urgency([1, 2])
    with pytest.raises(RequestError, match=r"prompts\[1\]: priority='x'"):
        urgency([1, "x", 3])
