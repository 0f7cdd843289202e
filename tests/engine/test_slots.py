"""Slots: a session goes to a file and comes back in another engine, to the bit; nothing bad ever does."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_windows import model as windowed_model
from tests.oracle.toy import randomise

from pelton.core.errors import PeltonError, RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import slot_session
from pelton.engine.llm import LLM
from pelton.engine.memory import slots as slots_module
from pelton.engine.memory.errands import Errand, Errands
from pelton.engine.memory.slots import Slots, pieces
from pelton.kv.tiers import slot_file
from pelton.kv.tiers.slot_file import BAD_FILE, BUSY, EMPTY, NO_ROOM
from pelton.schedule.scheduler import holdings_of

pytest.importorskip("pelton.backends.cpu._native")

PROMPT = [(7 * n + n * n) % 250 for n in range(150)]
GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.2, seed=5, max_tokens=24, logprobs=1, ignore_eos=True)
SLOT = ("", slot_session(0))
Told = tuple[list[int], str]


@pytest.fixture(scope="module", params=["full", "all", "mixed"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Layers that look back without end, all within a window, or some."""
    if request.param == "full":
        return tiny_model
    made = windowed_model(request.param).eval()
    randomise(made)
    folder: Path = tmp_path_factory.mktemp(f"slots_{request.param}")
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    return folder


@contextmanager
def opened(model: Path, **settings: object) -> Iterator[LLM]:
    """With books that add up at the end."""
    with LLM(str(model), max_num_seqs=2, **settings) as llm:
        yield llm
        llm._parts.session.engine.check()


def slots_of(llm: LLM) -> Slots:
    slots = llm._parts.inner.slots
    assert slots is not None
    return slots


def ask(llm: LLM, ids: list[int], params: SamplingParams = GREEDY, **how: Any) -> Told:
    asked: Any = [{"prompt_token_ids": ids}]
    output = llm.generate(asked, params, use_tqdm=False, **how)[0].outputs[0]
    return list(output.token_ids), repr(output.logprobs)


