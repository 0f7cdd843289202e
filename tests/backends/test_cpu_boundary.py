"""The border between Python and native code: what would read outside of its memory, or cannot run, is refused."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.mini import Piece, compiled, mini_module, random_tokens, run
from tests.oracle.driver import sampling

from pelton.backends.backend import COPY, EDIT, LOAD, SAMPLING, SAVE, SCRUB, CompileOptions
from pelton.backends.cpu import _native, machine
from pelton.backends.cpu.backend import CpuBackend
from pelton.backends.cpu.emit import MAX_HEAD_DIM, refusal
from pelton.core.errors import BackendError, CapacityError, SettingError
from pelton.program.module import Entry
from pelton.program.op import Op
from pelton.program.states import KVSpec, State


def native() -> _native.Executable:
    return _native.Executable("portable", [-1], 8, 4, 32, False)


@pytest.mark.parametrize(
    ("size", "rows", "cols", "order", "what"),
    [
        (32 * 32 * 4 - 1, 32, 32, None, "raw bytes"),
        (32 * 32 * 4 + 4, 32, 32, None, "raw bytes"),
        (0, 0, 32, None, "rows or cols"),
        (32 * 32 * 4, 32, 32, [0] * 31, "row_order"),
        (32 * 32 * 4, 32, 32, [0] * 31 + [32], "row_order"),
        (32 * 32 * 4, 32, 32, [0] * 31 + [-1], "row_order"),
    ],
)
def test_a_matrix_must_fit_its_bytes(size: int, rows: int, cols: int, order: list[int] | None, what: str) -> None:
    given = None if order is None else np.array(order, np.int32)
    with pytest.raises(ValueError, match=what):
        native().add_matrix("f32", "F32", np.zeros(size, np.uint8), rows, cols, given)


def test_a_conversion_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="unknown file format"):
        native().add_matrix("f32", "Q9_9", np.zeros(4096, np.uint8), 32, 32, None)
    with pytest.raises(ValueError):
        native().add_matrix("q8", "F32", np.zeros(4096, np.uint8), 32, 32, None)


def arrays(**changes: Any) -> dict[str, Any]:
    """Arguments of a native run of one token, with some of them replaced; `edits` are tuples."""
    given: dict[str, Any] = {
        "tokens": [5],
        "positions": [0],
        "starts": [0],
        "counts": [1],
        "tables": [1],
        "offsets": [0, 1],
        "logit_rows": [0],
    }
    given = {name: np.array(changes.get(name, value), np.int32) for name, value in given.items()}
    rows = len(given["logit_rows"])
    top = changes.get("top", 0)
    records = sampling(rows, logprobs=changes.get("logprobs", -1), target=changes.get("target", -1))
    return {
        **given,
        "sampling": records.view(np.uint8),
        "out_ints": np.zeros((3, rows), np.int32),
        "out_logprobs": np.zeros(rows, np.float32),
        "top_ids": np.zeros((rows, top), np.int32),
        "top_logprobs": np.zeros((rows, top), np.float32),
        "logits": None,
        **{name: changes[name] for name in ("logits", "trace") if name in changes},
        **{name: np.array(changes[name], np.int32) for name in ("edit_offsets", "block_ops") if name in changes},
        **{name: np.array(changes[name], EDIT).view(np.uint8) for name in ("edits",) if name in changes},
    }


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokens": [5] * 9, "positions": range(9), "counts": [9]}, "larger than compiled"),
        ({"logit_rows": [0] * 5}, "larger than compiled"),
        ({"logit_rows": [1]}, "logit row outside"),
        ({"positions": [0, 1]}, "positions"),
        ({"counts": [2]}, "do not add up"),
        ({"counts": [0]}, "must be positive"),
        ({"starts": [-1]}, "must be positive"),
        ({"offsets": [0, 2]}, "table_offsets"),
        ({"offsets": [0, -1]}, "table_offsets"),
        ({"offsets": [1, 1]}, "table_offsets"),
        ({"tables": [1, 1]}, "table_offsets"),
        ({"tables": [4]}, "outside of the pool"),
        ({"tables": [-1]}, "outside of the pool"),
        ({"logprobs": 3, "top": 2}, "narrower than logprobs"),
        ({"logits": np.zeros((1, 499), np.float32)}, "logits"),
        ({"trace": np.zeros((1, 1), np.uint64)}, "trace"),
        ({"target": 500}, "target outside"),
        ({"tables": [1] * 5, "offsets": [0, 5]}, "more blocks than the pool"),
        ({"edits": [(0, 0, 0, 0)]}, "edits"),
        ({"edits": [(0, 0, 0, 0)], "edit_offsets": [0]}, "edits"),
        ({"edits": [(0, 0, 0, 0)], "edit_offsets": [0, 2]}, "edit_offsets"),
        ({"edits": [(0, 0, 0, 0)], "edit_offsets": [1, 1]}, "edit_offsets"),
        ({"edits": [(0, 0, 0, 0)], "logit_rows": [0, 0], "edit_offsets": [0, 2, 1]}, "edit_offsets"),
        ({"edits": [(500, 0, 0, 0)], "edit_offsets": [0, 1]}, "edit of a token"),
        ({"edits": [(-1, 0, 0, 0)], "edit_offsets": [0, 1]}, "edit of a token"),
        ({"edits": [(0, np.nan, 0, 0)], "edit_offsets": [0, 1]}, "bias"),
        ({"edits": [(0, np.inf, 0, 0)], "edit_offsets": [0, 1]}, "bias"),
        ({"block_ops": [0, 1, 1]}, "block_ops"),
        ({"block_ops": [4, 0, 1, 1]}, "unknown kind"),
        ({"block_ops": [-1, 0, 1, 1]}, "unknown kind"),
        ({"block_ops": [SAVE, 0, 1, 0]}, "outside of the pool"),
        ({"block_ops": [LOAD, 0, 0, 1]}, "outside of the pool"),
        ({"block_ops": [COPY, 0, 0, 1]}, "outside of the pool"),
        ({"block_ops": [COPY, 0, 1, 0]}, "outside of the pool"),
        ({"block_ops": [COPY, 0, 4, 1]}, "outside of the pool"),
        ({"block_ops": [COPY, 0, 1, 4]}, "outside of the pool"),
        ({"block_ops": [SCRUB, 0, 1, 1, SCRUB, 0, 0, 0]}, "outside of the pool"),
        ({"block_ops": [SCRUB, 0, -1, -1]}, "outside of the pool"),
        ({"block_ops": [SCRUB, 1, 1, 1]}, "unknown KV group"),
        ({"block_ops": [SCRUB, -1, 1, 1]}, "unknown KV group"),
    ],
)
def test_a_step_that_does_not_fit_its_arrays(changes: dict[str, Any], what: str) -> None:
    executable = compiled(mini_module("Q4_1"), tokens=8, rows=4, blocks=4)
    executable._native.run(**arrays())  # type: ignore[attr-defined]
    ones = {
        "edits": [(499, -np.inf, 0, 0)],
        "edit_offsets": [0, 1],
        "block_ops": [[COPY, 0, 3, 1], [SCRUB, 0, 2, 2]],
        "target": 499,
    }
    executable._native.run(**arrays(**ones))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=what):
        executable._native.run(**arrays(**changes))  # type: ignore[attr-defined]


def test_records_are_as_large_on_both_sides() -> None:
    assert (_native.SAMPLING_BYTES, _native.EDIT_BYTES) == (SAMPLING.itemsize, EDIT.itemsize) == (56, 16)


def test_nothing_runs_before_blocks_are_allocated() -> None:
    executable = CpuBackend().compile(mini_module("Q4_1"), CompileOptions(8, 4, threads=1))
    with pytest.raises(ValueError, match="no KV blocks"):
        executable._native.run(**arrays())


@pytest.mark.parametrize(
    "geometry", [(0, 1, 2, 2, 0), (1, 0, 2, 2, 0), (1, 1, 0, 2, 0), (1, 1, 2, 0, 0), (1, 1, 2, 2, -1)]
)
def test_a_kv_group_has_a_geometry(geometry: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="geometry"):
        native().add_state(*geometry)


def test_heads_beyond_the_kernel_are_refused() -> None:
    attend = Op("attend", ("q",), ("o",), state="kv0", attrs={"heads": 1})
    wide = {"kv0": State("kv0", KVSpec(1, MAX_HEAD_DIM + 2, 64), 1)}
    odd = {"kv0": State("kv0", KVSpec(1, 63, 64), 1)}
    good = {"kv0": State("kv0", KVSpec(1, MAX_HEAD_DIM, 64), 1)}
    assert "at most 512" in (refusal(attend, wide) or "")
    assert "only even" in (refusal(attend, odd) or "")
    assert refusal(attend, good) is None


def test_every_refusal_is_told() -> None:
    module = mini_module("Q4_1")
    entry = module.entries["target"]
    ops = (*entry.ops[:-1], Op("scan", (), ()), Op("sort", (), ()), entry.ops[-1])
    strange = module.with_entry(Entry("target", ops, entry.values, entry.inputs))
    with pytest.raises(BackendError) as caught:
        CpuBackend().compile(strange, CompileOptions(8, 4))
    assert "'scan'" in str(caught.value) and "'sort'" in str(caught.value)


def test_threads_that_cannot_start_are_an_error_and_no_abort() -> None:
    """A limit on address space makes thread stacks fail; the process must survive and say so."""
    code = (
        "import resource\n"
        "from pelton.backends.cpu import _native\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try:\n"
        "    _native.Executable('portable', [-1] * 900, 8, 4, 32, False)\n"
        "except RuntimeError as error:\n"
        "    print('told:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("told:")


def test_more_blocks_than_there_can_be() -> None:
    executable = CpuBackend().compile(mini_module("Q4_1"), CompileOptions(8, 4, threads=1))
    for blocks in (2**26, 2**40):
        with pytest.raises(CapacityError, match="more than the"):
            executable.allocate((blocks,))
    executable.allocate((4,))
    executable._native.run(**arrays())


def test_two_threads_cannot_step_at_once() -> None:
    executable = compiled(mini_module("Q4_1"), tokens=600, rows=4, threads=1, blocks=40)
    piece = [Piece(random_tokens(600), 0, range(1, 20))]
    told: list[str] = []

    def steps() -> None:
        for _ in range(10):
            try:
                run(executable, piece)
            except RuntimeError as error:
                told.append(str(error))

    workers = [threading.Thread(target=steps) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert told and all("another thread" in text for text in told)
    run(executable, piece)


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_cores", lambda: [4, 5, 6, 7])
    monkeypatch.setattr(machine, "cpu_quota", lambda *_: None)
    assert machine.worker_cores(0) == [4, 5, 6, 7]
    assert machine.worker_cores(2) == [-1, -1]
    assert machine.machine(5).notes
    monkeypatch.setattr(machine, "cpu_quota", lambda *_: 1.5)
    assert machine.worker_cores(0) == [-1, -1]  # not pinned: other containers have the same first cores
    monkeypatch.setenv("PELTON_THREADS", "3")
    assert len(machine.worker_cores(0)) == 3
    assert len(machine.worker_cores(1)) == 1
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("PELTON_THREADS", wrong)
        with pytest.raises(SettingError, match="PELTON_THREADS"):
            machine.worker_cores(0)
    with pytest.raises(SettingError, match="more than the"):
        machine.worker_cores(100_000)


def test_free_memory_of_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Page cache counts as free; "max" and a missing file mean no limit."""
    monkeypatch.setattr(machine, "_GROUPS", (tmp_path / "none", tmp_path))
    monkeypatch.setattr(machine, "_meminfo_available", lambda: 10_000)
    assert machine.free_memory() == 10_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_memory() == 10_000
    (tmp_path / "memory.max").write_text("9000\n")
    (tmp_path / "memory.current").write_text("5000\n")
    assert machine.free_memory() == 4000
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    assert machine.free_memory() == 5500
    (tmp_path / "memory.current").write_text("99999\n")
    assert machine.free_memory() == 0


def test_heads_are_refused_by_their_values_too() -> None:
    attend = Op("attend", ("q",), ("o",), state="kv0", attrs={"heads": 1})
    for value, said in ((MAX_HEAD_DIM + 2, "at most 512"), (63, "only even")):
        assert said in (refusal(attend, {"kv0": State("kv0", KVSpec(1, 64, value), 1)}) or ""), value
