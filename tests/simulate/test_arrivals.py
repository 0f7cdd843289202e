"""A trace made to fit: one factor for all lengths, pieces that stay shared, and times."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.errors import SettingError
from pelton.measure.simulate.arrivals import Choice, drawn_ids, prepare
from pelton.measure.simulate.trace import Call, Trace

VOCAB = 49_152


def test_lengths_are_scaled_by_what_makes_the_longest_fit() -> None:
    trace = Trace((Call(0.0, 900, 100), Call(1.0, 90, 10), Call(2.0, 1, 0)))
    assert prepare(trace, Choice(), 2000).scale == 1.0
    prepared = prepare(trace, Choice(), 500)
    assert prepared.scale == 0.5 and prepared.cut == 0
    assert [(one.prompt, one.output) for one in prepared.arrivals] == [(450, 50), (45, 5), (1, 1)]
    assert sum(length for _, length in prepared.arrivals[0].pieces) == 450


def test_a_given_scale_cuts_what_is_still_too_long() -> None:
    trace = Trace((Call(0.0, 900, 100), Call(1.0, 90, 600), Call(2.0, 9, 9)))
    prepared = prepare(trace, Choice(scale=1.0), 500)
    assert prepared.cut == 2
    assert [(one.prompt, one.output) for one in prepared.arrivals] == [(499, 1), (90, 410), (9, 9)]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.integers(1, 500),
    st.integers(3, 3000),
)
def test_every_arrival_fits_and_is_covered_by_its_pieces(prompts: list[int], output: int, max_len: int) -> None:
    calls = [Call(0.0, size, output, tuple(range(-(-size // 512)))) for size in prompts]
    for arrival in prepare(Trace(tuple(calls), piece=512), Choice(), max_len).arrivals:
        assert arrival.prompt >= 1 and arrival.output >= 1 and arrival.prompt + arrival.output <= max_len
        assert sum(tokens for _, tokens in arrival.pieces) == arrival.prompt == len(arrival.ids(VOCAB))


@pytest.mark.parametrize("max_len", [10_000, 400, 90])
def test_prompts_share_what_their_pieces_say(max_len: int) -> None:
    """As far as the first piece that differs, and not a token further."""
    calls = (
        Call(0.0, 2000, 20, (1, 2, 3, 4)),
        Call(0.0, 1800, 20, (1, 2, 5, 6)),
        Call(0.0, 2000, 20, (1, 2, 3, 7)),
        Call(0.0, 600, 20, (8, 2)),
        Call(0.0, 600, 20),
        Call(0.0, 600, 20),
    )
    prepared = prepare(Trace(calls, piece=512), Choice(), max_len)
    ids = [arrival.ids(VOCAB) for arrival in prepared.arrivals]
    scale = prepared.scale
    common = {(0, 1): 1024, (0, 2): 1536, (1, 2): 1024}
    for one, other in itertools.combinations(range(len(calls)), 2):
        least = min(len(ids[one]), len(ids[other]))
        alike = np.flatnonzero(ids[one][:least] != ids[other][:least])
        assert (int(alike[0]) if len(alike) else least) == round(common.get((one, other), 0) * scale), (one, other)


def test_the_last_piece_is_the_same_as_far_as_it_goes() -> None:
    calls = (Call(0.0, 700, 1, (1, 2)), Call(0.0, 1024, 1, (1, 2)))
    short, long = (arrival.ids(VOCAB) for arrival in prepare(Trace(calls, piece=512), Choice(), 5000).arrivals)
    assert (long[:700] == short).all()


def test_ids_are_spread_over_the_vocabulary() -> None:
    ids = drawn_ids(5, 20_000, 1000)
    assert ids.min() == 0 and ids.max() == 999 and ids.dtype == np.int32
    assert np.bincount(ids).std() < 8
    assert (drawn_ids(5, 100, 1000) == ids[:100]).all() and (drawn_ids(-6, 100, 1000) != ids[:100]).any()


def test_times_pass_faster_or_at_a_rate() -> None:
    trace = Trace((Call(5.0, 9, 9), Call(7.0, 9, 9), Call(15.0, 9, 9)))

    def moments(choice: Choice) -> list[float]:
        return [one.at for one in prepare(trace, choice, 100).arrivals]

    assert moments(Choice()) == [0.0, 2.0, 10.0]
    assert moments(Choice(speed=4.0)) == [0.0, 0.5, 2.5]
    assert moments(Choice(rate=4.0)) == pytest.approx([0.0, 0.1, 0.5])
    assert moments(Choice(count=2)) == [0.0, 2.0]
    assert prepare(trace, Choice(rate=4.0), 100).offered == pytest.approx(4.0)


def test_without_times_moments_are_drawn() -> None:
    trace = Trace(tuple(Call(0.0, 9, 9) for _ in range(4000)), timed=False)
    assert prepare(trace, Choice(), 100).offered is None
    prepared = prepare(trace, Choice(rate=8.0), 100)
    assert prepared.offered == pytest.approx(8.0, rel=0.05)
    assert prepared == prepare(trace, Choice(rate=8.0), 100) != prepare(trace, Choice(rate=8.0, seed=1), 100)
    with pytest.raises(SettingError, match="no times"):
        prepare(trace, Choice(speed=2.0), 100)


def test_nothing_left_is_told() -> None:
    with pytest.raises(SettingError, match="No request"):
        prepare(Trace(()), Choice(), 100)
    with pytest.raises(SettingError, match="max_model_len=1"):
        prepare(Trace((Call(0.0, 9, 9),)), Choice(), 1)
