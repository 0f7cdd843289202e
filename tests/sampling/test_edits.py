"""The table of edits: one entry for each token, bans that end with the draw, growth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.backends.backend import ALLOWED, EDIT, SEEN
from pelton.sampling.edits import ROOM, Edits


def table(edits: Edits) -> dict[int, tuple[float, int, int]]:
    records = edits.records()
    assert records.dtype == EDIT and records.flags.c_contiguous
    found = {int(token): (float(bias), int(count), int(flags)) for token, bias, count, flags in records.tolist()}
    assert len(found) == len(records), "a token has two entries"
    return found


def test_a_ban_wins_over_any_bias_in_any_order() -> None:
    edits = Edits()
    edits.add(1, 100.0)
    edits.add(1, -np.inf)
    edits.add(2, -np.inf)
    edits.add(2, 100.0)
    edits.add(3, 100.0)
    edits.ban_once(3)
    assert {token: bias for token, (bias, _, _) in table(edits).items()} == {1: -np.inf, 2: -np.inf, 3: -np.inf}


def test_a_ban_for_one_draw_leaves_what_was_there() -> None:
    edits = Edits()
    edits.add(5, 1.5)
    for token in (5, 9, 5, 9):
        edits.ban_once(token)
    assert table(edits) == {5: (-np.inf, 0, 0), 9: (-np.inf, 0, 0)}
    edits.lift()
    assert table(edits) == {5: (1.5, 0, 0)}
    edits.see([9])
    assert table(edits) == {5: (1.5, 0, 0), 9: (0, 0, SEEN)}
    edits.add(5, 1.0)
    edits.lift()
    assert table(edits)[5] == (2.5, 0, 0)


def test_nothing_is_left_of_bans_alone() -> None:
    edits = Edits()
    edits.ban_once(4)
    assert len(edits.records()) == 1
    edits.lift()
    assert len(edits.records()) == 0


def test_entries_keep_what_they_have_when_the_table_grows() -> None:
    edits = Edits()
    edits.allow([0])
    for token in range(5 * ROOM):
        edits.count(token)
        edits.count(token)
        edits.add(token, token)
    for token in range(5 * ROOM, 10 * ROOM):
        edits.ban_once(token)
    found = table(edits)
    assert found[0] == (0, 2, ALLOWED)
    assert all(found[token] == (token, 2, 0) for token in range(1, 5 * ROOM))
    assert all(found[token] == (-np.inf, 0, 0) for token in range(5 * ROOM, 10 * ROOM))


@pytest.mark.parametrize("bias", [0.1, -7.3])
def test_biases_are_in_fp32(bias: float) -> None:
    edits = Edits()
    edits.add(1, bias)
    assert edits.records()["bias"][0] == np.float32(bias)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["see", "allow", "count", "add", "many", "ban", "draw"]), st.integers(0, 3))
)


@given(CHANGES)
def test_against_a_dictionary(changes: list[tuple[str, int]]) -> None:
    edits = Edits()
    stays: dict[int, list[float]] = {}
    banned: set[int] = set()
    for kind, token in changes:
        if kind == "ban":
            edits.ban_once(token)
            banned.add(token)
        elif kind == "draw":
            expected = {one: (-np.inf if one in banned else bias, *rest) for one, (bias, *rest) in stays.items()}
            assert table(edits) == dict.fromkeys(banned, (-np.inf, 0, 0)) | expected
            edits.lift()
            banned.clear()
        elif kind == "many":
            edits.add_all({3 - token: 1.0, token: 0.5, 4: 2.0})
            for one, bias in {3 - token: 1.0, token: 0.5, 4: 2.0}.items():
                stays.setdefault(one, [0, 0, 0])[0] += bias
            edits.allow((4, 4, token))
            for one in (4, token):
                stays.setdefault(one, [0, 0, 0])[2] = int(stays[one][2]) | ALLOWED
        else:
            entry = stays.setdefault(token, [0, 0, 0])
            if kind == "add":
                edits.add(token, 1.0)
                entry[0] += 1
            elif kind == "count":
                edits.count(token)
                entry[1] += 1
            elif kind == "see":
                edits.see([token])
                entry[2] = int(entry[2]) | SEEN
            else:
                edits.allow([token])
                entry[2] = int(entry[2]) | ALLOWED
    assert table(edits).keys() == stays.keys() | banned
