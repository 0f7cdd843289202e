"""docs/numerics-vectors.json: kernels of every instruction set, and the page in plain Python, give these very bits."""

import json

import pytest
from tests.numerics.by_kernel import Isa
from tests.numerics.cases import PATH, Case, encode, logits_of, read
from tests.numerics.inputs import inputs
from tests.numerics.vectors import KINDS

VECTORS = read()


def given(case: Case) -> Case:
    return {name: value for name, value in case.items() if name != "out"}


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_give_the_vectors(every: list[Isa], kind: str) -> None:
    for number, case in enumerate(VECTORS[kind]):
        for isa in every:
            assert encode(KINDS[kind][0](isa, given(case))) == encode(case["out"]), (number, isa)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_gives_the_vectors(kind: str) -> None:
    for number, case in enumerate(VECTORS[kind]):
        assert encode(KINDS[kind][1](given(case))) == encode(case["out"]), number


def test_the_file_is_whole() -> None:
    """All kinds with all their cases, in text that reads back to the same bits."""
    written = json.loads(PATH.read_text(encoding="utf-8"))
    assert written["order"] == 1
    assert set(VECTORS) == set(KINDS)
    assert {kind: len(cases) for kind, cases in VECTORS.items()} == {kind: len(new) for kind, new in inputs().items()}
    assert encode(VECTORS) == written["vectors"]


def test_hexadecimal_text_tells_zeros_apart() -> None:
    assert encode([0.0, -0.0, 1.0, 0.1, 0]) == ["0x0p+0", "-0x0p+0", "0x1p+0", "0x1.999999999999ap-4", 0]


def test_filters_and_fallbacks_matter_in_the_choices() -> None:
    """A choice that would come out the same without its filters could not show that they work."""
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    filtered = [case for case in VECTORS["choice"] if any(case["wish"][name] != off[name] for name in off)]
    ruled = [case for case in filtered if "count" in case]
    assert len(ruled) >= 4
    for case in ruled:
        free: Case = {**case, "wish": {**case["wish"], **off}}
        assert KINDS["choice"][1](free) != case["out"], case["wish"]
    tokens = {case["out"]["token"] for case in VECTORS["choice"]}
    assert len(tokens) > 6
    assert any(max(logits_of(case)) > 1e38 for case in VECTORS["choice"])
