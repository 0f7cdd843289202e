"""Rotary frequencies: golden numbers, what each kind promises, its refusals, and the row order of paired files."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.rope_cases import cases
from tests.models.test_config import PLAIN
from tests.models.test_llama_module import Source, shapes
from tests.program.sources import ShapeSource, dense

from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.layers import ROPES
from pelton.layers.rope import RopeParameters, Rotation
from pelton.layers.rotary import half_split_rows, longest_text, rotation_of, stretched_from
from pelton.models.config import ConfigReader
from pelton.models.standard import build_standard, read_standard

LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


def parameters(kind: str, theta: float = 1e4, dim: int = 8, context: int = 4096, **options: Any) -> RopeParameters:
    return RopeParameters(kind, theta, dim, context, options)


def frequencies(kind: str, theta: float, dim: int, **options: Any) -> tuple[float, ...]:
    return rotation_of(parameters(kind, theta, dim, **options)).inverse_frequencies


def test_golden_numbers_of_llama_31() -> None:
    got = frequencies("llama3", 5e5, 128, **LLAMA31)
    golden = {28: 3.211446e-3, 29: 2.166571e-3, 30: 1.371894e-3, 33: 3.126938e-4, 35: 9.556212e-5, 63: 3.068926e-7}
    for place, value in golden.items():
        assert got[place] == pytest.approx(value, rel=5e-7)
    plain = frequencies("default", 5e5, 128)
    assert got[:29] == plain[:29]
    assert got[35] == pytest.approx(plain[35] / 8, rel=1e-15)


def test_frequencies_are_exact_to_the_last_bit() -> None:
    """Powers whose value is known: theta^(-2j/d) with theta = 10^4, d = 8 is 1, 0.1, 0.01, 0.001."""
    assert frequencies("default", 10000.0, 8) == (1.0, 0.1, 0.01, 0.001)
    assert frequencies("linear", 10000.0, 8, factor=4.0) == (0.25, 0.025, 0.0025, 0.00025)
    # theta * 1000^(8 / 6) = 10^8, so that each step is a hundredth
    assert frequencies("ntk", 10000.0, 8, factor=1000.0) == (1.0, 0.01, 0.0001, 0.000001)


@given(st.floats(1.1, 64), st.sampled_from([8, 64, 96, 128]), st.floats(1e3, 1e7))
@settings(max_examples=30, deadline=None)
def test_ntk_divides_the_slowest_pair_and_leaves_the_fastest(factor: float, dim: int, base: float) -> None:
    got, plain = frequencies("ntk", base, dim, factor=factor), frequencies("default", base, dim)
    assert got[0] == 1.0
    assert got[-1] == pytest.approx(plain[-1] / factor, rel=1e-14)
    assert all(slower < faster for slower, faster in zip(got[1:], plain[1:], strict=True))


def test_factors_of_yarn_are_the_published_ones() -> None:
    """0.1 ln(4) + 1 for Qwen, 0.1 ln(40) + 1 as DeepSeek has it, and 1 where a config asks for it."""
    assert rotation_of(parameters("yarn", **YARN)).factor == pytest.approx(1.1386, abs=5e-5)
    assert rotation_of(parameters("yarn", **{**YARN, "factor": 40.0})).factor == pytest.approx(1.3689, abs=5e-5)
    assert rotation_of(parameters("yarn", **YARN, attention_factor=1.0)).factor == 1.0
    assert rotation_of(parameters("yarn", **YARN, mscale=1.0, mscale_all_dim=1.0)).factor == 1.0
    twice = rotation_of(parameters("yarn", **YARN, attention_factor=1.5, attn_factor=2.0)).factor
    assert twice == 3.0


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    got, plain = frequencies("yarn", 1e6, 128, **YARN), frequencies("default", 1e6, 128)
    assert got[:24] == plain[:24]
    assert all(g == pytest.approx(p / 4, rel=1e-15) for g, p in zip(got[40:], plain[40:], strict=True))
    assert all(p / 4 < g < p for g, p in zip(got[24:39], plain[24:39], strict=True))


def test_the_longest_text_of_each_kind() -> None:
    assert longest_text(parameters("default")) == 4096
    assert longest_text(parameters("linear", factor=2.5)) == 10240
    assert longest_text(parameters("ntk", factor=2.0)) == 8192
    assert longest_text(parameters("dynamic", factor=4.0)) == 16384
    assert longest_text(parameters("llama3", **LLAMA31, context=131072)) == 131072
    assert longest_text(parameters("yarn", **YARN, context=40960)) == 131072
    assert longest_text(parameters("yarn", **{**YARN, "factor": 1.0}, context=40960)) == 40960
    assert longest_text(parameters("yarn", original_max_position_embeddings=4096, context=16384)) == 16384
    assert longest_text(parameters("longrope", original_max_position_embeddings=4096, context=131072)) == 131072


def test_dynamic_is_plain_up_to_the_context_and_frozen_beyond() -> None:
    asked = parameters("dynamic", dim=64, factor=2.0)
    plain = rotation_of(parameters("default", dim=64))
    assert rotation_of(asked, 1) == rotation_of(asked, 4096) == plain
    longer, longest = rotation_of(asked, 5000), rotation_of(asked, 8192)
    assert len({plain, longer, longest}) == 3
    assert rotation_of(asked, 5000) == longer, "another length left something behind"
    assert rotation_of(asked) == longest


def test_longrope_chooses_once_by_the_length() -> None:
    lists = {"short_factor": (1.0, 2.0, 4.0, 8.0), "long_factor": (16.0, 32.0, 64.0, 128.0)}
    asked = parameters("longrope", **lists, original_max_position_embeddings=1024.0)
    plain = frequencies("default", 1e4, 8)
    short, long = rotation_of(asked, 1024), rotation_of(asked, 1025)
    assert short.inverse_frequencies == tuple(p / d for p, d in zip(plain, lists["short_factor"], strict=True))
    assert long.inverse_frequencies == tuple(p / d for p, d in zip(plain, lists["long_factor"], strict=True))
    assert short.factor == long.factor == pytest.approx((1 + 2 / 10) ** 0.5)  # ln 4 / ln 1024
    scaled = RopeParameters("longrope", 1e4, 8, 4096, {**asked.options, "short_mscale": 1.5, "long_mscale": 1.25})
    assert (rotation_of(scaled, 1024).factor, rotation_of(scaled, 1025).factor) == (1.5, 1.25)
    told = RopeParameters("longrope", 1e4, 8, 4096, {**asked.options, "attn_factor": 1.19})
    assert rotation_of(told).factor == 1.19


LONG = {"short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4, "original_max_position_embeddings": 1024.0}
SAID = {"short_mscale": 1.5, "long_mscale": 1.25, "attention_factor": 1.37, "attn_factor": 1.19}


@pytest.mark.parametrize(
    ("left_out", "factors"),
    [
        ((), (1.5, 1.25)),
        (("short_mscale",), (1.37, 1.25)),
        (("long_mscale",), (1.5, 1.37)),
        (("short_mscale", "long_mscale"), (1.37, 1.37)),
        (("short_mscale", "long_mscale", "attention_factor"), (1.19, 1.19)),
        (("short_mscale", "attention_factor"), (1.19, 1.25)),
    ],
)
def test_which_factor_of_longrope_holds(left_out: tuple[str, ...], factors: tuple[float, float]) -> None:
    """An mscale of the length's own, else attention_factor, else attn_factor."""
    asked = parameters("longrope", **LONG, **{name: value for name, value in SAID.items() if name not in left_out})
    assert (rotation_of(asked, 1024).factor, rotation_of(asked, 1025).factor) == factors