def done(errand: Errand, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What comes of an errand; `between` is called whenever it waits."""
    errands = Errands(lambda: None)
    errands.add(1, errand)
    while True:
        over = errands.advance()
        if over is None:
            assert errands._waits is not None
            errands._waits.exception(timeout=30)
            between()
            continue
        if isinstance(over[1], bytes):
            told: dict[str, Any] = json.loads(over[1])
            return told
        raise over[1]


def computed(llm: LLM) -> int:
    return llm._parts.session.engine.scheduler.stats().computed_tokens_total


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("at_a_time", [1, 1 << 30])
def test_a_conversation_goes_on_in_another_engine(
    model: Path, tmp_path: Path, dtype: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is new is computed, and every bit is what an engine without any cache would say."""
    monkeypatch.setattr(slots_module, "MOST_BYTES", at_a_time)
    path = tmp_path / "x.bin"
    with opened(model, dtype=dtype) as llm:
        first = ask(llm, PROMPT, session_id=SLOT[1])
        saved = done(slots_of(llm).save(SLOT, path))
        held = holdings_of(llm._parts.session.engine.scheduler).tokens(SLOT)
    # The last token is drawn and never computed.
    whole = len(PROMPT) + len(first[0]) - 1
    assert whole - 32 < saved["n_saved"] == held <= whole and saved["n_written"] == path.stat().st_size
    assert saved["timings"]["save_ms"] > 0
    second = [*PROMPT, *first[0], 3, 1, 4]
    with opened(model, dtype=dtype, enable_prefix_caching=False) as llm:
        plain = [ask(llm, second, params) for params in (GREEDY, DRAWN)]
    for number, params in enumerate((GREEDY, DRAWN)):
        with opened(model, dtype=dtype) as llm:
            told = done(slots_of(llm).restore(SLOT, path))
            assert (told["n_restored"], told["n_read"]) == (held, path.stat().st_size)
            assert llm._parts.session.engine.scheduler.stats().sessions == 1 and computed(llm) == 0
            assert ask(llm, second, params, session_id=SLOT[1]) == plain[number]
            assert computed(llm) == len(second) - held + 23, "the prompt's new tokens, and all but the last drawn one"
            again = holdings_of(llm._parts.session.engine.scheduler).tokens(SLOT)
            assert len(second) + 23 - 32 < again <= len(second) + 23, "what was restored is held with what came"


def test_what_is_in_memory_already_is_not_written_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "x.bin", list[object]()
    monkeypatch.setattr(slots_module, "MOST_BYTES", 1)
    with opened(model) as llm:
        ask(llm, PROMPT, session_id=SLOT[1])
        done(slots_of(llm).save(SLOT, path))
        ops = type(llm._parts.inner.executable.blocks())
        write = ops.write

        def noted(self: Any, group: int, block: int, data: bytes) -> None:
            written.append((group, block))
            write(self, group, block, data)

        monkeypatch.setattr(ops, "write", noted)
        before = llm._parts.session.engine.scheduler.stats()
        done(slots_of(llm).restore(SLOT, path))
        assert not written
        assert llm.end_session(SLOT[1]) and not llm.end_session(SLOT[1])
        done(slots_of(llm).restore(SLOT, path))
        assert not written and llm._parts.session.engine.scheduler.stats().session_blocks == before.session_blocks
        llm.reset_prefix_cache()
        assert llm._parts.session.engine.scheduler.stats().held_blocks == 0
        done(slots_of(llm).restore(SLOT, path))
        assert len(written) == before.session_blocks


ONE = SamplingParams(temperature=0, max_tokens=1)


def test_a_part_that_is_still_in_memory_is_kept_while_room_is_made(tiny_model: Path, kept: Path) -> None:
    """Its blocks are unused, and have been so longest: they would be the first to go. There is no free one."""
    with opened(tiny_model, enable_prefix_caching=False) as llm:
        plain = ask(llm, PROMPT)
    with opened(tiny_model, num_blocks=12) as llm:
        ask(llm, PROMPT[:64], ONE)
        for number in range(3):
            ask(llm, [number + 1] * 96, ONE)
        ask(llm, [9] * 32, ONE)
        scheduler = llm._parts.session.engine.scheduler
        assert scheduler.stats().cached_blocks == 12
        done(slots_of(llm).restore(SLOT, kept))
        scheduler.check()
        assert ask(llm, PROMPT) == plain


def test_what_was_found_is_let_go_where_the_rest_has_no_room(tiny_model: Path, kept: Path) -> None:
    with opened(tiny_model, num_blocks=12) as llm:
        ask(llm, PROMPT[:64], ONE)
        name = open_request(llm, [9] * 280)
        assert refusal(slots_of(llm).restore(SLOT, kept)).code == NO_ROOM
        llm._parts.session.engine.check()
        llm._parts.session.drop([name])
        assert llm._parts.session.engine.scheduler.stats().held_blocks == 0


def refusal(errand: Errand, between: Callable[[], None] = lambda: None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        done(errand, between)
    return caught.value


@pytest.fixture(scope="module")
def kept(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved slot of the tiny model."""
    path: Path = tmp_path_factory.mktemp("kept") / "x.bin"
    with opened(tiny_model) as llm:
        ask(llm, PROMPT, session_id=SLOT[1])
        done(slots_of(llm).save(SLOT, path))
    return path


@pytest.mark.parametrize(
    "settings", [{"dtype": "float32"}, {"hf_overrides": '{"rope_theta": 5000.0}'}, {"quantization": "int8"}]
)
def test_no_other_model_takes_it(tiny_model: Path, kept: Path, settings: dict[str, object]) -> None:
    with opened(tiny_model, **settings) as llm:
        error = refusal(slots_of(llm).restore(SLOT, kept))
        assert error.code == BAD_FILE and error.param == "filename" and "another model" in error.cause
        assert llm._parts.session.engine.scheduler.stats().held_blocks == 0


def test_nothing_of_a_bad_file_is_used(tiny_model: Path, kept: Path, tmp_path: Path) -> None:
    whole, path = kept.read_bytes(), tmp_path / "y.bin"
    with opened(tiny_model) as llm:
        plain = ask(llm, PROMPT)
        llm.reset_prefix_cache()
        for place in range(0, len(whole), len(whole) // 23):
            flipped = bytearray(whole)
            flipped[place] ^= 4
            for data in (flipped, whole[:place]):
                path.write_bytes(data)
                error = refusal(slots_of(llm).restore(SLOT, path))
                assert error.code == BAD_FILE and "y.bin" in error.cause
        path.unlink()
        error = refusal(slots_of(llm).restore(SLOT, path))
        assert error.code == BAD_FILE and "No such file" in error.cause
        stats = llm._parts.session.engine.scheduler.stats()
        assert stats.cached_blocks == stats.held_blocks == 0 and ask(llm, PROMPT) == plain


def test_a_file_that_goes_bad_while_it_is_read(
    tiny_model: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put back until then is right, and nobody's any more."""
    monkeypatch.setattr(slots_module, "MOST_BYTES", 1)
    path, waits = tmp_path / "y.bin", list[int]()
    path.write_bytes(kept.read_bytes())

    def spoil() -> None:
        waits.append(len(waits))
        if len(waits) == 2:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"\xff" * 999)

    with opened(tiny_model) as llm:
        plain = ask(llm, PROMPT)
        llm.reset_prefix_cache()
        assert refusal(slots_of(llm).restore(SLOT, path), spoil).code == BAD_FILE
        stats = llm._parts.session.engine.scheduler.stats()
        assert stats.cached_blocks > 0 == stats.sessions == stats.held_blocks
        assert ask(llm, PROMPT) == plain


def test_salts_keep_to_themselves(tiny_model: Path, kept: Path, tmp_path: Path) -> None:
    with opened(tiny_model) as llm:
        error = refusal(slots_of(llm).restore(("salt", SLOT[1]), kept))
        assert error.param == "cache_salt"
        ask(llm, PROMPT, session_id=SLOT[1], cache_salt="salt")
        assert refusal(slots_of(llm).save(SLOT, tmp_path / "y.bin")).code == EMPTY
        done(slots_of(llm).save(("salt", SLOT[1]), tmp_path / "y.bin"))
        assert refusal(slots_of(llm).restore(SLOT, tmp_path / "y.bin")).param == "cache_salt"
        done(slots_of(llm).restore(("salt", slot_session(1)), tmp_path / "y.bin"))
        assert llm._parts.session.engine.scheduler.stats().sessions == 2


def test_more_than_sessions_may_hold_is_refused_at_once(tiny_model: Path, kept: Path) -> None:
    with opened(tiny_model, num_blocks=8) as llm:
        error = refusal(slots_of(llm).restore(SLOT, kept))
        assert error.code == NO_ROOM and "num_blocks" in error.remedy
        assert llm._parts.session.engine.scheduler.stats().cached_blocks == 0


def open_request(llm: LLM, ids: list[int], session_id: str | None = None) -> str:
    """A request that is in the engine, its prompt computed."""
    session = llm._parts.session
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    request = llm._parts.requests.make({"prompt_token_ids": ids}, params, session_id=session_id)
    (answer,) = session.start([request])
    while not answer.output().outputs[0].token_ids:
        session.advance()
    return request.request_id


def test_where_requests_hold_too_much_nothing_is_left_half_done(
    tiny_model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "MOST_BYTES", 1)
    with opened(tiny_model, num_blocks=12) as llm:
        name = open_request(llm, [9] * 280)
        assert refusal(slots_of(llm).restore(SLOT, kept)).code == NO_ROOM
        assert llm._parts.session.engine.scheduler.stats().sessions == 0
        llm._parts.session.engine.check()
        llm._parts.session.drop([name])
        done(slots_of(llm).restore(SLOT, kept))


def test_while_a_request_of_the_slot_is_open_it_is_busy(tiny_model: Path, kept: Path, tmp_path: Path) -> None:
    with opened(tiny_model) as llm:
        ask(llm, PROMPT, session_id=SLOT[1])
        name = open_request(llm, PROMPT, SLOT[1])
        for errand in (slots_of(llm).save(SLOT, tmp_path / "y.bin"), slots_of(llm).restore(SLOT, kept)):
            error = refusal(errand)
            assert error.code == BUSY and f"Request {name}" in error.cause
        llm._parts.session.drop([name])
        done(slots_of(llm).save(SLOT, tmp_path / "y.bin"))


@pytest.mark.parametrize("what", ["save", "restore"])
def test_a_request_of_the_slot_in_the_midst_of_it(
    what: str, tiny_model: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied is no longer what is held: told, and nothing is left of it."""
    monkeypatch.setattr(slots_module, "MOST_BYTES", 1)
    waits = list[int]()
    with opened(tiny_model) as llm:

        def other() -> None:
            waits.append(len(waits))
            if len(waits) == 3:
                ask(llm, [5] * 70, session_id=SLOT[1])

        ask(llm, PROMPT, session_id=SLOT[1])
        slots = slots_of(llm)
        errand = slots.save(SLOT, tmp_path / "y.bin") if what == "save" else slots.restore(SLOT, kept)
        assert refusal(errand, other).code == BUSY
        assert holdings_of(llm._parts.session.engine.scheduler).tokens(SLOT) >= 64
        slots.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_disk_that_is_full(after: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all, left = slot_file.write_all, [after]

    def failing(file: int, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write_all(file, data)

    with opened(tiny_model) as llm:
        ask(llm, PROMPT, session_id=SLOT[1])
        with monkeypatch.context() as patch:
            patch.setattr(slot_file, "write_all", failing)
            with pytest.raises(PeltonError, match=r"not saved as x.bin: No space left .* slot_save_path"):
                done(slots_of(llm).save(SLOT, tmp_path / "x.bin"))
        with pytest.raises(PeltonError, match="No such file"):
            done(slots_of(llm).save(SLOT, tmp_path / "gone" / "x.bin"))
        done(slots_of(llm).save(SLOT, tmp_path / "x.bin"))
        done(slots_of(llm).restore(SLOT, tmp_path / "x.bin"))


def test_a_folder_is_no_file(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with opened(tiny_model) as llm:
        ask(llm, PROMPT, session_id=SLOT[1])
        for told in (slots_of(llm).save, slots_of(llm).restore):
            error = refusal(told(SLOT, tmp_path / "folder"))
            assert error.param == "filename" and "folder" in error.cause
        assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_nothing_held_is_nothing_to_save(tiny_model: Path, tmp_path: Path) -> None:
    with opened(tiny_model) as llm:
        assert refusal(slots_of(llm).save(SLOT, tmp_path / "x.bin")).code == EMPTY
        ask(llm, PROMPT, session_id=SLOT[1])
        llm.reset_prefix_cache()
        assert refusal(slots_of(llm).save(SLOT, tmp_path / "x.bin")).code == EMPTY
    with opened(tiny_model, enable_prefix_caching=False) as llm:
        for errand in (slots_of(llm).save(SLOT, tmp_path / "x"), slots_of(llm).restore(SLOT, tmp_path / "x")):
            assert "enable_prefix_caching" in refusal(errand).remedy


def test_pieces_are_whole_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MOST_BYTES", 10)
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (3, 1), (4, 0), (4, 1), (5, 0)]
    found = list(pieces(places, (4, 3)))
    assert [place for piece in found for place in piece] == places
    assert [sorted({entry for entry, _ in piece}) for piece in found] == [[0], [1, 2], [3, 4], [5]]
    assert list(pieces([], (4, 3))) == []
    monkeypatch.setattr(slots_module, "MOST_BYTES", 1)
    assert [len(piece) for piece in pieces(places, (4, 3))] == [2, 2, 1, 1, 2, 1]


def test_errands_take_turns_and_a_bug_ends_only_its_own() -> None:
    woken = list[str]()
    errands = Errands(lambda: woken.append("woken"))

    def errand(name: str) -> Errand:

        waits: Future[str] = Future()
        waits.set_result(name)
        told = yield waits
        if told == "bad":
            raise ZeroDivisionError
        return told.encode()

    for number, name in enumerate(("a", "bad", "c")):
        errands.add(number, errand(name))
    over = list[tuple[int, bytes | Exception]]()
    while errands:
        assert errands.ready
        if (one := errands.advance()) is not None:
            over.append(one)
    assert over[0] == (0, b"a") and over[2] == (2, b"c") and isinstance(over[1][1], ZeroDivisionError)
    assert len(woken) == 3 and not errands.ready and errands.advance() is None


def test_blocks_that_were_bad_are_overwritten_and_not_cleared_later(tiny_model: Path, kept: Path) -> None:
    with opened(tiny_model, num_blocks=12) as llm:
        plain = ask(llm, PROMPT)
        llm.reset_prefix_cache()
        blocks = holdings_of(llm._parts.session.engine.scheduler).blocks
        blocks.poison((0, block) for block in range(1, 13))
        done(slots_of(llm).restore(SLOT, kept))
        assert ask(llm, PROMPT) == plain


def test_what_is_given_up_for_it_does_not_go_to_files_as_something_else(
    tiny_model: Path, kept: Path, tmp_path: Path
) -> None:
    """The blocks that it takes were to be saved by the next step, which comes too late."""
    prompts = [[number + 1] * 70 + PROMPT[:30] for number in range(6)]
    with opened(tiny_model) as llm:
        plain = [ask(llm, prompt) for prompt in prompts]
    with opened(tiny_model, num_blocks=12, kv_disk_bytes=1 << 26, kv_disk_folder=str(tmp_path)) as llm:
        tiers = llm._parts.session.engine.scheduler.tiers
        tiers.on_idle = None  # else they are in files already
        found = [ask(llm, prompt) for prompt in prompts[:4]]

        done(slots_of(llm).restore(SLOT, kept))
        found += [ask(llm, prompt) for prompt in prompts[4:]]
        assert found == plain == [ask(llm, prompt) for prompt in prompts]
        assert llm._parts.session.engine.scheduler.stats().disk_rejected_total == 0
