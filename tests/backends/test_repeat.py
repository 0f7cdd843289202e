"""Several steps in one call: to the bit those of as many calls; stops, faults and messages end them early."""

import os
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.mini import VOCAB, Piece, inputs, mini_module, random_tokens, with_windows
from tests.oracle.driver import sampling
from tests.program.sources import dense

from pelton.backends import BACKENDS
from pelton.backends.backend import EDIT, FAULT_BAD_LOGITS, CompileOptions, Executable, StepInputs, StepOutputs
from pelton.backends.repeat import in_turn
from pelton.program.module import Module

STEPS = 6
LENGTHS = (30, 3, 64, 40)
FIELDS = ("tokens", "logprobs", "ranks", "faults", "top_ids", "top_logprobs")


def made(backend: str, module: Module | None = None, threads: int = 2) -> Executable:
    chosen = module or mini_module(fused=backend == "cpu")
    executable = BACKENDS.get(backend)().compile(chosen, CompileOptions(256, 64, threads=threads))
    executable.allocate((40,) * len(chosen.states))
    return executable


def table(place: int, groups: int = 1) -> list[list[int]]:
    return [[4 * place + 1 + entry for entry in range(4)]] * groups


def decoding(executable: Executable, repeat: int = 1, **fields: object) -> StepInputs:
    """The step behind prompts that were computed: one token of each sequence, and room for many."""
    groups = len(executable.block_bytes)
    prompts = [Piece(random_tokens(n, seed=n), 0, table(i, groups)) for i, n in enumerate(LENGTHS)]
    executable.run(replace(inputs(prompts), want_logits=False))
    pieces = [Piece([7 + i], n, table(i, groups)) for i, n in enumerate(LENGTHS)]
    records = sampling(len(LENGTHS), temperature=0.9, logprobs=2)
    records["seed"], records["place"], records["logprobs"] = np.arange(4), 5, (2, 0, -1, 1)
    records["temperature"][1] = 0
    none = np.zeros(0, np.int32)
    offsets = np.zeros(len(LENGTHS) + 1, np.int32)
    step = replace(inputs(pieces), want_logits=False, sampling=records, repeat=repeat, stops=none, stop_offsets=offsets)
    return replace(step, **fields)  # type: ignore[arg-type]


def one_by_one(executable: Executable, step: StepInputs, count: int) -> list[StepOutputs]:
    done: list[StepOutputs] = []
    records = step.sampling.copy()
    for place in range(count):
        moved = {"positions": step.positions + np.int32(place), "starts": step.starts + np.int32(place)}
        tokens = done[-1].tokens if done else step.tokens
        done.append(executable.run(replace(step, tokens=tokens, sampling=records.copy(), repeat=1, **moved)))
        records["place"] += 1
    return done


def same(found: StepOutputs, wanted: list[StepOutputs]) -> None:
    assert found.steps == len(wanted)
    for name in FIELDS:
        parts = [one.__getattribute__(name) for one in wanted]
        assert found.__getattribute__(name).tobytes() == np.concatenate(parts).tobytes(), name


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("windows", [(), (33,), (5, 64)])
def test_as_many_calls_of_one_step(backend: str, windows: tuple[int, ...]) -> None:
    """Over a block's border, with windows, with edits that stay, and with and without log-probabilities."""
    module = mini_module(fused=backend == "cpu")
    executable = made(backend, with_windows(module, *windows) if windows else module)
    edits = np.zeros(2, EDIT)
    edits["token"], edits["bias"] = (3, 9), (-np.inf, 4.0)
    offsets = np.array([0, 1, 1, 2, 2], np.int32)
    step = decoding(executable, STEPS, edits=edits, edit_offsets=offsets)
    wanted = one_by_one(executable, step, STEPS)
    assert len({int(token) for one in wanted for token in one.tokens}) > STEPS
    same(executable.run(step), wanted)
    traced = executable.run(replace(step, trace=True, want_logits=True))
    assert traced.trace is not None and traced.trace.shape[1] == STEPS * len(LENGTHS) == len(traced.logits)  # type: ignore[arg-type]
    same(traced, wanted)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_stop_of_any_row_ends_the_series(backend: str) -> None:
    """Only where its own row draws it."""
    executable = made(backend)
    step = decoding(executable, STEPS)
    wanted = one_by_one(executable, step, STEPS)
    for row in range(len(LENGTHS)):
        for at in range(STEPS):
            stop = int(wanted[at].tokens[row])
            first = next(i for i, one in enumerate(wanted) if one.tokens[row] == stop)
            ends = np.array([0] * (row + 1) + [2] * (len(LENGTHS) - row), np.int32)
            found = executable.run(replace(step, stops=np.array([VOCAB, stop], np.int32), stop_offsets=ends))
            same(found, wanted[: first + 1])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_whoever_wants_to_be_heard_waits_for_one_step(backend: str) -> None:
    executable = made(backend)
    step = decoding(executable, STEPS)
    reader, writer = os.pipe()
    try:
        assert executable.run(replace(step, wake=reader)).steps == STEPS
        os.write(writer, b"x")
        same(executable.run(replace(step, wake=reader)), one_by_one(executable, step, 1))
    finally:
        os.close(reader), os.close(writer)


