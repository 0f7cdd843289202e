"""Runner and RowStates: what a plan becomes as arrays, and what a row keeps and loses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import BLOCK, POISON, FakeExecutable, draw, fake_encode, make_request

from pelton.backends.backend import COPY, SCRUB, StepInputs, StepOutputs
from pelton.core.plan import Admission, RowPlan, StateOp, StepPlan
from pelton.runner.gather import gather
from pelton.runner.rows import RowStates, ragged
from pelton.runner.runner import Runner


class Recorder(FakeExecutable):
    """Keeps the inputs it was given."""

    def run(self, inputs: StepInputs) -> StepOutputs:
        self.inputs = inputs
        return super().run(inputs)


def make(rows: int = 4) -> tuple[Runner, Recorder]:
    executable = Recorder(50, 100)
    return Runner(executable, RowStates(rows, 64, BLOCK), fake_encode), executable


def test_ragged_counts_within_runs() -> None:
    run, place = ragged(np.array([2, 0, 3]))
    assert run.tolist() == [0, 0, 2, 2, 2] and place.tolist() == [0, 1, 0, 1, 2]


def test_inputs_of_a_mixed_step() -> None:
    runner, executable = make()
    runner.add(make_request("a", [10, 11, 12], 9, seed=5))
    runner.add(make_request("b", [20, 21, 22, 23, 24, 25], 9, seed=6, logprobs=1))
    result = runner.run(StepPlan((RowPlan(2, 0, 3),), (Admission(2, "a"),), new_blocks={2: ((7,),)}))
    first = draw([10, 11, 12], 5, 0)
    assert [(row.row, row.tokens, row.logprobs) for row in result.rows] == [(2, (first,), ())]
    plan = StepPlan((RowPlan(2, 3, 1), RowPlan(0, 0, 5, sample=False)), (Admission(0, "b"),), new_blocks={0: ((9, 4),)})
    result = runner.run(plan)
    inputs = executable.inputs
    assert inputs.tokens.tolist() == [first, 20, 21, 22, 23, 24]
    assert inputs.positions.tolist() == [3, 0, 1, 2, 3, 4]
    assert inputs.starts.tolist() == [3, 0] and inputs.counts.tolist() == [1, 5]
    assert inputs.tables.tolist() == [[7, 9, 4]] and inputs.table_offsets.tolist() == [0, 1, 3]
    assert inputs.logit_rows.tolist() == [0]
    assert (inputs.sampling["seed"].tolist(), inputs.sampling["place"].tolist()) == ([5], [1])
    second = draw([10, 11, 12, first], 5, 1)
    assert [row.tokens for row in result.rows] == [(second,), ()]
    result = runner.run(StepPlan((RowPlan(2, 4, 1), RowPlan(0, 5, 1)), new_blocks={2: ((3,),)}))
    assert executable.inputs.tables.tolist() == [[7, 3, 9, 4]]
    assert executable.inputs.logit_rows.tolist() == [0, 1]
    third, only = draw([10, 11, 12, first, second], 5, 2), draw([20, 21, 22, 23, 24, 25], 6, 0)
    assert [row.tokens for row in result.rows] == [(third,), (only,)]
    assert [len(row.logprobs) for row in result.rows] == [0, 1]
    assert result.rows[1].logprobs[0].top_ids == (only,)


def test_a_preempted_request_takes_its_tokens_to_another_row() -> None:
    runner, executable = make()
    runner.add(make_request("a", [10, 11, 12], 9, seed=5))
    runner.add(make_request("b", [30], 9, seed=1))
    runner.run(StepPlan((RowPlan(0, 0, 3),), (Admission(0, "a"),), new_blocks={0: ((7,),)}))
    first = draw([10, 11, 12], 5, 0)
    plan = StepPlan((RowPlan(0, 0, 1),), (Admission(0, "b"),), released=(0,), new_blocks={0: ((8,),)})
    assert runner.run(plan).rows[0].tokens == (draw([30], 1, 0),)
    executable.allocate((50,))  # nothing of the first time is left
    plan = StepPlan((RowPlan(3, 0, 4),), (Admission(3, "a"),), new_blocks={3: ((1,),)})
    assert runner.run(plan).rows[0].tokens == (draw([10, 11, 12, first], 5, 1),)
    assert executable.inputs.tokens.tolist() == [10, 11, 12, first]
    assert executable.inputs.sampling["place"].tolist() == [1]


def test_a_forgotten_request_leaves_its_row_and_nothing_else() -> None:
    runner, _ = make()
    runner.add(make_request("a", [10], 9))
    runner.run(StepPlan((RowPlan(0, 0, 1),), (Admission(0, "a"),), new_blocks={0: ((7,),)}))
    runner.forget("a")
    runner.forget("unknown")
    runner.add(make_request("a", [11], 9))
    plan = StepPlan((RowPlan(0, 0, 1),), (Admission(0, "a"),), released=(0,), new_blocks={0: ((8,),)})
    assert runner.run(plan).rows[0].tokens == (draw([11], 1, 0),)


def test_a_fault_draws_nothing() -> None:
    runner, _ = make()
    runner.add(make_request("bad", [POISON], 9))
    runner.add(make_request("good", [5], 9))
    plan = StepPlan(
        (RowPlan(0, 0, 1), RowPlan(1, 0, 1)),
        (Admission(0, "bad"), Admission(1, "good")),
        new_blocks={0: ((7,),), 1: ((8,),)},
    )
    bad, good = runner.run(plan).rows
    assert bad.tokens == () and "NaN" in (bad.fault or "")
    assert good.fault is None and good.tokens == (draw([5], 1, 0),)


def test_fewer_top_tokens_than_asked_for_are_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, executable = make()
    runner.add(make_request("a", [10], 9, logprobs=3))
    whole = executable.run

    def padded(inputs: StepInputs) -> StepOutputs:
        outputs = whole(inputs)
        outputs.top_ids[:, 2:] = -1
        return outputs

    monkeypatch.setattr(executable, "run", padded)
    (row,) = runner.run(StepPlan((RowPlan(0, 0, 1),), (Admission(0, "a"),), new_blocks={0: ((7,),)})).rows
    assert len(row.logprobs[0].top_ids) == len(row.logprobs[0].top_logprobs) == 2


def test_rows_grow_by_blocks_and_tokens() -> None:
    states = RowStates(2, 10, BLOCK)
    states.take(1, [4, 5], fake_encode(make_request("a", [4, 5], 1).params, 0, 0))
    states.append_blocks(1, ((3,),))
    states.append_blocks(1, ((9, 2),))
    states.append_tokens(1, [6])
    assert states.known(1).tolist() == [4, 5, 6] and states.tables[0, 1].tolist() == [3, 9, 2]
    assert int(states.sampling["place"][1]) == 1
    states.take(1, np.array([7], np.int32), fake_encode(make_request("b", [7], 1).params, 4, 0))
    assert states.known(1).tolist() == [7] and states.num_blocks[1] == 0 and int(states.sampling["place"][1]) == 4


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("start", "told"), [(0, [1, 2, 3, 4]), (7, [1, 2, 3, 4]), (8, [0, 2, 3, 4]), (12, [0, 0, 3, 4])]
)
def test_blocks_behind_a_window_are_not_told(start: int, told: list[int], place: int) -> None:
    """Their ids may be others' by now: a token at 8 with a window of 5 sees 4 and later. The other table is whole."""
    windows, blocks, tables = [None, None], [(5, 6, 7, 8)] * 2, [[5, 6, 7, 8]] * 2
    windows[place], blocks[place], tables[place] = 5, (1, 2, 3, 4), told  # type: ignore[call-overload]
    states = RowStates(4, 64, BLOCK, windows)
    states.take(2, list(range(10, 24)), fake_encode(make_request("a", [1], 1).params, 0, 0))
    states.append_blocks(2, blocks)
    assert gather(StepPlan((RowPlan(2, start, 14 - start),)), states).tables.tolist() == tables


