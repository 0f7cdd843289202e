"""A technique's name with options, as settings write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.errors import SettingError
from pelton.core.registry import Choice, parse_choice

WORDS = st.from_regex(r"[a-z0-9_.-]{1,8}", fullmatch=True)


@given(WORDS, st.dictionaries(WORDS, WORDS, max_size=4))
def test_what_is_written_reads_back(name: str, options: dict[str, str]) -> None:
    choice = Choice("speed", name, options)
    assert parse_choice("speed", str(choice)) == choice


def test_parts() -> None:
    choice = parse_choice("speed", "fast:turns=64,loud=true")
    assert (choice.name, choice.options) == ("fast", {"turns": "64", "loud": "true"})
    assert choice.one_of("turns", (32, 64), 32) == 64
    assert choice.one_of("size", (1, 2), 2) == 2
    assert choice.switch("loud", False) is True
    assert choice.switch("quiet", False) is False
    choice.expect(("turns", "loud", "more"))


@pytest.mark.parametrize(
    "text", ["", ":", "a:", "a:b", "a:b=", "a:=c", "a:b=c,", "a:b=c,b=d", "a b", "a:b=c:d", "a,b=c"]
)
def test_what_is_not_written_so(text: str) -> None:
    with pytest.raises(SettingError, match="speed=.* cannot work. It must be a name"):
        parse_choice("speed", text)


def test_options_that_cannot_be() -> None:
    choice = parse_choice("speed", "fast:turns=7,loud=maybe")
    with pytest.raises(
        SettingError, match=r"speed='fast:turns=7,loud=maybe' cannot work: turns cannot be '7'. .* 32, 64"
    ):
        choice.one_of("turns", (32, 64), 32)
    with pytest.raises(SettingError, match="loud cannot be 'maybe'. It must be true or false"):
        choice.switch("loud", True)
    with pytest.raises(SettingError, match="fast has no option 'loud'. It has turns."):
        choice.expect(("turns",))
    with pytest.raises(SettingError, match="fast has no option 'turns'. It has none."):
        choice.expect(())
