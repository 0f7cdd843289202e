"""Which schedules are planned: all cells, in an order that the seed gives, each reproducible by its number."""

from collections import Counter
from itertools import combinations
from random import Random

import pytest
from tests.measure.verify_parts import MAX_TOKENS, tiny_prompts

from pelton.measure.verify.cases import WAYS, Cases
from pelton.measure.verify.dimension import TEST
from pelton.measure.verify.plan import Planner
from pelton.measure.verify.rig import Sizes
from pelton.measure.verify.verify import dimensions

SIZES = Sizes(tokens=256, rows=16, groups=((90, None),), block_size=32, max_len=400)
CASES = Cases(tiny_prompts(), WAYS, MAX_TOKENS)


def planner(seed: int = 0) -> Planner:
    return Planner(CASES, dimensions(), SIZES, seed)


def test_there_are_720_cells_and_each_comes_once_before_any_comes_again() -> None:
    plan = planner()
    cells = [plan.cell(number) for number in range(1440)]
    assert len(plan.cells) == len(set(plan.cells)) == 720
    assert set(cells[:720]) == set(cells[720:]) == set(plan.cells)
    assert cells[:720] != cells[720:]


@pytest.mark.parametrize("seed", range(20))
def test_every_value_comes_among_the_first_few_schedules(seed: int) -> None:
    plan = planner(seed)
    values = {pair for cell in plan.cells for pair in cell}
    most = max(len(dimension.values) for dimension in dimensions().values())
    for turn in (0, 1):
        first = [plan.cell(len(plan.cells) * turn + number) for number in range(20)]
        assert {pair for cell in first[:most] for pair in cell} == values
        pairs = {two for cell in first for two in combinations(cell, 2)}
        assert pairs == {two for cell in plan.cells for two in combinations(cell, 2)}


def test_seeds_begin_with_different_cells() -> None:
    assert len({planner(seed).cell(0) for seed in range(20)}) > 8
    assert len({planner(seed).cell(47) for seed in range(20)}) > 8


def test_a_number_says_all_about_a_schedule() -> None:
    one, other = planner(), planner()
    later = [other.schedule(number) for number in reversed(range(20))]
    assert [one.schedule(number) for number in range(20)] == later[::-1]
    assert planner(seed=1).cell(0) != one.cell(0) or planner(seed=1).schedule(0) != one.schedule(0)


def test_each_schedule_has_a_greedy_and_a_seeded_round() -> None:
    for number in range(48):
        seeded, greedy = sorted(planner().schedule(number).rounds, key=lambda one: one.asks[0].case.way.greedy)
        assert greedy.asks[0].case.way.greedy and not seeded.asks[0].case.way.greedy


def test_every_prompt_and_every_way_is_tested() -> None:
    schedules = [planner().schedule(number) for number in range(48)]
    tested = [round_.asks[0].case for schedule in schedules for round_ in schedule.rounds]
    prompts = Counter(case.prompt.name for case in tested)
    assert {case.way.name for case in tested} == {way.name for way in WAYS}
    assert prompts.keys() == {prompt.name for prompt in CASES.prompts if len(prompt) > 16}


def test_a_round_fits_its_engine() -> None:
    for number in range(288):
        for round_ in planner(seed=3).schedule(number).rounds:
            sequences = sum(ask.n for ask in round_.asks if ask.phase == TEST)
            most = max(-(-(len(ask.case.prompt) + MAX_TOKENS) // 32) for ask in round_.asks)
            assert sequences <= SIZES.rows <= round_.schedule.max_num_batched_tokens <= SIZES.tokens
            assert most < round_.blocks <= SIZES.blocks


def test_another_dimension_leaves_alone_what_the_others_draw() -> None:
    """The one that is taken away draws from a generator of its own."""
    fewer = {name: dimension for name, dimension in dimensions().items() if name != "preemption"}
    full, cut = planner(), Planner(CASES, fewer, SIZES, 0)
    of_full = next(number for number in range(720) if full.cell(number) == full.cells[0])
    of_cut = next(number for number in range(240) if cut.cell(number) == cut.cells[0])
    assert full._rng("7/greedy", "fork_count").random() == cut._rng("7/greedy", "fork_count").random()
    assert dict(full.cell(of_full)).keys() - dict(cut.cell(of_cut)).keys() == {"preemption"}


@pytest.mark.parametrize("n", [1, 3])
def test_the_answers_to_a_request_have_references_with_their_own_draws(n: int) -> None:
    case = CASES.case(CASES.prompts[0], WAYS[4])
    requests = CASES.requests(case, "5", n)
    alone = [CASES.alone(case, child) for child in range(n)]
    assert [request.child for request in requests] == [request.child for request in alone] == list(range(n))
    assert {request.parent for request in alone} == {None}
    assert {request.params.seed for request in (*requests, *alone)} == {case.seed}


def test_other_prompts_begin_otherwise() -> None:
    rng = Random(0)
    for prompt in CASES.prompts:
        others = CASES.other_prompts(prompt, rng, 6)
        assert len(set(others)) == 6 and all(other.token_ids[:31] != prompt.token_ids[:31] for other in others)
