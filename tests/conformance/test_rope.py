"""Every rotary scaling against transformers: frequencies, and tables of every backend at positions up to 200,000.

transformers computes in fp32, where an angle of 200,000 radians is off by a hundredth. Ours are fp64, so they are held
against its formulas in fp64, tightly, and against its classes as they are within what fp32 does to an angle.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from registry_entries import entries
from tests.models.rope_cases import Case, cases, in_fp64
from tests.oracle.driver import MAX_TOKENS, sampling
from tests.program.sources import dense

from pelton.backends import BACKENDS
from pelton.backends.backend import CompileOptions, StepInputs
from pelton.layers import ROPES
from pelton.layers.rope import Rotation
from pelton.layers.rotary import longest_text, rope_table, rotation_of
from pelton.program.builder import Builder

FP64 = 1e-12  # relative: powers and logarithms of libm, and the order of products
LONG = 100_000  # a length for which every kind looks at all that it requires
FP32 = 2e-6  # relative: theirs are rounded where frequencies are mixed of two
POSITIONS = np.unique(
    np.concatenate(
        [
            np.arange(1100),
            *(np.array([-1, 0, 1]) + (1 << bits) for bits in range(11, 18)),
            np.random.default_rng(0).integers(0, 200_000, 800),
            [199_999, 200_000],
        ]
    )
)

Table = NDArray[np.float64]


def made(case: Case) -> Rotation:
    options = {name: value for name, value in case.parameters.options.items() if value is not None}
    return rotation_of(replace(case.parameters, options=options), case.frozen)


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1e6])
@pytest.mark.parametrize("dim", [16, 64, 80, 128])
@pytest.mark.parametrize("kind", entries("rope"))
def test_frequencies_are_those_of_transformers(kind: str, dim: int, theta: float) -> None:
    for case in cases(kind, dim):
        case, ours = replace(case, theta=theta), made(replace(case, theta=theta))
        theirs, factor = case.theirs().frequencies()
        np.testing.assert_allclose(ours.inverse_frequencies, theirs, rtol=FP32 if case.options else 1e-6)
        with in_fp64():
            theirs, factor = case.theirs().frequencies()
        np.testing.assert_allclose(ours.inverse_frequencies, theirs, rtol=FP64)
        assert ours.factor == pytest.approx(factor, rel=1e-15), case.options


@pytest.mark.parametrize("kind", entries("rope"))
def test_a_part_of_the_head(kind: str) -> None:
    """A quarter of 128 numbers is what 32 are. The plain kind is transformers' own for each family, without parts."""
    for case in cases(kind, dim=32) if kind != "default" else []:
        with in_fp64():
            theirs, _ = case.theirs(partial=0.25).frequencies()
        np.testing.assert_allclose(made(case).inverse_frequencies, theirs, rtol=FP64)


@pytest.mark.parametrize("kind", entries("rope"))
def test_options_are_all_that_is_needed(kind: str) -> None:
    """Those of the cases are declared, and each that is required is missed by its name."""
    options = {option.name: option for option in ROPES.get(kind)().options}
    for case in cases(kind):
        assert set(case.options) <= set(options)
        for name in (name for name, option in options.items() if option.required):
            left = {key: value for key, value in case.parameters.options.items() if key != name}
            with pytest.raises(KeyError, match=name):
                made(replace(case, options=left, length=LONG))


@pytest.mark.parametrize("kind", entries("rope"))
def test_without_a_length_it_is_the_longest(kind: str) -> None:
    for case in cases(kind):
        options = {name: value for name, value in case.parameters.options.items() if value is not None}
        parameters = replace(case.parameters, options=options)
        longest = longest_text(parameters)
        assert longest >= 1
        assert rotation_of(parameters) == rotation_of(parameters, longest)


def tables(backend: str, rotation: Rotation) -> tuple[Table, Table]:
    """Cosines and sines [positions, pairs] of the backend's op, seen through a head of ones and zeros."""
    width = 2 * len(rotation.inverse_frequencies)
    builder = Builder({"identity": dense("identity", np.eye(width))})
    ids, positions = builder.input("ids"), builder.input("positions")
    value = rope_table(builder, positions, rotation)
    builder.op("head", (value,), weights=(builder.matrix("identity", width, width),))
    builder.entry("target", (ids, positions))
    module = builder.finish(vocab=width, context=1 << 20)
    options = CompileOptions(max_tokens=MAX_TOKENS, max_rows=MAX_TOKENS, exact=True, threads=1)
    executable = BACKENDS.get(backend)().compile(module, options)
    executable.allocate(())
    parts = []
    for at in range(0, len(POSITIONS), MAX_TOKENS):
        some = POSITIONS[at : at + MAX_TOKENS].astype(np.int32)
        count = len(some)
        step = StepInputs(
            tokens=np.zeros(count, np.int32),
            positions=some,
            starts=np.zeros(1, np.int32),
            counts=np.array([count], np.int32),
            tables=np.zeros((0, 0), np.int32),
            table_offsets=np.zeros(2, np.int32),
            logit_rows=np.arange(count, dtype=np.int32),
            sampling=sampling(count),
            want_logits=True,
        )
        logits = executable.run(step).logits
        assert logits is not None
        parts.append(logits.astype(np.float64))
    whole = np.concatenate(parts)
    return whole[:, : width // 2], whole[:, width // 2 :]


@cache
def wanted(kind: str, number: int) -> tuple[Table, Table]:
    """Cosines and sines by transformers' formulas in fp64."""
    with in_fp64():
        frequencies, factor = cases(kind)[number].theirs().frequencies()
    angles = POSITIONS[:, None] * frequencies
    return np.cos(angles) * factor, np.sin(angles) * factor


@pytest.mark.parametrize("backend", entries("backend"))
@pytest.mark.parametrize("kind", entries("rope"))
def test_tables_up_to_200_000(kind: str, backend: str) -> None:
    """fp64 angles to the last place of fp32; transformers' own within what fp32 loses of an angle."""
    for number, case in enumerate(cases(kind)):
        rotation, theirs = made(case), case.theirs()
        within = POSITIONS if theirs.length is None else POSITIONS[POSITIONS < theirs.length]
        allowed = 5e-7 * within[:, None] * np.array(rotation.inverse_frequencies) + 2e-7
        for ours, exact, rounded in zip(
            tables(backend, rotation), wanted(kind, number), theirs.table(within), strict=True
        ):
            assert np.abs(ours - exact).max() < 1e-7 * rotation.factor, case.options
            assert (np.abs(ours[: len(within)] - rounded) < rotation.factor * allowed).all(), case.options
