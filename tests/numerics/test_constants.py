"""Numbers that stand on both sides of the C++ border, or in tests beside the code, are equal."""

import pytest
from tests.native import attend_case, attend_order, choose_case, probe
from tests.numerics import order1
from tests.oracle import driver

from pelton.backends.cpu import _native
from pelton.backends.reference import pool
from pelton.core.config import BLOCK_TOKENS
from pelton.program.ops import attend, elementwise, head, norm, rope

NATIVE = _native.CONSTANTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block", BLOCK_TOKENS),
        ("block", attend.BLOCK),
        ("block", pool.BLOCK),
        ("attend_rows", attend.ROWS),
        ("head_rows", head.GROUP),
        ("norm_flops", norm.FLOPS),
        ("layer_norm_flops", norm.LAYER_FLOPS),
        ("activation_flops", elementwise.ACTIVATION_FLOPS),
        ("table_flops", rope.TABLE_FLOPS),
        ("softmax_flops", attend.SOFTMAX_FLOPS),
        ("softcap_flops", attend.SOFTCAP_FLOPS),
        ("slope_flops", attend.SLOPE_FLOPS),
        ("choice_flops", head.CHOICE_FLOPS),
    ],
)
def test_native_numbers_are_pythons(name: str, value: int) -> None:
    assert NATIVE[name] == value


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("block", [probe.BLOCK, attend_case.BLOCK, attend_order.BLOCK, order1.BLOCK, driver.BLOCK]),
        ("tile", [attend_order.TILE, order1.TILE]),
        ("chunk", [attend_case.CHUNK]),
        ("panel", [probe.PANEL, order1.LANES]),
        ("vocab_chunk", [choose_case.CHUNK, order1.VOCAB_CHUNK]),
    ],
)
def test_the_tests_numbers_are_the_kernels(name: str, values: list[int]) -> None:
    assert {NATIVE[name]} == set(values)


def test_every_native_number_is_compared_here() -> None:
    ours = {"block", "tile", "chunk", "panel", "vocab_chunk", "attend_rows", "head_rows"}
    rules = ("norm", "layer_norm", "activation", "table", "softmax", "softcap", "slope", "choice")
    assert set(NATIVE) == ours | {f"{rule}_flops" for rule in rules}
