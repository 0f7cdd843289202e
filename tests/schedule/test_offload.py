"""Evicted blocks go to files and come back, also to a later scheduler; what is lost on the way is computed again."""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.schedule.traffic import BLOCK, Carrier, HostMemory, TokenKeys, Traffic, in_series, make, tiered

from pelton.core.config import CacheSection
from pelton.core.counters import Counters
from pelton.core.plan import Lookup, StepPlan
from pelton.kv.node import Node
from pelton.kv.tiers.chain import Name
from pelton.kv.tiers.chain import Path as Spelled
from pelton.kv.tiers.files import BlockFiles
from pelton.kv.tiers.in_turn import InTurn
from pelton.kv.tiers.worker import Done, Job
from pelton.schedule.planner import FILE_WAITS
from pelton.schedule.tiers import fetch
from pelton.schedule.tracked import NewRequest

PROMPT = [1, 2] * 9  # 18 tokens, 4 full blocks and a part
EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]
PARTS = CacheSection(preemption_mode="recompute")
WINDOWS = [(None,), (None, 6), (7,), (5, 11, None)]


def files(folder: Path) -> BlockFiles:
    return BlockFiles(folder, bytes(32), 1 << 20, Counters())


def traffic(
    folder: Path,
    blocks: int = 12,
    slots: int = 60,
    windows: tuple[int | None, ...] = (None,),
    cache: CacheSection | None = None,
) -> Traffic:
    host = HostMemory()
    disk = Carrier(files(folder), host)
    scheduler = tiered(make(blocks=blocks, windows=windows), slots, cache, disk)
    made = Traffic(scheduler, windows, host)
    made.disk = disk  # type: ignore[attr-defined]
    return made


def carrier(made: Traffic) -> Carrier:
    return made.disk  # type: ignore[attr-defined,no-any-return]


def ask(made: Traffic, name: str, prompt: list[int], room: int = 2) -> int:
    """How many tokens of the prompt it had not to compute."""
    before = made.scheduler.stats().prefix_hits_total
    made.add(name, prompt, room)
    made.run()
    return made.scheduler.stats().prefix_hits_total - before


