"""Times of steps: the sum of the cost rules' limits times how far steps stay behind; and that from measured ones."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.mini import mini_module, with_windows
from tests.backends.probed import canned

from pelton.core.config import resolve
from pelton.measure.simulate.calibrate import Steps, Timed, shapes_for, slack_of
from pelton.measure.simulate.kept import Calibrated, key_of, load, save, steps_file
from pelton.measure.simulate.step_seconds import Rates, Slack, StepSeconds, at, groups_of
from pelton.measure.step_time import Shape, StepTime
from pelton.program.costs import op_costs
from pelton.program.module import Module
from pelton.program.values import StepShape

NONE = Slack(((1, 1.0),), ((1, 1.0),), ((1, 1.0),), ((1, 1.0),), 0.0, 0.0, 0.0, 0.0)
RATES = Rates(1e9, 1e10, 5e8, "given")
CURVES = Slack(
    products=((1, 1.1), (8, 2.0), (64, 1.5)),
    attention=((1, 1.3), (64, 2.5)),
    head=((1, 1.2), (8, 1.6)),
    rest=((1, 3.0), (64, 2.0)),
    attend_s=1e-6,
    around_s=2e-5,
    call_s=5e-5,
    row_s=4e-6,
)


@pytest.fixture(scope="module")
def module() -> Module:
    return with_windows(mini_module(layers=4), 64)


def limits(module: Module, contexts: tuple[tuple[int, int], ...], rows: int, *, exact: bool = False) -> float:
    """By the cost rules themselves, op by op; of attention sequence by sequence."""
    total = 0.0
    for item in op_costs(module, StepShape(contexts, rows), exact=exact):
        if item.op.kind != "attend":
            total += RATES.seconds(item.cost)
    for context in contexts:
        for item in op_costs(module, StepShape((context,), 0), exact=exact):
            if item.op.kind == "attend":
                total += RATES.seconds(item.cost)
    return total


@pytest.mark.parametrize(
    ("contexts", "rows"),
    [(((0, 40),), 1), (((0, 40), (16, 1)), 2), (((500, 1), (16, 1), (144, 1)), 3), (((0, 32),), 0), (((96, 64),), 1)],
)
def test_without_slack_a_step_takes_its_limits(
    module: Module, contexts: tuple[tuple[int, int], ...], rows: int
) -> None:
    for exact in (False, True):
        times = StepSeconds(module, RATES, NONE, exact=exact)
        assert times.step(contexts, rows) == pytest.approx(limits(module, contexts, rows, exact=exact), rel=0.02)


def test_equal_ops_are_one_group(module: Module) -> None:
    groups = groups_of(module, exact=False)
    ops = module.entries["target"].ops
    assert sorted(place for group in groups for place in group.places) == list(range(len(ops)))
    assert len(groups) < len(ops) / 2
    attends = [group for group in groups if group.kind == "attend"]
    assert sorted(group.times for group in attends) == [2, 2], "one for each window"


def test_more_work_takes_longer(module: Module) -> None:
    times = StepSeconds(module, RATES, CURVES)
    steps = [((0, 1),), ((300, 1),), ((300, 1), (300, 1)), ((300, 16), (300, 1)), ((2000, 16), (300, 1))]
    taken = [times.step(contexts, 1) for contexts in steps]
    assert taken == sorted(taken) and len(set(taken)) == len(taken)
    assert times.step(steps[-1], 2) > taken[-1]
    assert times.around(3) == pytest.approx(5e-5 + 12e-6) and times.copying(5 * 10**8) == 1.0
    whole = times.step(((0, 64),), 0) + times.step(((64, 36),), 1)
    assert times.prompt(100, 64) == pytest.approx(whole)


def test_a_curve_goes_by_the_logarithm() -> None:
    curve = ((2, 1.0), (8, 3.0), (32, 2.0))
    assert [at(curve, rows) for rows in (1, 2, 4, 8, 16, 32, 99)] == pytest.approx([1, 1, 2, 3, 2.5, 2, 2])


def timed(module: Module, shape: Shape, slack: Slack) -> Timed:
    """As long as StepSeconds says, op by op."""
    contexts = ((shape.context, shape.tokens),) * shape.sequences
    tokens = shape.tokens * shape.sequences
    ops = []
    alone = StepShape(((shape.context, shape.tokens),), shape.sequences)
    for item, one in zip(op_costs(module, StepShape(contexts, shape.sequences)), op_costs(module, alone), strict=True):
        limit = RATES.seconds(item.cost)
        match item.op.kind:
            case "attend":
                behind = at(slack.attention, shape.tokens)
                ops.append(behind * shape.sequences * RATES.seconds(one.cost) + slack.attend_s)
            case "linear":
                ops.append(at(slack.products, tokens) * limit)
            case "head":
                ops.append(at(slack.head, shape.sequences) * limit)
            case _:
                ops.append(at(slack.rest, tokens) * limit)
    step = sum(ops) + slack.around_s
    python = slack.call_s + slack.row_s * shape.sequences
    waits = (0.0,) * len(ops)
    return Timed(shape, StepTime(tuple(ops), waits, step, (step, step), sum(ops), 0.0, slack.around_s, python, 7))


def test_measured_steps_are_foretold(module: Module) -> None:
    """From times that follow from a Slack, one is made that foretells these times, and others near."""
    shapes = [Shape(1, 208, 1), Shape(1, 1008, 1), Shape(1, 208, 8), Shape(64, 0), Shape(64, 512)]
    times = [timed(module, shape, CURVES) for shape in shapes]
    beside = tuple((count, CURVES.call_s + CURVES.row_s * count) for count in (1, 32))
    found = slack_of(module, RATES, Steps(tuple(times), beside))
    assert found.around_s == pytest.approx(CURVES.around_s)
    assert (found.call_s, found.row_s) == pytest.approx((CURVES.call_s, CURVES.row_s))
    assert found.attend_s == pytest.approx(CURVES.attend_s, rel=0.05)
    seconds = StepSeconds(module, RATES, found)
    for shape in [*shapes, Shape(1, 400, 4), Shape(32, 256)]:
        contexts = ((shape.context, shape.tokens),) * shape.sequences
        near = 0.02 if shape in shapes else 0.15
        wanted = timed(module, shape, CURVES).time.step
        assert seconds.step(contexts, shape.sequences) == pytest.approx(wanted, rel=near), shape


def test_one_measured_step_is_enough(module: Module) -> None:
    found = slack_of(module, RATES, Steps((timed(module, Shape(1, 208, 1), CURVES),), ((1, 3e-4), (1, 3e-4))))
    assert (found.attend_s, found.call_s, found.row_s) == (0.0, 3e-4, 0.0)
    taken = StepSeconds(module, RATES, found).step(((208, 1),), 1)
    assert taken == pytest.approx(timed(module, Shape(1, 208, 1), CURVES).time.step, rel=0.02)


def test_shapes_that_settings_allow() -> None:
    config = resolve("m", {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 600})
    large = resolve("m", {"max_num_batched_tokens": 4096})
    assert max(shape.tokens for shape in shapes_for(large, 8192)) == 2048
    shapes = shapes_for(config, 8192)
    assert all(shape.tokens * shape.sequences <= 512 and shape.sequences <= 4 for shape in shapes)
    assert all(shape.tokens + shape.context <= 600 for shape in shapes)
    assert {shape.tokens for shape in shapes} >= {1, 64}


def test_rates_of_a_probe(module: Module) -> None:
    rates = Rates.probed(canned(), module)
    assert (rates.read, rates.products, rates.copy) == pytest.approx((100e9, 640e9, 10e9))
    assert rates.origin == "probe of 2026-01-31 12:00 UTC"
    assert Rates.probed(replace(canned(), load_before=99.0), module).origin.endswith("busy machine)")


def test_what_was_measured_is_kept(module: Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    identity = canned().identity
    key = key_of(module, identity, exact=False)
    kept = Calibrated(RATES, CURVES, "2026-01-31 12:00 UTC")
    assert load(key) is None
    assert save(key, kept) == steps_file(key) and load(key) == kept
    others = {key_of(module, identity, exact=True), key_of(module, replace(identity, kernels="x"), exact=False)}
    others.add(key_of(mini_module(layers=2), identity, exact=False))
    assert len({key, *others}) == 4 and all(load(other) is None for other in others)
    text = steps_file(key).read_text()
    for damage in (
        text[:-20],
        re.sub(r'"call_s":[^,}]+', '"call_s":-1.0', text),
        re.sub(r'"read":[^,}]+', '"read":0.0', text),
        text.replace("[[1,1.1]", "[[9,1.1]"),
        text.replace(key, "another"),
        "",
    ):
        assert damage != text
        steps_file(key).write_text(damage)
        assert load(key) is None, damage


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file where the folder should be")
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    assert save("key", Calibrated(RATES, CURVES, "")) is None
