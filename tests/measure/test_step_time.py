"""Where a step's time goes, from made-up times: what holds up a step here and there is not called the backend's own."""

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.mini import compiled, mini_module, with_windows
from tests.backends.probed import canned

from pelton.backends.backend import StepInputs, StepOutputs
from pelton.backends.cpu.probe.figures import FLOAT, INT8
from pelton.cli.measured_step import Described, Limits, Measured, sum_lines
from pelton.core.clock import SystemClock
from pelton.kv.pool import NULL_BLOCK
from pelton.measure.step_time import WARMUPS, Pools, Shape, StepTime, measure_step, step_inputs, step_time
from pelton.program.module import Module
from pelton.program.op import Cost

OPS, STEPS, AROUND = 8, 16, 0.0001


def timed(held_up: float) -> StepTime:
    """Each op takes 1 ms, a quarter of it waiting; in each step another one is held up for so many seconds."""
    ops = np.tile([0.001, 0.00025], (STEPS, OPS, 1))
    for step in range(STEPS):
        ops[step, step % OPS] += (held_up, held_up / 2)
    return step_time(ops[..., 0].sum(1) + AROUND, ops, python=0.0002)


@pytest.mark.parametrize("held_up", [0.0, 0.004])
def test_what_holds_up_single_ops_is_theirs(held_up: float) -> None:
    time = timed(held_up)
    assert time.around == pytest.approx(AROUND), "and not what the medians of the ops leave"
    assert time.waiting == pytest.approx(OPS * 0.00025 + held_up / 2)
    assert time.kernels == pytest.approx(OPS * 0.00075 + held_up / 2)
    assert time.step == pytest.approx(time.parts) and time.repeats == STEPS
    assert time.ops == pytest.approx([0.001] * OPS) and time.waits == pytest.approx([0.00025] * OPS)


def lines(time: StepTime, limits: Limits | None = None) -> dict[str, str]:
    """The lines below the table, by their names; the step has no bytes."""
    columns = [("linear", "", "")] * (OPS - 1) + [("head", "", "")]
    described = Described(Module({}, {}, {}, {}, vocab=8, context=8), (), columns, {})
    measured = Measured(described, Shape(1, 0), time, {}, limits)
    return dict(line.split(maxsplit=1) for line in sum_lines(measured))


def test_shares_are_of_the_same_steps() -> None:
    shown = lines(timed(0.004))
    shares = [float(shown[name].split()[2].rstrip("%")) for name in ("kernels", "waiting", "around")]
    assert sum(shares) == pytest.approx(100, abs=0.2) and shares[2] < 1


def test_a_limit_of_a_busy_probe_is_marked() -> None:
    for load, end in ((0.0, "of it reached"), (99.0, "of it reached (probed on a busy machine)")):
        probe = replace(canned(), load_before=load)
        assert lines(timed(0.0), Limits(1e9, 1e9, FLOAT, probe))["limit"].endswith(end)


@pytest.mark.parametrize(("read", "flops", "bound"), [(8, 2, "moving its bytes"), (2, 8, "computing its products")])
def test_the_limit_is_named(read: int, flops: int, bound: str) -> None:
    limits = Limits(1.0, 1.0, INT8, canned())
    bounds = limits.bounds(Cost(flops=flops, read=read))
    assert max(bounds, key=bounds.__getitem__) == bound and limits.seconds(Cost(flops=flops, read=read)) == 8
    assert "GFLOP/s with rows of 8 bits)" in lines(timed(0.0), limits)["limit"]


def test_a_busy_machine_is_told() -> None:
    quiet = timed(0.0)
    assert not quiet.busy and "busy" not in lines(quiet)
    taken = np.array([0.008, 0.009, 0.010, 0.012, 0.013])
    busy = step_time(taken, np.tile([0.001, 0.0], (5, OPS, 1)), python=0.0)
    assert busy.quartiles == pytest.approx((0.009, 0.012)) and busy.busy
    assert lines(busy)["busy"].startswith("the machine was busy: half of the steps took 9.000 to 12.000 ms")


def test_a_step_reads_blocks_of_its_own_that_hold_numbers() -> None:
    """Memory that was never written is not there, and one block for all would come from the cache."""
    module = with_windows(mini_module(layers=2), 64)
    executable = compiled(module, blocks=60)
    pools = Pools((60, 60), (None, 64))
    inputs = step_inputs(pools, Shape(1, 200, 3), 500)
    full, windowed = inputs.tables
    assert len(set(full.tolist())) == len(full) == 3 * 7 and NULL_BLOCK not in full
    assert [entry == NULL_BLOCK for entry in windowed.tolist()] == [True] * 4 + [False] * 3 + (
        [True] * 4 + [False] * 3
    ) * 2
    measure_step(executable, pools, Shape(1, 200, 3), 500, 2, SystemClock())
    for group, table in enumerate(inputs.tables):
        for block in {*table.tolist()} - {NULL_BLOCK}:
            held = executable.blocks().export_canonical(group, block, 32)
            assert np.abs(held).mean() > 0.1, (group, block)


def test_first_steps_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the backend nor of the engine, which has to admit the requests then."""
    executable, ran = compiled(mini_module(layers=1)), []

    class Cold:
        def __getattr__(self, name: str) -> object:
            return getattr(executable, name)

        def run(self, inputs: StepInputs) -> StepOutputs:
            ran.append(1)
            seconds = 100.0 if len(ran) <= WARMUPS else 1.0
            return replace(executable.run(inputs), seconds=seconds)

    time = measure_step(Cold(), Pools((100,), (None,)), Shape(1, 40), 500, 2, SystemClock())  # type: ignore[arg-type]
    assert len(ran) == WARMUPS + 2 and time.step == 1.0 and time.repeats == 2 and time.quartiles == (1.0, 1.0)