def share_divided(theta: float, dim: int, **options: Any) -> list[float]:
    """For each pair how far it went over from its frequency (0) to a quarter of it (1)."""
    got, plain = frequencies("yarn", theta, dim, factor=4.0, **options), frequencies("default", theta, dim)
    return [(1 - g / p) / 0.75 for g, p in zip(got, plain, strict=True)]


def test_the_ramp_of_yarn_may_end_behind_the_last_pair() -> None:
    """Pair 37 of 0 to 31 would turn once in 262144 tokens, so that the slowest is divided in part only."""
    shares = share_divided(1e4, 64, original_max_position_embeddings=262144)
    assert shares == pytest.approx([min(max((place - 24) / (37 - 24), 0), 1) for place in range(32)], abs=1e-12)
    # It ends at the last number of a head: 9, as it would be, becomes 7.
    far = share_divided(1e4, 8, original_max_position_embeddings=10**9, beta_fast=1e6)
    assert far == pytest.approx([0, 0, 0, (3 - 2) / (7 - 2)], abs=1e-12)


def test_a_ramp_of_yarn_between_equal_borders_is_a_step() -> None:
    """Just behind the border a step has a width: a thousandth of a pair."""
    before = 2 * np.pi  # one turn: both borders are at pair 0
    assert share_divided(1e4, 8, original_max_position_embeddings=before * 0.99) == pytest.approx([0, 1, 1, 1])
    equal = {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False}
    for original in (before * 100 * 0.99975, before * 10):  # at pair 2 but for a ten-thousandth, at pair 1
        border = 8 * np.log(original / before) / (2 * np.log(1e4))
        wanted = [min(max((place - border) / 0.001, 0), 1) for place in range(4)]
        assert share_divided(1e4, 8, original_max_position_embeddings=original, **equal) == pytest.approx(
            wanted, abs=1e-9
        )


