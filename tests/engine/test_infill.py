"""Prompts that ask for what stands between two texts: their order, what ends their answers, what is left out to fit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.conftest import FakeLLM
from tests.engine.fakes import EOS, byte_tokenizer

from pelton.checkpoint.special_tokens import FimTokens
from pelton.core.clock import FakeClock
from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.engine.prompts import PromptLimits, RequestMaker
from pelton.engine.texts.encoding import PromptEncoder
from pelton.engine.texts.infill import Gap, Infill

PRE, SUF, MID, PAD, REPO, SEP = range(300, 306)
FULL = FimTokens(PRE, SUF, MID, PAD, REPO, SEP)
PLAIN = FimTokens(PRE, SUF, MID)
CODE = st.text(alphabet="ab \n\u4e16", max_size=40)


def maker(fim: FimTokens | None, max_len: int = 50) -> RequestMaker:
    return RequestMaker(byte_tokenizer(), PromptLimits(310, max_len, frozenset({EOS})), FakeClock(), 1, fim=fim)


def infill(fim: FimTokens | None, max_len: int = 50) -> Infill:
    return Infill(PromptEncoder(byte_tokenizer(), 310, max_len), fim)


def shown(ids: tuple[int, ...]) -> str:
    """Bytes as they are, marks as letters."""
    names = {PRE: "[P]", SUF: "[S]", MID: "[M]", REPO: "[R]", SEP: "[F]"}
    return "".join(names[token] if token in names else chr(token) for token in ids)


def test_a_suffix_makes_a_prompt_with_a_gap() -> None:
    request = maker(PLAIN).make({"prompt": "def f(", "suffix": "): pass"}, SamplingParams())
    assert shown(request.prompt_token_ids) == "[P]def f([S]): pass[M]"
    assert request.prompt == "def f("
    assert request.stop_token_ids == {EOS, PRE, SUF, MID}
    given_ids = maker(FULL).make({"prompt_token_ids": [65, 66], "suffix": "x"}, SamplingParams(stop_token_ids=[7]))
    assert shown(given_ids.prompt_token_ids) == "[P]AB[S]x[M]"
    assert given_ids.stop_token_ids == {EOS, 7, *range(PRE, SEP + 1)}
    assert maker(FULL).make({"prompt": "a", "suffix": "x"}, SamplingParams(ignore_eos=True)).stop_token_ids == set()
    for nothing in ("", None):
        plain = maker(FULL).make({"prompt": "a", "suffix": nothing}, SamplingParams())
        assert (shown(plain.prompt_token_ids), plain.stop_token_ids) == ("a", {EOS})


def test_suffix_first_where_the_model_wants_it() -> None:
    first = FimTokens(PRE, SUF, MID, suffix_first=True)
    request = maker(first).make({"prompt": "a", "suffix": "b"}, SamplingParams())
    assert shown(request.prompt_token_ids) == "[S]b[P]a"


def test_marks_that_are_spelled_out_are_text() -> None:
    ids = maker(FULL).make({"prompt": "<start>", "suffix": "<end>"}, SamplingParams()).prompt_token_ids
    assert shown(ids) == "[P]<start>[S]<end>[M]"


@pytest.mark.parametrize(
    ("fim", "prompt", "param", "words"),
    [
        (None, {"prompt": "a", "suffix": "b"}, "suffix", "no tokens for filling in the middle.*Leave it out"),
        (PLAIN, {"prompt": "a" * 30, "suffix": "b" * 30}, "prompt", "63 tokens; with its answer it may have 50"),
        (PLAIN, {"prompt": "a", "suffix": 3}, "suffix", "suffix is of type int, not text"),
        (PLAIN, {"prompt": "a", "suffix": "\ud800"}, "suffix", "lone surrogate"),
    ],
)
def test_what_cannot_be_filled_in(fim: FimTokens | None, prompt: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        maker(fim).make(prompt, SamplingParams())
    assert caught.value.param == param


def test_an_llm_fills_in(fake_llm: Callable[..., FakeLLM]) -> None:
    """Its vocabulary has no marks: one says so; the others of a batch are not run."""
    llm = fake_llm().llm
    with pytest.raises(RequestError, match=r"prompts\[1\]: This model has no tokens for filling in"):
        llm.generate(["a", {"prompt": "a", "suffix": "b"}], use_tqdm=False)
    with pytest.raises(RequestError, match="no tokens for filling in"):
        llm.stream({"prompt": "a", "suffix": "b"})


def test_other_files_stand_in_front_under_their_names() -> None:
    gap = Gap(before="a", after="b", begun="c", files=(("one.py", "1\n"), ("two.py", "2\n")))
    header = "[R]myproject\n[F]one.py\n1\n[F]two.py\n2\n[F]filename\n"
    assert shown(infill(FULL, 200).fitted(gap, 10).ids) == header + "[P]ac[S]b[M]"
    snippets = "\n\n--- snippet ---\n\n1\n\n\n--- snippet ---\n\n2\n"
    assert shown(infill(PLAIN, 200).fitted(gap, 10).ids) == snippets + "[P]ac[S]b[M]"
    assert shown(infill(FULL, 200).fitted(Gap(before="a", after="b"), 10).ids) == "[P]a[S]b[M]"


def test_what_does_not_fit_is_left_out() -> None:
    fitting = infill(PLAIN, 44)  # 43 tokens, 3 of them marks, 8 for the answer: 32 around the gap
    long = Gap(before="0123456789" * 9, after="abcdefghij" * 9)
    made = fitting.fitted(long, 8)
    assert made.cut and shown(made.ids) == f"[P]{long.before[-24:]}[S]{long.after[:8]}[M]"
    short_before = fitting.fitted(Gap(before="ab", after=long.after), 8)
    assert shown(short_before.ids) == f"[P]ab[S]{long.after[:30]}[M]"
    short_after = fitting.fitted(Gap(before=long.before, after="ab"), 8)
    assert shown(short_after.ids) == f"[P]{long.before[-30:]}[S]ab[M]"
    begun = fitting.fitted(Gap(before=long.before, after=long.after, begun="x" * 20), 8)
    assert shown(begun.ids) == f"[P]{long.before[-9:]}{'x' * 20}[S]abc[M]"
    half = fitting.fitted(long, 10**6)
    assert len(half.ids) == 21, "half of all there is"
    with pytest.raises(RequestError, match="41 tokens; with its answer it may have 44") as caught:
        fitting.fitted(Gap(before="", after="", begun="x" * 41), 8)
    assert caught.value.param == "prompt"


def test_files_are_left_out_from_the_first_on() -> None:
    files = (("a", "1" * 30), ("b", "2" * 30), ("c", "3" * 30))
    gap = Gap(before="x" * 10, after="y", files=files)
    made = infill(FULL, 120).fitted(gap, 8)
    assert made.cut
    assert shown(made.ids) == f"[R]myproject\n[F]b\n{'2' * 30}[F]c\n{'3' * 30}[F]filename\n[P]{'x' * 10}[S]y[M]"
    none = infill(FULL, 50).fitted(gap, 8)
    assert none.cut and shown(none.ids) == f"[P]{'x' * 10}[S]y[M]"


def test_a_text_of_any_length_is_cut_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    fitting = infill(PLAIN)
    tokenizer = fitting._encoder._tokenizer
    encode = tokenizer.encode

    def counting(text: str, **options: object) -> list[int]:
        sizes.append(len(text))
        return encode(text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer, "encode", counting)
    made = fitting.fitted(Gap(before="a" * 10**6, after="b" * 10**6, files=(("f", "c" * 10**6),)), 8)
    assert made.cut and max(sizes) <= fitting._encoder.most_chars < 10**4
    assert len(made.ids) == 41


@given(CODE, CODE, CODE, st.lists(st.tuples(CODE, CODE), max_size=3), st.integers(0, 60))
def test_it_always_fits(before: str, after: str, begun: str, files: list[tuple[str, str]], answer: int) -> None:
    fitting = infill(FULL, 90)
    gap = Gap(before=before, after=after, begun=begun, files=tuple(files))
    try:
        made = fitting.fitted(gap, answer)
    except RequestError as error:
        assert error.param == "prompt" and len(begun.encode()) > 41
        return
    assert len(made.ids) <= max(89 - answer, 44) and len(made.ids) < 90
    whole = infill(FULL, 4000).fitted(gap, answer)
    assert not whole.cut
    assert made.cut == (made.ids != whole.ids)


def test_the_data_of_humaneval_makes_prompts(data: Path) -> None:
    for name in ("singleline", "randomspan"):
        lines = (data / "prompts" / f"humaneval_infill_{name}.jsonl").read_text(encoding="utf-8").strip().split("\n")
        for row in map(json.loads, lines):
            ids = infill(FULL, 20_000).whole(row["prompt"], row["suffix"])
            before, after = list(row["prompt"].encode()), list(row["suffix"].encode())
            assert list(ids) == [PRE, *before, SUF, *after, MID]
            assert infill(FULL, 20_000).fitted(Gap(before=row["prompt"], after=row["suffix"]), 64).ids == ids
