"""PassedOn hands on all that an Executable has, and nothing else."""

from unittest.mock import Mock

import pytest

from pelton.backends.backend import Executable
from pelton.backends.passed_on import PassedOn

NAMES = [name for name in vars(Executable) if not name.startswith("_")]


def test_it_has_what_an_executable_has() -> None:
    assert {"run", "blocks", "block_bytes", "memory"} <= set(NAMES) <= set(vars(PassedOn))


@pytest.mark.parametrize("name", NAMES)
def test_every_call_reaches_the_inner_one(name: str) -> None:
    inner = Mock(spec=Executable)
    outer = PassedOn(inner)
    if isinstance(vars(Executable)[name], property):
        assert getattr(outer, name) is getattr(inner, name)
        return
    given = {"allocate": ((3, 4),), "run": ("inputs",)}.get(name, ())
    result = getattr(outer, name)(*given)
    getattr(inner, name).assert_called_once_with(*given)
    assert result is (None if name in ("allocate", "close") else getattr(inner, name).return_value)