def path() -> list[Name]:
    """The names of the prompt's full blocks, in the first KV group."""
    keys = TokenKeys(PROMPT, "")
    names = Spelled(Node(keys.namespace, 1, None), keys)
    return [names.name(0, block) for block in range(len(PROMPT) // BLOCK)]


def fill(made: Traffic, number: int) -> None:
    """Others come until the pool has none of the prompt's blocks."""
    for turn in range(number):
        ask(made, f"other {turn}", [3 + turn] * 30)
    ask(made, "one more", [0] * 9)  # its step saves what went


@pytest.mark.parametrize("windows", WINDOWS)
def test_what_was_evicted_is_found_in_files(tmp_path: Path, windows: tuple[int | None, ...]) -> None:
    made = traffic(tmp_path, windows=windows)
    assert ask(made, "first", PROMPT) == 0
    fill(made, 4)
    before = made.scheduler.stats()
    assert before.disk_blocks > 0 and before.prefix_evictions_total > 0
    assert ask(made, "again", PROMPT) == 16
    after = made.scheduler.stats()
    assert after.disk_hit_tokens_total > 0 and after.disk_loaded_total > 0
    assert made.over["again"].drawn == made.over["first"].drawn
    assert ask(made, "at once", PROMPT) == 16
    again = made.scheduler.stats().disk_loaded_total - after.disk_loaded_total
    assert not again, "what was loaded is in the tree"


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_later_start_finds_what_an_earlier_one_kept(tmp_path: Path, windows: tuple[int | None, ...]) -> None:
    made = traffic(tmp_path, windows=windows)
    ask(made, "first", PROMPT)
    offload = made.scheduler.tiers.offload
    assert offload is not None
    store = files(tmp_path)
    for labelled, block in offload.kept():
        bytes_of = memoryview(array("q", made._memory[labelled.name.group, block]).tobytes())
        assert store.write(labelled, bytes_of)
    later = traffic(tmp_path, windows=windows)
    later._paths = made._paths  # so that its bytes mean the same here
    assert ask(later, "again", PROMPT) == 16 and later.over["again"].drawn == made.over["first"].drawn
    assert later.scheduler.stats().computed_tokens_total == len(PROMPT) - 16 + 1


def test_another_salt_finds_nothing(tmp_path: Path) -> None:
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    made.add("salted", PROMPT, 2, salt="other")
    made.run()
    assert made.scheduler.stats().disk_loaded_total == 0


@pytest.mark.parametrize(
    ("loses", "found"),
    [({0, 1, 2, 3}, 0), ({0}, 0), ({2}, 8), ({9}, 16)],
)
def test_what_cannot_be_read_is_computed_again(tmp_path: Path, loses: set[int], found: int) -> None:
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    names = path()
    carrier(made).loses = lambda block: block.name in names and names.index(block.name) in loses
    assert ask(made, "again", PROMPT) == found
    assert made.over["again"].drawn == made.over["first"].drawn
    made.scheduler.check()


def test_who_waits_for_files_holds_up_nobody_and_may_be_aborted(tmp_path: Path) -> None:
    made = traffic(tmp_path, blocks=20)
    ask(made, "first", PROMPT)
    fill(made, 6)
    made.add("busy", [9] * 5, 12)
    made.step()
    made.add("waits", PROMPT, 2)
    plan = made.step()
    assert plan is not None and len(plan.rows) == 1 and not plan.admitted, "the busy one alone"
    stats = made.scheduler.stats()
    assert stats.deferred == 1 and stats.host_slots_used > 0
    made.abort("waits")
    made.scheduler.check()
    made.run()
    made.scheduler.check()
    assert made.scheduler.stats().host_slots_used == 0


def test_too_many_at_a_time_are_dropped_and_counted(tmp_path: Path) -> None:
    made = traffic(tmp_path, slots=4)
    ask(made, "first", PROMPT)
    fill(made, 4)
    stats = made.scheduler.stats()
    assert stats.disk_dropped_total > 0 and stats.disk_stored_total > 0


def test_a_broken_step_stores_nothing(tmp_path: Path) -> None:
    made = traffic(tmp_path, blocks=6)
    ask(made, "first", PROMPT)
    made.add("second", [5] * 18, 2)
    made.break_step()
    made.run()
    made.scheduler.check()
    assert ask(made, "again", PROMPT) in (0, 4, 8, 12, 16)


def test_a_reset_forgets_the_files_too(tmp_path: Path) -> None:
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    made.scheduler.reset_prefix_cache()
    assert not list(tmp_path.rglob("*.kv")) and ask(made, "again", PROMPT) == 0


@pytest.mark.parametrize("during", [False, True])
def test_a_reset_forgets_what_is_on_its_way_to_files(tmp_path: Path, during: bool) -> None:
    """What was driven out before it, and is saved by the next step, or by the one that runs."""
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    offload = made.scheduler.tiers.offload
    assert offload is not None
    offload.push_out()
    assert made.scheduler.stats().host_slots_used == 4
    if during:
        made.add("other", [3] * 9, 2)
        plan = made.step(during=made.scheduler.reset_prefix_cache)
        assert plan is not None and [op.kind for op in plan.state_ops] == ["save"] * 4
    else:
        made.scheduler.reset_prefix_cache()
        assert made.scheduler.stats().host_slots_used == 0
    made.run()
    assert made.scheduler.stats().host_slots_used == 0 and not list(tmp_path.rglob("*.kv"))
    assert ask(made, "again", PROMPT) == 0


def test_bad_blocks_in_files_are_given_to_one_request_at_most(tmp_path: Path) -> None:
    """It computes them once more by itself, and the files go."""
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    made.add("again", PROMPT, 2)
    made.step(faulty=lambda sequence: sequence.leans)
    assert made.seen["fault again"] == 1
    made.run()
    assert made.over["again"].drawn == made.over["first"].drawn
    assert not any(carrier(made).files.has(name) for name in path())


def test_without_files_nothing_is_saved() -> None:
    made = Traffic(tiered(make(blocks=12), 60))
    ask(made, "first", PROMPT)
    fill(made, 4)
    stats = made.scheduler.stats()
    assert made.seen["save"] == 0 == stats.disk_blocks


def kinds(plan: StepPlan | None) -> list[tuple[str, int, int]]:
    assert plan is not None
    return [(op.kind, op.source, op.target) for op in plan.state_ops]


def test_what_is_copied_in_a_step_may_be_given_up_for_the_same_step(tmp_path: Path) -> None:
    """Four blocks: a shared one, the one to copy from, the copy, and a free one. A series of steps takes the free one
    and the one to copy from, which goes to a slot.
    """
    made = traffic(tmp_path, blocks=4, cache=PARTS)
    in_series(made.scheduler, 8)
    made.add("first", EIGHT, 1)
    made.run()
    made.add("next", EIGHT[:7], 9, settles=0)
    made.step()
    made.preempt("next")
    plan = made.step()
    assert plan is not None and plan.repeat == 8 and plan.admitted[0].cached == 7
    (save, source, _), (copy, copied, target) = kinds(plan)
    assert (save, copy) == ("save", "copy") and source == copied != target
    assert source in plan.new_blocks[plan.admitted[0].row][0], "it is the request's own by now"
    made.run()


def test_a_copy_goes_to_a_block_that_is_saved_before(tmp_path: Path) -> None:
    made = traffic(tmp_path, blocks=6, cache=PARTS)
    made.add("old", [9] * 16, 1)
    made.run()
    made.add("first", EIGHT, 1)
    made.run()
    assert made.scheduler.stats().cached_blocks == 6
    made.add("next", [*EIGHT[:6], 0, 0, 0], 3)
    ops = kinds(made.step())
    assert [kind for kind, _, _ in ops] == ["save", "save", "copy"]
    assert ops[2][2] in (ops[0][1], ops[1][1])
    made.run()
    assert ask(made, "old again", [9] * 16) == 12, "two of its blocks from files"
    assert made.over["old again"].drawn[:1] == made.over["old"].drawn


def test_a_block_that_is_loaded_in_a_step_is_not_copied_in_it(tmp_path: Path) -> None:
    """Its content is there once that step is over, and then it is copied."""
    made = traffic(tmp_path, cache=PARTS, blocks=14)
    ask(made, "first", PROMPT)
    fill(made, 4)
    parts = [*PROMPT[:14], 7, 7, 7]
    made.add("again", PROMPT, 2)
    made.add("other", parts, 2)
    plan = made.step()
    assert plan is not None
    assert {one.request_id: one.cached for one in plan.admitted} == {"again": 16, "other": 12}
    assert sorted({kind for kind, _, _ in kinds(plan)}) == ["load", "save"]
    made.run()
    made.add("third", parts[:15], 2)
    plan = made.step()
    assert plan is not None and plan.admitted[0].cached == 14 and kinds(plan)[-1][0] == "copy"
    made.run()


def test_what_files_had_is_part_of_why_no_more_was_found(tmp_path: Path) -> None:
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    made.add("again", PROMPT, 2)
    plan = made.step()
    assert plan is not None and plan.admitted[0].lookup == Lookup("complete", 16)
    made.run()
    fill(made, 4)
    names = path()
    carrier(made).loses = lambda block: block.name == names[2]
    made.add("less", PROMPT, 2)
    plan = made.step()
    assert plan is not None and plan.admitted[0].lookup == Lookup("evicted", 8)
    made.run()
    fill(made, 4)
    made.add("longer", [*PROMPT[:8], *[6] * 9], 2)
    plan = made.step()
    assert plan is not None and plan.admitted[0].lookup == Lookup("unseen", 8)


@pytest.mark.parametrize(("prefill", "found"), [(100.0, 8), (1e9, 7)])
def test_files_are_not_waited_for_to_have_a_token_more_than_a_copy(tmp_path: Path, prefill: float, found: int) -> None:
    """A block of a byte, read in some nanoseconds: that pays for a token that takes 10 ms, not for one of a nanosecond,
    though it would for four.
    """
    made = traffic(tmp_path, blocks=10, cache=PARTS)
    made.add("first", EIGHT, 1)
    made.run()
    fill(made, 4)
    made.add("like it", [*EIGHT[:7], 0, 0], 1)
    made.run()
    made.scheduler.tiers.rates.prefill = prefill
    made.scheduler.tiers.rates.copy = 1e12
    assert ask(made, "again", [*EIGHT, 0]) == found


def test_files_are_left_where_they_take_longer_but_tried_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is computed in a microsecond, a byte is read in a millisecond."""
    made = traffic(tmp_path, blocks=10)
    rates = made.scheduler.tiers.rates
    ask(made, "first", PROMPT)
    fill(made, 4)
    rates.prefill, rates.copy, rates.disk = 1e6, 1e12, 1e3
    monkeypatch.setattr(fetch, "RETRY", 10**9)
    assert ask(made, "again", PROMPT) == 0 and made.scheduler.stats().disk_loaded_total == 0
    fill(made, 4)
    monkeypatch.setattr(fetch, "RETRY", 1)
    assert ask(made, "once more", PROMPT) == 16 and rates.disk == 1e3, "nobody measured it"


def test_the_time_of_reads_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = traffic(tmp_path)
    ask(made, "first", PROMPT)
    fill(made, 4)
    before, done = made.scheduler.tiers.rates.disk, carrier(made).done
    monkeypatch.setattr(
        carrier(made), "done", lambda seconds=0.0, awaited=(): [replace(one, seconds=2.0) for one in done(seconds)]
    )
    assert ask(made, "again", PROMPT) == 16
    assert made.scheduler.tiers.rates.disk == pytest.approx(0.7 * before + 0.3 * 4 / 2), "4 blocks of a byte"


def test_what_files_gave_does_not_go_before_what_is_older(tmp_path: Path) -> None:
    """Of a window only the last blocks are held: what slides out of it had been found, so it may be found again."""
    made = traffic(tmp_path, windows=(11,))
    ask(made, "first", PROMPT)
    fill(made, 4)
    assert ask(made, "again", PROMPT, room=8) == 16
    ask(made, "small", [0, 5, 0, 5, 0])
    before = made.scheduler.stats().disk_loaded_total
    assert ask(made, "at once", PROMPT) == 16 and made.scheduler.stats().disk_loaded_total == before


def test_an_engine_that_idles_goes_on_until_all_is_in_files(tmp_path: Path) -> None:
    """Each piece is as large as the slots allow, and no block is taken twice between two steps."""
    made = traffic(tmp_path, blocks=30, slots=8)
    for turn in range(4):
        ask(made, f"prompt {turn}", [turn + 1] * 18)
    tiers, copied = made.scheduler.tiers, list[tuple[int, int]]()
    assert tiers.offload is not None and not tiers.offload.writing
    wanted, pieces = len(list(tiers.offload.kept())), list[int]()
    while kept := tiers.offload.keep(100, lambda group, block, slot: copied.append((group, block))):
        pieces.append(kept)
        assert tiers.offload.writing
        tiers.collect()
    assert not tiers.offload.writing and not list(tiers.offload.kept()) and tiers.offload.offered == wanted
    assert sum(pieces) == len(set(copied)) == wanted == 16 and max(pieces) == 2, "a fourth of the slots"


def test_what_finds_no_room_in_files_is_offered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = traffic(tmp_path, blocks=30, slots=8)
    ask(made, "prompt", PROMPT)
    tiers = made.scheduler.tiers
    assert tiers.offload is not None
    monkeypatch.setattr(BlockFiles, "write", lambda files, block, content: False)
    for _ in range(2):
        total = 0
        while kept := tiers.offload.keep(100, lambda group, block, slot: None):
            total += kept
            tiers.collect()
        assert total == 4 == tiers.offload.offered
        ask(made, "another", [9])  # a step: from then on it is tried again
        assert tiers.offload.offered == 0


def test_where_files_are_given_up_nothing_is_copied_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = traffic(tmp_path)
    tiers = made.scheduler.tiers
    assert tiers.offload is not None
    monkeypatch.setattr(BlockFiles, "off", True)
    ask(made, "prompt", PROMPT)
    fill(made, 3)
    assert tiers.offload.figures.dropped > 0 == tiers.offload.figures.stored and not tiers.offload.writing
    assert tiers.offload.keep(100, lambda group, block, slot: None) == 0


def test_blocks_on_their_way_to_files_end_nobodys_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for is what reads, however much else comes to its end before."""
    made = traffic(tmp_path, blocks=20)
    ask(made, "first", PROMPT)
    fill(made, 6)
    tiers, disk, waited = made.scheduler.tiers, carrier(made), list[list[bool]]()
    assert tiers.offload is not None
    tiers.collect()
    plainly = disk.done

    def done(seconds: float = 0.0, awaited: Collection[Job] = ()) -> list[Done]:
        if not seconds:
            return []
        waited.append([job.read for job in awaited])
        return plainly()

    monkeypatch.setattr(disk, "done", done)
    assert tiers.offload.keep(100, lambda group, block, slot: None) > FILE_WAITS
    assert ask(made, "again", PROMPT) == 16 and waited == [[True]]


class Everything(InTurn):
    """Has every block, and never comes with it; `jobs`: what was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(files(folder), HostMemory().slot)
        self.jobs: list[Job] = []

    def has(self, name: Name) -> bool:
        return True

    def start(self, job: Job) -> None:
        self.jobs.append(job)


@pytest.mark.parametrize("blocks", [20, 60, 300])
def test_where_slots_lack_few_lengths_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """One group has slots for two blocks, and the other for all: what is read is as much as there is room for."""
    disk, length = Everything(tmp_path), BLOCK * blocks + 1
    made = tiered(make(blocks=1000, max_len=2000, windows=(None, 8)), 400, CacheSection(), disk)
    host = made.tiers.host
    assert host.alloc([398, 0]) is not None
    tries, alloc = list[Sequence[int]](), host.alloc

    def counted(counts: Sequence[int]) -> object:
        tries.append(counts)
        return alloc(counts)

    monkeypatch.setattr(host, "alloc", counted)
    made.add(NewRequest("first", 3, 1000))
    made.add(NewRequest("long", length, 4, arrival=1.0, keys=TokenKeys([1, 2] * length, "")))
    made.plan()
    (job,) = disk.jobs
    assert [one.name.group for one in job.blocks].count(0) == 2 and len(tries) == 2