def spoilt(module: Module, token: int) -> Module:
    """The module with an embedding of its own, in which this token's is NaN."""
    (embed,) = [op for op in module.entries["target"].ops if op.kind == "embed"]
    (name,) = embed.weights
    storage = module.storages[module.weights[name].storage]
    values = np.frombuffer(storage.source.read(), np.float32).reshape(storage.rows, storage.cols).copy()
    values[token] = np.nan
    own = replace(storage, name="spoilt", source=dense("spoilt", values))
    weights = {**module.weights, name: replace(module.weights[name], storage="spoilt")}
    return replace(module, storages={**module.storages, "spoilt": own}, weights=weights)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_fault_ends_the_series_before_its_step(backend: str) -> None:
    """What was good is told; the step with the fault is the next call's first, and then it is told."""
    module = mini_module(fused=backend == "cpu", embedding="F32")
    executable = made(backend, module)
    wanted = one_by_one(executable, decoding(executable, STEPS), STEPS)
    read = {7, 8, 9, 10, *wanted[0].tokens.tolist(), *(token for n in LENGTHS for token in random_tokens(n, seed=n))}
    bad = next(token for token in wanted[1].tokens.tolist() if token not in read)
    executable = made(backend, spoilt(module, bad))
    step = decoding(executable, STEPS)
    same(executable.run(step), wanted[:2])
    moved = {"positions": step.positions + np.int32(2), "starts": step.starts + np.int32(2)}
    failed = executable.run(replace(step, tokens=wanted[1].tokens, **moved))
    assert failed.steps == 1 and failed.faults.tolist() == [
        FAULT_BAD_LOGITS * (token == bad) for token in wanted[1].tokens
    ]


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("do not decode", {"logit_rows": np.array([0, 1, 3, 2], np.int32)}),
        ("do not decode", {"sampling": sampling(4, target=3)}),
        ("stops", {"stops": None}),
        ("stop_offsets", {"stop_offsets": np.array([0, 1, 0, 0, 0], np.int32)}),
        ("shorter than its sequence", {"repeat": 128}),
        ("neither logits nor hashes nor times", {"timing": True}),
    ],
)
def test_what_no_series_can_be_made_of_is_refused(what: str, changes: dict[str, object]) -> None:
    executable = made("cpu")
    with pytest.raises(ValueError, match=what):
        executable.run(replace(decoding(executable, STEPS), **changes))  # type: ignore[arg-type]


def test_ops_are_timed() -> None:
    executable = made("cpu")
    step = decoding(executable)
    plain, timed = executable.run(step), executable.run(replace(step, timing=True))
    same(timed, [plain])
    assert plain.timing is None and timed.timing is not None
    assert timed.timing.shape == (len(executable.labels()), 2)
    took, waited = timed.timing.T.astype(np.int64)
    assert (took > 0).all() and (waited <= took).all()
    assert 0 < took.sum() <= timed.seconds * 1e9


def test_workers_tell_how_long_they_waited() -> None:
    executable = made("cpu")
    step = decoding(executable)
    before = executable.counters()
    seconds = executable.run(step).seconds
    after = executable.counters()
    ran, waited = (after[name] - before[name] for name in ("worker_ns", "wait_ns"))
    assert 0 <= waited < ran <= 2 * seconds * 1e9


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_block_operations_come_before_the_first_step_alone(backend: str) -> None:
    """A block that the series writes to is scrubbed once."""
    executable = made(backend)
    step = decoding(executable, STEPS)
    wanted = one_by_one(executable, step, STEPS)
    scrub = np.array([[1, 0, 0, table(2)[0][2]]], np.int32)  # where the third sequence writes from index 64 on
    step = decoding(executable, STEPS, block_ops=scrub)
    same(executable.run(step), wanted)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_any_row_may_ask_for_the_most_logprobs(backend: str) -> None:
    executable = made(backend)
    step = decoding(executable, STEPS)
    step.sampling["logprobs"] = (-1, 0, 1, 3)
    found = executable.run(step)
    assert found.top_ids.shape == (STEPS * len(LENGTHS), 3)
    assert (found.top_ids.reshape(STEPS, len(LENGTHS), 3)[:, 3] >= 0).all()
    same(found, one_by_one(executable, step, STEPS))


def test_the_seconds_of_a_series_are_those_of_all_its_steps() -> None:
    executable = made("reference")
    step = decoding(executable, 3)
    told: list[float] = []

    def run(inputs: StepInputs) -> StepOutputs:
        told.append(float(2 ** len(told)))
        return replace(executable.run(inputs), seconds=told[-1])

    assert in_turn(run, step).seconds == sum(told) == 7


def test_what_is_handed_over_stays_as_it_is() -> None:
    executable = made("reference")
    step = decoding(executable, 3)
    before = step.sampling.copy()
    executable.run(step)
    assert step.sampling.tobytes() == before.tobytes()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_a_fault_of_any_row_ends_the_series(backend: str, row: int) -> None:
    """Whichever row it is, what its step drew is not told as good."""
    module = mini_module(fused=backend == "cpu", embedding="F32")
    executable = made(backend, module)
    wanted = one_by_one(executable, decoding(executable, STEPS), STEPS)
    drawn = [one.tokens.tolist() for one in wanted]
    known = {7, 8, 9, 10, *(token for n in LENGTHS for token in random_tokens(n, seed=n))}
    step, bad = next(
        (i, drawn[i][row])
        for i in range(STEPS - 1)
        if drawn[i][row] not in known
        and not any(drawn[i][row] in one for one in drawn[:i])
        and drawn[i].count(drawn[i][row]) == 1
    )
    found = made(backend, spoilt(module, bad))
    same(found.run(decoding(found, STEPS)), wanted[: step + 1])
