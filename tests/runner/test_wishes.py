"""What rows ask of a step besides their tokens: edited logits, known tokens' log-probabilities, work on blocks."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.engine.fakes import BLOCK, POISON, VOCAB, FakeExecutable, draw, make_request, score

from pelton.backends.backend import COPY, FAULT_NO_TOKEN, ONLY_ALLOWED, SCRUB, SEEN, Records, StepInputs, StepOutputs
from pelton.core.plan import Admission, RowPlan, RowResult, StateOp, StepPlan
from pelton.core.request import Request
from pelton.runner.rows import RowStates
from pelton.runner.runner import FAULTS, Runner
from pelton.sampling.choose import NO_EDITS, choose
from pelton.sampling.encode import encode


class Recorder(FakeExecutable):
    """Keeps the inputs it was given."""

    def run(self, inputs: StepInputs) -> StepOutputs:
        self.inputs = inputs
        return super().run(inputs)

    def edits(self, logit_row: int) -> dict[int, tuple[float, int, int]]:
        """The entries of one logit row of the last step."""
        found = entries_of(self.inputs, logit_row)
        return {token: (bias, count, flags) for token, bias, count, flags in found.tolist()}


class Chooser(Recorder):
    """Draws by the true mathematics, from logits that hash the sequence."""

    def _draw(self, paths: list[list[int]], inputs: StepInputs, faults: npt.NDArray[np.int32]) -> StepOutputs:
        outputs = super()._draw(paths, inputs, faults)
        for row, path in enumerate(paths):
            logits = np.random.default_rng(draw(path, 0, 0)).normal(0, 2, VOCAB).astype(np.float32)
            token = choose(logits, inputs.sampling[row], entries_of(inputs, row))[0]
            outputs.tokens[row] = token
            if token < 0:
                outputs.faults[row] = FAULT_NO_TOKEN
        return outputs


def entries_of(inputs: StepInputs, logit_row: int) -> Records:
    if inputs.edits is None:
        assert inputs.edit_offsets is None
        return NO_EDITS
    assert inputs.edit_offsets is not None and len(inputs.edit_offsets) == len(inputs.logit_rows) + 1
    assert inputs.edit_offsets.dtype == np.int32 and inputs.edits.flags.c_contiguous
    found: Records = inputs.edits[inputs.edit_offsets[logit_row] : inputs.edit_offsets[logit_row + 1]]
    return found


def make(executable: FakeExecutable) -> Runner:
    return Runner(executable, RowStates(6, 64, BLOCK), encode)


def admit(runner: Runner, *requests: Request, counts: list[int] | None = None) -> tuple[RowResult, ...]:
    """Requests into rows 0, 1, ... with all blocks they will need; whole prompts, or `counts` of their tokens."""
    rows, blocks = [], {}
    for row, request in enumerate(requests):
        runner.add(request)
        size = len(request.prompt_token_ids)
        count = size if counts is None else counts[row]
        rows.append(RowPlan(row, 0, count, sample=count == size))
        blocks[row] = (tuple(range(1 + 16 * row, 17 + 16 * row)),)
    admitted = tuple(Admission(row, request.request_id) for row, request in enumerate(requests))
    return runner.run(StepPlan(tuple(rows), admitted, new_blocks=blocks)).rows


# ---- edits -----------------------------------------------------------------------------------------------------------


def test_ordinary_rows_bring_no_edits() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    admit(runner, make_request("a", [10, 11], 9), make_request("b", [20], 9, temperature=0.5, top_k=4, logprobs=2))
    assert executable.inputs.edits is None and executable.inputs.edit_offsets is None
    assert executable.inputs.block_ops is None and not executable.inputs.trace


def test_edits_stand_by_the_logit_row_that_draws() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    plain = make_request("plain", [30, 31], 9)
    biased = make_request("biased", [40], 9, logit_bias={7: 2.5, 8: -100})
    seen = make_request("seen", [10, 11, 10], 9, repetition_penalty=2.0, presence_penalty=1.0)
    (_, _, drawn) = admit(runner, plain, biased, seen)
    assert executable.edits(0) == {}
    assert executable.edits(1) == {7: (2.5, 0, 0), 8: (-100.0, 0, 0)}
    assert executable.edits(2) == {10: (0, 0, SEEN), 11: (0, 0, SEEN)}
    assert executable.inputs.sampling["repetition"].tolist() == [1.0, 1.0, 2.0]
    # Another order, one row without a draw, and the token drawn before counts.
    runner.run(StepPlan((RowPlan(2, 3, 1), RowPlan(0, 2, 1), RowPlan(1, 1, 1))))
    (token,) = drawn.tokens
    assert executable.edits(0) == {10: (0, 0, SEEN), 11: (0, 0, SEEN), token: (0, 1, SEEN)}
    assert (executable.edits(1), executable.edits(2)) == ({}, {7: (2.5, 0, 0), 8: (-100.0, 0, 0)})
    runner.run(StepPlan((RowPlan(0, 3, 1),)))
    assert executable.inputs.edits is None


def test_a_prompt_in_pieces_is_edited_at_its_end_alone() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    request = make_request("a", [10, 11, 12], 9, repetition_penalty=2.0)
    admit(runner, request, counts=[2])
    assert executable.inputs.edits is None
    runner.run(StepPlan((RowPlan(0, 2, 1),)))
    assert executable.edits(0).keys() == {10, 11, 12}


def test_a_minimum_ends_and_costs_nothing_afterwards() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    admit(runner, make_request("a", [10], 9, min_tokens=2, stops=frozenset({256})))
    banned = [executable.edits(0)]
    for index in (1, 2):
        runner.run(StepPlan((RowPlan(0, index, 1),)))
        banned.append(executable.edits(0))
    assert banned == [{256: (-np.inf, 0, 0)}, {256: (-np.inf, 0, 0)}, {}]
    assert executable.inputs.edits is None


def test_a_row_that_is_free_is_edited_no_more() -> None:
    executable, states = Recorder(100, 100), RowStates(6, 64, BLOCK)
    runner = Runner(executable, states, encode)
    admit(runner, make_request("a", [10], 9, logit_bias={7: 2.5}), make_request("b", [10], 9, logit_bias={8: 1}))
    runner.forget("a")
    runner.forget("b")
    runner.add(make_request("c", [20], 9))
    runner.run(StepPlan((RowPlan(0, 0, 1),), (Admission(0, "c"),), released=(0, 1), new_blocks={0: ((1,),)}))
    assert executable.inputs.edits is None and not states.edited


WISHES: dict[str, Any] = {
    "repetition_penalty": 1.6,
    "frequency_penalty": 0.9,
    "presence_penalty": -0.4,
    "logit_bias": {3: 1.0, 9: 2.0},
    "allowed_token_ids": (3, 9, 10, 12, 20, 21, 22),  # so few that they repeat
    "min_tokens": 3,
    "stops": frozenset({9}),
    "temperature": 0.8,
    "top_k": 5,
}


@pytest.mark.parametrize("losses", [(1,), (1, 2, 3), (4, 9)])
def test_a_preempted_answer_goes_on_the_same(losses: tuple[int, ...]) -> None:
    def answer(lost_at: tuple[int, ...]) -> list[int]:
        executable = Chooser(200, 100)
        runner = make(executable)
        prompt = [10, 3, 12]
        tokens = list(admit(runner, make_request("a", prompt, 20, seed=7, **WISHES))[0].tokens)
        row = 0
        while len(tokens) < 12:
            known = len(prompt) + len(tokens)
            if len(tokens) in lost_at:
                free, row = row, (row + 1) % 3
                executable.allocate((200,))
                plan = StepPlan(
                    (RowPlan(row, 0, known),),
                    (Admission(row, "a"),),
                    released=(free,),
                    new_blocks={row: (tuple(range(1, 17)),)},
                )
            else:
                plan = StepPlan((RowPlan(row, known - 1, 1),))
            tokens += runner.run(plan).rows[0].tokens
        return tokens

    assert answer(losses) == answer(())


def test_children_draw_by_their_number() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    first, second = make_request("a", [10, 11], 9, n=2, seed=5).children()
    results = admit(runner, first, second)
    assert executable.inputs.sampling["child"].tolist() == [0, 1]
    assert [row.tokens for row in results] == [(draw([10, 11], 5, 0, child),) for child in (0, 1)]


def test_no_token_left_is_a_fault_of_its_row() -> None:
    runner = make(Chooser(100, 100))
    impossible = make_request("a", [10], 9, allowed_token_ids=[7], min_tokens=1, stops=frozenset({7}))
    bad, good = admit(runner, impossible, make_request("b", [20], 9))
    assert bad.fault == FAULTS[FAULT_NO_TOKEN] and "No token is left" in bad.fault and bad.tokens == ()
    assert good.fault is None and len(good.tokens) == 1


def test_only_allowed_tokens_are_drawn() -> None:
    runner = make(Chooser(100, 100))
    (result,) = admit(runner, make_request("a", [10], 9, allowed_token_ids=[3, 200]))
    tokens = [*result.tokens]
    for index in range(1, 9):
        tokens += runner.run(StepPlan((RowPlan(0, index, 1),))).rows[0].tokens
    assert set(tokens) == {3, 200}


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_known_tokens_are_scored_in_pieces_and_together_with_a_draw() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    prompt = [10, 11, 12, 13, 14]
    scored = make_request(
        "scored", prompt, 9, seed=3, prompt_logprobs=2, logprobs=1, logit_bias={4: 1.0}, allowed_token_ids=[4, 5]
    )
    other = make_request("other", [30, 31], 9, seed=4)
    first, neighbour = first_piece(runner, scored, other)
    assert executable.inputs.logit_rows.tolist() == [0, 1, 3]
    assert executable.inputs.sampling["target"].tolist() == [11, 12, -1]
    assert executable.inputs.sampling["logprobs"].tolist() == [2, 2, -1]
    assert executable.inputs.sampling["flags"].tolist() == [0, 0, 0]
    assert executable.inputs.edits is None
    assert [one.logprob for one in first.scores] == [score(prompt[:1], 11), score(prompt[:2], 12)]
    assert [(one.rank, len(one.top_ids)) for one in first.scores] == [(11 % 3 + 1, 2), (12 % 3 + 1, 2)]
    assert first.tokens == () and first.logprobs == () and neighbour.scores == ()
    assert neighbour.tokens == (draw([30, 31], 4, 0),)

    last, _ = runner.run(StepPlan((RowPlan(0, 2, 3, scored=2), RowPlan(1, 2, 1)))).rows
    assert executable.inputs.logit_rows.tolist() == [0, 1, 2, 3]
    assert executable.inputs.sampling["target"].tolist() == [13, 14, -1, -1]
    assert executable.inputs.sampling["logprobs"].tolist() == [2, 2, 1, -1]
    assert executable.inputs.sampling["flags"].tolist() == [0, 0, ONLY_ALLOWED, 0]
    assert [executable.edits(row).keys() for row in range(4)] == [set(), set(), {4, 5}, set()]
    assert [one.logprob for one in last.scores] == [score(prompt[:3], 13), score(prompt[:4], 14)]
    assert last.tokens == (draw(prompt, 3, 0),) and len(last.logprobs) == 1 and len(last.logprobs[0].top_ids) == 1
    runner.run(StepPlan((RowPlan(0, 5, 1),)))
    assert executable.inputs.sampling["target"].tolist() == [-1]


def first_piece(runner: Runner, scored: Request, other: Request) -> tuple[RowResult, ...]:
    for request in (scored, other):
        runner.add(request)
    blocks = {0: ((1, 2, 3),), 1: ((4, 5, 6),)}
    admitted = (Admission(0, scored.request_id), Admission(1, other.request_id))
    return runner.run(StepPlan((RowPlan(0, 0, 2, sample=False, scored=2), RowPlan(1, 0, 2)), admitted, (), blocks)).rows


def test_a_fault_among_the_scored_is_the_rows() -> None:
    runner = make(Recorder(100, 100))
    prompt = [10, 11, POISON, 12]
    runner.add(make_request("a", prompt, 9, prompt_logprobs=0))
    plan = StepPlan((RowPlan(0, 0, 4, scored=3),), (Admission(0, "a"),), new_blocks={0: ((1,),)})
    (row,) = runner.run(plan).rows
    assert "NaN" in (row.fault or "") and row.scores == () == row.tokens


def test_a_plan_may_not_score_who_does_not_ask() -> None:
    runner = make(Recorder(100, 100))
    runner.add(make_request("a", [10, 11], 9))
    with pytest.raises(AssertionError, match="does not ask"):
        runner.run(StepPlan((RowPlan(0, 0, 2, scored=1),), (Admission(0, "a"),), new_blocks={0: ((1,),)}))


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_block_ops_are_numbers_in_the_plans_order() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    runner.add(make_request("a", [10], 9))
    ops = (StateOp("scrub", 5, 5), StateOp("copy", 7, 9), StateOp("copy", 9, 4))
    runner.run(StepPlan((RowPlan(0, 0, 1),), (Admission(0, "a"),), new_blocks={0: ((8,),)}, state_ops=ops))
    assert executable.inputs.block_ops is not None and executable.inputs.block_ops.dtype == np.int32
    assert executable.inputs.block_ops.tolist() == [[SCRUB, 0, 5, 5], [COPY, 0, 7, 9], [COPY, 0, 9, 4]]


def test_tokens_in_shared_blocks_are_not_computed_again() -> None:
    executable = Recorder(100, 100)
    runner = make(executable)
    prompt = [10, 11, 12, 13, 14, 15]
    for name in ("a", "b"):
        runner.add(make_request(name, prompt, 9, seed=2))
    runner.run(StepPlan((RowPlan(0, 0, 6),), (Admission(0, "a"),), new_blocks={0: ((1, 2),)}))
    plan = StepPlan((RowPlan(1, 4, 2),), (Admission(1, "b", cached=4),), new_blocks={1: ((1, 3),)})
    assert runner.run(plan).rows[0].tokens == (draw(prompt, 2, 0),)
    assert executable.inputs.tables.tolist() == [[1, 3]] and executable.inputs.starts.tolist() == [4]