def test_layers_with_a_window_have_the_length_too() -> None:
    """A base that depends on the length is frozen in both tables."""
    tensors = {name: ShapeSource(name, shape) for name, shape in shapes(PLAIN).items()}
    read = read_standard(ConfigReader(PLAIN), eps=1e-6, context=2048)
    head, layers = read.attention.head_dim, read.frame.layers
    local = parameters("dynamic", 1e3, head, 64, factor=4.0)
    config = replace(read, window_rope=local, windows=(32, *(None,) * (layers - 1)))
    for length in (64, 100, 256, None):
        module = build_standard(config, Source(PLAIN, tensors), length)
        tables = {op.outputs[0]: op.attrs for op in module.entries["target"].ops if op.kind == "rope_table"}
        assert tables["window_rope"]["inverse_frequencies"] == rotation_of(local, length).inverse_frequencies
        assert tables["rope"]["inverse_frequencies"] == rotation_of(config.rope, length).inverse_frequencies
    assert rotation_of(local, 64) != rotation_of(local, 100) != rotation_of(local)


@pytest.mark.parametrize("kind", ROPES.names())
def test_scores_depend_on_distance_alone(kind: str) -> None:
    """Queries and keys of any content, turned by our angles: moved along together their product stays."""
    generator = np.random.default_rng(0)
    for case in cases(kind):
        options = {name: value for name, value in case.parameters.options.items() if value is not None}
        rotation = rotation_of(RopeParameters(kind, case.theta, case.dim, case.context, options), case.frozen)
        q, k = (generator.normal(size=32) + 1j * generator.normal(size=32) for _ in range(2))

        def score(i: int, j: int, q: Any = q, k: Any = k, rotation: Rotation = rotation) -> float:
            turned = np.exp(1j * np.array([[i], [j]]) * np.array(rotation.inverse_frequencies)) * rotation.factor
            return float((q * turned[0] * np.conj(k * turned[1])).real.sum())

        for distance in (0, 1, 17, 4000):
            assert score(distance, 0) == pytest.approx(score(150_000 + distance, 150_000), rel=1e-9, abs=1e-8)


REFUSED: list[tuple[RopeParameters, str]] = [
    (parameters("llama3", 5e5, 128, **{**LLAMA31, "low_freq_factor": 4.0}), "low_freq_factor=4"),
    (parameters("ntk", dim=2, factor=2.0), "two pairs"),
    (parameters("dynamic", dim=2, factor=2.0), "two pairs"),
    (parameters("yarn", theta=1.0, **YARN), "rope_theta=1"),
    (parameters("longrope", original_max_position_embeddings=1024.0), "0 numbers of long_factor, but 4 pairs"),
    (
        parameters("longrope", original_max_position_embeddings=1024.0, long_factor=(1.0, 2.0)),
        "2 numbers of long_factor, but 4 pairs",
    ),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_cannot_be_is_refused(asked: RopeParameters, said: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        rotation_of(asked)
    assert said in f"{refusal.value.cause} {refusal.value.remedy}"


def test_divisors_of_a_file_divide_and_are_checked() -> None:
    plain = frequencies("default", 1e4, 8)
    asked = parameters("default")
    got = rotation_of(asked, divisors=dense("rope_freqs.weight", np.array([1.0, 2.0, 4.0, 8.0])))
    assert got.inverse_frequencies == tuple(p / d for p, d in zip(plain, (1, 2, 4, 8), strict=True))
    for wrong in ([1.0, 2.0], [1.0, 2.0, 0.0, 1.0], [1.0, np.nan, 1.0, 1.0]):
        with pytest.raises(CheckpointError, match="rope_freqs"):
            rotation_of(asked, divisors=dense("rope_freqs.weight", np.array(wrong)))


def test_half_split_rows_undo_the_interleaving_of_gguf() -> None:
    """llama.cpp's converter views a head's rows as [2, d / 2] and stores them as [d / 2, 2]."""
    heads, dim = 3, 8
    original = np.arange(heads * dim)
    stored = original.reshape(heads, 2, dim // 2).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(stored[list(half_split_rows(heads, dim))], original)


@pytest.mark.parametrize(("length", "told"), [(None, 64), (65, 64), (64, None), (1, None)])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_where_short_texts_are_stretched_too_is_known(kind: str, length: int | None, told: int | None) -> None:
    """From that length on the frequencies differ; up to it they are those of a single token."""
    options: dict[str, object] = {"factor": 4.0}
    if kind == "longrope":
        options |= {"original_max_position_embeddings": 64, "short_factor": (1.0,) * 4, "long_factor": (3.0,) * 4}
    parameters = RopeParameters(kind, 10000.0, 8, 64 if kind == "dynamic" else 256, options)  # type: ignore[arg-type]
    assert stretched_from(parameters, length) == told
    differs = rotation_of(parameters, length).inverse_frequencies != rotation_of(parameters, 1).inverse_frequencies
    assert differs == (told is not None)