def test_work_on_blocks_names_their_group() -> None:
    states = RowStates(2, 64, BLOCK, (5, None))
    states.take(0, [1], fake_encode(make_request("a", [1], 1).params, 0, 0))
    states.append_blocks(0, ((1,), (2,)))
    ops = (StateOp("copy", 3, 1, 0), StateOp("copy", 4, 2, 1), StateOp("scrub", 5, 5, 1))
    inputs = gather(StepPlan((RowPlan(0, 0, 1),), state_ops=ops), states)
    assert inputs.block_ops is not None
    assert inputs.block_ops.tolist() == [[COPY, 0, 3, 1], [COPY, 1, 4, 2], [SCRUB, 1, 5, 5]]


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("masks", {"masks": (0,)}),
        ("drafted", {"rows": (RowPlan(0, 0, 1, drafted=1),)}),
    ],
)
def test_what_is_not_built_yet_is_not_ignored(word: str, changes: dict[str, Any]) -> None:
    runner, executable = make()
    runner.add(make_request("a", [10], 9))
    plan = StepPlan((RowPlan(0, 0, 1),), (Admission(0, "a"),), new_blocks={0: ((7,),)})
    with pytest.raises(AssertionError, match=f"a plan has {word}, which the runner does not"):
        runner.run(replace(plan, **changes))
    assert executable.steps == 0
    assert len(runner.run(plan).rows[0].tokens) == 1
