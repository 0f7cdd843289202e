"""Which instruction set is chosen, and what is said of those that are not."""

import pytest

from pelton.backends.cpu import _native
from pelton.backends.cpu.machine import choose_isa
from pelton.core.errors import SettingError

EVERY = {"amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2", "neon", "portable"}
ABSENT = ("amx", "this CPU has no amx-tile", False)
BROKEN = ("amx", "the self-test failed: products differ from the portable kernels'", True)


def machine(monkeypatch: pytest.MonkeyPatch, *refused: tuple[str, str, bool], forced: str = "") -> None:
    monkeypatch.setattr(_native, "instruction_sets", lambda: ["avx512", "avx2", "portable"])
    monkeypatch.setattr(_native, "refused_instruction_sets", lambda: list(refused))
    monkeypatch.setenv("PELTON_ISA", forced)


def test_every_set_of_this_machine_runs_or_says_why_not() -> None:
    runs, refused = _native.instruction_sets(), _native.refused_instruction_sets()
    assert runs[-1] == "portable"
    assert not set(runs) & {name for name, _, _ in refused}
    assert {*runs, *(name for name, _, _ in refused)} <= EVERY
    assert all(reason for _, reason, _ in refused)


def test_the_best_that_runs_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ABSENT)
    assert choose_isa() == ("avx512", ())


def test_what_the_cpu_has_and_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, BROKEN)
    assert choose_isa() == ("avx512", (f"amx is not used: {BROKEN[1]}",))
    machine(monkeypatch, BROKEN, forced="avx2")
    chosen, notes = choose_isa()
    assert chosen == "avx2"
    assert notes == ("PELTON_ISA forces avx2; the best available is avx512", f"amx is not used: {BROKEN[1]}")


@pytest.mark.parametrize("refused", [ABSENT, BROKEN])
def test_forcing_a_set_that_cannot_run_says_why(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[str, str, bool]
) -> None:
    machine(monkeypatch, refused, forced="amx")
    with pytest.raises(SettingError) as error:
        choose_isa()
    assert f"PELTON_ISA='amx' cannot run here: {refused[1]}." in str(error.value)
    assert "avx512, avx2, portable" in str(error.value)


def test_an_unknown_name_is_no_set(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, forced="abacus")
    with pytest.raises(SettingError, match="'abacus' is no instruction set of this kind of processor"):
        choose_isa()


def test_the_executable_refuses_a_set_that_cannot_run() -> None:
    for name, reason, _ in _native.refused_instruction_sets():
        with pytest.raises(ValueError, match=f"{name} cannot run here") as error:
            _native.Executable(name, [0], 1, 1, 16, False)
        assert reason in str(error.value)
    with pytest.raises(ValueError, match="unknown instruction set abacus"):
        _native.Executable("abacus", [0], 1, 1, 16, False)
