"""Parameters that are not supported: refused by name, or taken where they ask for nothing."""

from pathlib import Path

import pytest

from pelton.core.errors import RequestError
from pelton.sampling.refused import REFUSED, refuse

NEUTRAL: list[tuple[str, object]] = [
    ("typical_p", 1),
    ("typical_p", 1.0),
    ("top_n_sigma", -1),
    ("top_n_sigma", 0),
    ("dry_multiplier", 0.0),
    ("dry_base", 1.75),
    ("dry_sequence_breakers", ["\n"]),
    ("xtc_probability", 0),
    ("xtc_threshold", 0.1),
    ("mirostat", 0),
    ("mirostat_tau", 5.0),
    ("epsilon_cutoff", 0),
    ("eta_cutoff", 0),
    ("no_repeat_ngram_size", 0),
    ("length_penalty", 1.0),
    ("use_beam_search", False),
    ("best_of", 1),
    ("best_of", None),
    ("logits_processors", None),
    ("logits_processors", []),
    ("vllm_xargs", {}),
]
ASKING: list[tuple[str, object]] = [
    ("typical_p", 0.9),
    ("typical_p", "1"),
    ("typical_p", True),
    ("top_n_sigma", 1),
    ("dry_multiplier", 0.8),
    ("xtc_probability", 0.5),
    ("mirostat", 2),
    ("epsilon_cutoff", 3e-4),
    ("eta_cutoff", float("nan")),
    ("no_repeat_ngram_size", 3),
    ("length_penalty", 0.9),
    ("use_beam_search", True),
    ("best_of", 3),
    ("logits_processors", ["x"]),
    ("vllm_xargs", {"a": 1}),
]


@pytest.mark.parametrize(("name", "value"), NEUTRAL)
def test_what_asks_for_nothing_is_taken(name: str, value: object) -> None:
    assert refuse({"top_k": 5, name: value}) == {"top_k": 5}


@pytest.mark.parametrize(("name", "value"), ASKING)
def test_what_asks_for_something_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"^{name}=.* is not supported\. .*\w\.$") as refusal:
        refuse({"top_k": 5, name: value})
    assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")


def test_as_many_candidates_as_answers_are_all_answers() -> None:
    assert refuse({"n": 3, "best_of": 3}) == {"n": 3}
    with pytest.raises(RequestError, match=r"^best_of=3"):
        refuse({"n": 2, "best_of": 3})


def test_every_refusal_says_what_to_do() -> None:
    for name, refusal in REFUSED.items():
        assert refusal.neutral is None or refusal.instead.endswith("."), name


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
    assert [name for name, refusal in REFUSED.items() if refusal.neutral is not None and f"`{name}`" not in text] == []
