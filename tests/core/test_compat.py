"""Conflicts between techniques, computed from what they declare and said in sentences."""

import pytest

from pelton.core.compat import conflicts, matrix, refuse_conflicts
from pelton.core.errors import SettingError
from pelton.core.needs import Fact, Needs

KEEPER = Needs(requires=Fact.ALL_TOKENS_KEPT | Fact.ROLLBACK)
DROPPER = Needs(breaks=Fact.ALL_TOKENS_KEPT | Fact.SHARED_PREFIX)


def test_conflicts_are_sentences() -> None:
    found = conflicts({"keeper": KEEPER, "dropper": DROPPER, "other": Needs()})
    assert found == ["keeper requires ALL_TOKENS_KEPT, which dropper breaks"]
    assert conflicts({"keeper": KEEPER, "other": Needs(breaks=Fact.EXACT_KV)}) == []
    with pytest.raises(SettingError, match="keeper requires ALL_TOKENS_KEPT, which dropper breaks. Turn one"):
        refuse_conflicts({"keeper": KEEPER, "dropper": DROPPER})


def test_the_matrix_has_each_pair_once() -> None:
    whole = matrix({"b": DROPPER, "a": KEEPER, "c": Needs()})
    assert set(whole) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert [pair for pair, found in whole.items() if found] == [("a", "b")]
