"""Slots of an engine process: saved by one, restored by another; sessions that end by time; resets that wait."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.process.engines import SLOW, Notes, Settings, settled, with_engine

from pelton.core.errors import PeltonError, RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput, slot_session
from pelton.engine.process.client import AsyncEngine
from pelton.engine.process.messages import DescribeCache, DescribeSlots, EndSession, RestoreSession, SaveSession

PROMPT = [9 + number % 50 for number in range(100)]
SLOT = ("", slot_session(1))


async def turn(
    engine: AsyncEngine, ids: list[int], session_id: str | None = SLOT[1], tokens: int = 40
) -> RequestOutput:
    params = SamplingParams(max_tokens=tokens, seed=3, ignore_eos=True)
    return await engine.submit(engine.requests.make({"prompt_token_ids": ids}, params, session_id=session_id)).output()


def test_a_slot_wakes_in_the_next_engine(settings: Settings, tmp_path: Path) -> None:
    """Also while others are answered, and an idle one does it at once."""
    path, kept = os.fsencode(tmp_path / "x.bin"), list[RequestOutput]()

    async def first(engine: AsyncEngine) -> None:
        kept.append(await turn(engine, PROMPT))
        told = json.loads(await engine.ask(SaveSession(SLOT, path)) or b"")
        assert told["n_written"] == (tmp_path / "x.bin").stat().st_size and told["n_saved"] >= 128
        slots = json.loads(await engine.ask(DescribeSlots()) or b"")
        assert [slot["n_held"] for slot in slots[:3]] == [0, told["n_saved"], 0]
        busy = asyncio.gather(*(turn(engine, [number + 1] * 50, None, 200) for number in range(3)))
        for _ in range(3):
            assert json.loads(await engine.ask(SaveSession(SLOT, path)) or b"")["n_saved"] == told["n_saved"]
        both = await asyncio.gather(*(engine.ask(SaveSession(SLOT, path)) for _ in range(2)))
        assert all(both)
        await busy

    async def second(engine: AsyncEngine) -> None:
        with pytest.raises(RequestError) as caught:
            await engine.ask(SaveSession(SLOT, path))
        assert caught.value.code == "slot_empty"
        more = [*PROMPT, *kept[0].outputs[0].token_ids, 7, 8]
        told = json.loads(await engine.ask(RestoreSession(SLOT, path)) or b"")
        assert engine.stats.sessions == 1 and engine.stats.session_blocks == engine.stats.held_blocks > 0
        output = await turn(engine, more)
        assert output.num_cached_tokens == told["n_restored"] == 139 // 32 * 32 or told["n_restored"] == 139
        assert engine.stats.computed_tokens_total == len(more) - output.num_cached_tokens + 39
        kept.append(output)

    async def plain(engine: AsyncEngine) -> None:
        more = [*PROMPT, *kept[0].outputs[0].token_ids, 7, 8]
        assert (await turn(engine, more, None)).outputs[0].token_ids == kept[1].outputs[0].token_ids

    with_engine(settings(), first)
    with_engine(settings(), second)
    with_engine(settings(enable_prefix_caching=False), plain)


def test_what_cannot_be_is_told_and_the_engine_goes_on(settings: Settings, tmp_path: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        await turn(engine, PROMPT)
        with pytest.raises(PeltonError, match="No such file"):
            await engine.ask(SaveSession(SLOT, os.fsencode(tmp_path / "no" / "x")))
        with pytest.raises(RequestError, match="cannot be read: No such file"):
            await engine.ask(RestoreSession(SLOT, os.fsencode(tmp_path / "x")))
        (tmp_path / "x").write_bytes(b"nothing of ours")
        with pytest.raises(RequestError, match="x is not used"):
            await engine.ask(RestoreSession(SLOT, os.fsencode(tmp_path / "x")))
        assert (await turn(engine, PROMPT)).num_cached_tokens >= 96

    with_engine(settings(), test)


def test_a_slot_with_an_open_request_is_busy(settings: Settings, tmp_path: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        await turn(engine, PROMPT, tokens=2)
        running = asyncio.create_task(turn(engine, PROMPT, tokens=60))
        await settled(engine, lambda stats: stats.running == 1)
        with pytest.raises(RequestError) as caught:
            await engine.ask(SaveSession(SLOT, os.fsencode(tmp_path / "x")))
        assert caught.value.code == "slot_busy"
        slots = json.loads(await engine.ask(DescribeSlots()) or b"")
        assert [slot["is_processing"] for slot in slots[:3]] == [False, True, False]
        cache = json.loads(await engine.ask(DescribeCache(0, False, 5)) or b"")
        (request,) = cache["requests"]
        assert request["session"] == SLOT[1] and request["shared"] >= 3 and cache["held_for"][0]["session"] == SLOT[1]
        await running

    with_engine(settings(max_steps_per_call=1), test, module=SLOW)


def test_an_idle_engine_lets_sessions_go_by_time(settings: Settings) -> None:
    notes = Notes()

    async def test(engine: AsyncEngine) -> None:
        engine.observers.append(notes)
        await turn(engine, PROMPT, tokens=2)
        await settled(engine, lambda stats: stats.sessions == 0)
        assert engine.stats.held_blocks == 0 < engine.stats.cached_blocks and notes.steps[-1].sessions == 0
        assert await engine.ask(EndSession(SLOT)) == b""

    with_engine(settings(session_seconds=1), test)


def test_a_reset_is_answered_when_files_are_gone(settings: Settings, tmp_path: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        for number in range(5):
            await turn(engine, [number + 1] * 100, None, 2)
        while not list(tmp_path.rglob("*.kv")):
            await asyncio.sleep(0.01)
        assert await engine.reset_prefix_cache()
        assert not list(tmp_path.rglob("*.kv")) and engine.stats.cached_blocks == 0

    with_engine(settings(kv_disk_bytes=1 << 26, kv_disk_folder=str(tmp_path)), test)


def test_an_idle_engine_writes_all_that_is_cached(settings: Settings, tmp_path: Path) -> None:
    """Though its host slots take only some of that at a time; then it holds none, and its figures say so."""

    async def test(engine: AsyncEngine) -> None:
        for number in range(5):
            await turn(engine, [number + 1] * 300, None, 2)
        await settled(engine, lambda stats: stats.disk_blocks == 45 and stats.host_slots_used == 0)
        assert len(list(tmp_path.rglob("*.kv"))) == 45 == engine.stats.disk_stored_total

    config = settings(kv_disk_bytes=1 << 26, kv_disk_folder=str(tmp_path), num_blocks=100, max_model_len=512)
    with_engine(config, test)
