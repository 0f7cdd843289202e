"""Which techniques go together: computed from their Needs, spoken in sentences. Knows no technique by name."""

from collections.abc import Mapping
from itertools import permutations

from pelton.core.errors import SettingError
from pelton.core.needs import Fact, Needs


def conflicts(chosen: Mapping[str, Needs]) -> list[str]:
    """Sentences such as "eagle requires ALL_TOKENS_KEPT, which snapkv breaks"; empty when all go together."""
    sentences = []
    for one, other in permutations(sorted(chosen), 2):
        broken = chosen[one].requires & chosen[other].breaks
        sentences += [f"{one} requires {fact.name}, which {other} breaks" for fact in Fact if fact in broken and fact]
    return sentences


def refuse_conflicts(chosen: Mapping[str, Needs]) -> None:
    """Raises SettingError naming every conflict among the chosen techniques."""
    found = conflicts(chosen)
    if found:
        raise SettingError("These settings do not go together: " + "; ".join(found) + ".", "Turn one of each pair off.")


def matrix(all_needs: Mapping[str, Needs]) -> dict[tuple[str, str], list[str]]:
    """The whole compatibility matrix, for the documentation: (name, name) -> conflicts."""
    names = sorted(all_needs)
    pairs = ((a, b) for i, a in enumerate(names) for b in names[i + 1 :])
    return {(a, b): conflicts({a: all_needs[a], b: all_needs[b]}) for a, b in pairs}
