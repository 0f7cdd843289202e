"""bench/peers: turns, what is stopped meanwhile, what does not count, what is told, and that nothing stays behind."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytest.importorskip("pelton.backends.cpu._native")
from bench import record
from bench.peers import __main__ as peers
from bench.peers import duel, plan, process, table
from bench.peers.ask import Prompts
from bench.peers.duel import met, summary, unit_of
from bench.peers.duel import spread as spread_of
from bench.peers.engines import Command, FreshServer, Limits, Server, Setup, Shop, Worker, free_port
from bench.peers.install import (
    Place,
    Recipe,
    Skip,
)
from bench.peers.plan import BF16, FRESH, SERVED, Aim, Contest, Known, Match, Scenario
from bench.peers.process import ProgramError, Programs, session_members
from tests.measure.verify_parts import tiny_talker

FAKE = Path(__file__).with_name("fake_peer.py")
PROBE = dict(plan.KNOWN_PROBE)
ONE = Scenario(
    "decode",
    "one stream",
    "chat",
    (Contest(BF16, "vllm", SERVED, SERVED, Known(100.0), Aim(1.5)),),
    "decode_tok_s",
    4,
    5,
    requests=1,
)


@dataclass
class FakeModels:
    """No files."""

    def weight_bytes(self, precision: str, model: str) -> int:
        return 1_000_000

    def source(self, model: str) -> Path:
        raise Skip("no model")


@dataclass
class FakeShop:
    """Fake engines: ours takes 10 ms a token, the peer 30."""

    place: Place
    programs: Programs
    log: Path
    models: FakeModels = field(default_factory=FakeModels)
    made: list[str] = field(default_factory=list)

    def make(self, setup: Setup) -> Server:
        self.made.append(setup.engine)
        seconds = {plan.PELTON: "0.01", "broken": "no number"}.get(setup.engine, "0.03")
        port = free_port()
        words = (sys.executable, str(FAKE), str(port), str(self.log), setup.engine, seconds)
        kind = FreshServer if setup.how == FRESH else Server
        return kind(setup.engine, Command(words, os.environ, port=port), self.programs, Limits(20, 20))


def state_of(pid: int) -> str:
    """As ps tells it; "" of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@dataclass
class Run:
    """A run of fake engines in a folder."""

    folder: Path
    shop: FakeShop
    probes: list[dict[str, str]] = field(default_factory=list)

    def probe(self) -> dict[str, float]:
        """What each engine was doing while the machine was probed."""
        states = {}
        for line in self.asked():
            name, child = line.split()[:2]
            states[name] = state_of(int(child))
        self.probes.append(states)
        return dict(PROBE)

    def asked(self) -> list[str]:
        return self.shop.log.read_text().splitlines() if self.shop.log.exists() else []

    def measured(self) -> list[str]:
        """Who was asked for a whole answer, in order."""
        return [line.split()[0] for line in self.asked() if line.split()[2] != "1"]

    def __call__(self, scenario: Scenario, pairs: int = 3) -> dict[str, object]:
        given = peers.Given(pairs, 10, True, self.shop, {"vllm": FINE, "broken": FINE}, self.probe)  # type: ignore[arg-type]
        (line,) = peers.run([Match(scenario, scenario.contests[0])], given)
        return line


def no_steps(place: Place, name: str) -> None:
    """Nothing to install."""


FINE = Recipe(0, (), no_steps)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path / "logs") as started:
        yield started


@pytest.fixture
def run(tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(peers, "prompts_of", lambda shop, model: Prompts(str.split))
    monkeypatch.setattr(peers, "install", lambda place, name, recipe: {"fake": "1.0"})
    monkeypatch.setattr(process, "SETTLE_SECONDS", 0.0)
    place = Place(tmp_path / "peers", 20, programs)
    return Run(tmp_path, FakeShop(place, programs, tmp_path / "asked.log"))


def test_turns_with_whoever_is_not_measured_stopped(run: Run, tmp_path: Path) -> None:
    line = run(ONE)
    # Each is asked once before the pairs; then they alternate, ours first, with a probe around each block.
    assert run.measured() == ["pelton", "vllm"] * 4
    assert run.probes == [{"pelton": "T", "vllm": "T"}] * 9
    prompts = [entry.split(None, 3)[3] for entry in run.asked() if entry.split()[2] != "1"]
    assert prompts[2::2] == prompts[3::2] and len(set(prompts[2:])) == 3
    figures = line["figures"]
    assert isinstance(figures, dict) and len(figures["pairs"]) == 3
    assert figures["ratio"]["median"] > 1 and figures["ours"]["decode_tok_s"]["pairs"] == 3
    (kept,) = (tmp_path / "results" / "peers.jsonl").read_text().splitlines()
    assert json.loads(kept)["settings"]["workload"] == "chat" and "cpu" in json.loads(kept)["machine"]
    assert str(tmp_path) not in kept and json.loads(kept)["settings"]["versions_of_peer"] == {"fake": "1.0"}


def test_nothing_is_left(run: Run) -> None:
    run(ONE, 1)
    children = {int(entry.split()[1]) for entry in run.asked()}
    assert len(children) == 2
    assert all(state_of(child) in ("", "Z") for child in children)


@pytest.mark.parametrize(
    ("read", "vector", "flagged"),
    [(2e9, 0.33e12, False), (900e9, 0.33e12, True), (900e9, 0.033e12, False), (20e9, 9e12, True)],
)
def test_a_peer_below_its_known_figure_does_not_count(run: Run, read: float, vector: float, flagged: bool) -> None:
    """It makes about 30 tokens a second; known are 100, at 20 GB/s and 0.33 TFLOP/s, of which the lesser decides."""
    found = run.probe
    run.probe = lambda: {**found(), plan.READ: read, plan.VECTOR: vector}  # type: ignore[method-assign]
    figures = run(ONE, 1)["figures"]
    assert isinstance(figures, dict)
    assert ("flag" in figures) is flagged
    if flagged:
        assert "less than 85%" in figures["flag"] and "does not count" in figures["flag"]


def test_a_known_figure_grows_by_the_lesser_of_two_factors() -> None:
    by_tiles = replace(ONE.contests[0], known=Known(100.0, plan.MATRIX))
    slow = Match(replace(ONE, less=True), by_tiles)
    twice = {plan.READ: 40e9, plan.VECTOR: 0.99e12, plan.MATRIX: 11.2e12}
    assert plan.known_now(slow, twice) == pytest.approx(50.0)
    assert plan.known_now(slow, {**twice, plan.MATRIX: 5.6e12}) == pytest.approx(100.0)
    assert plan.known_now(Match(ONE, ONE.contests[0]), twice) == pytest.approx(200.0)
    assert plan.known_now(Match(ONE, ONE.contests[0]), {plan.READ: 40e9}) is None
    assert plan.known_now(Match(ONE, replace(by_tiles, known=None)), twice) is None


def test_without_a_matrix_unit_what_needs_one_is_not_checked(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    contest = replace(ONE.contests[0], known=Known(1e6, plan.MATRIX))
    run.probe = lambda: {plan.READ: 20e9, plan.VECTOR: 0.33e12}  # type: ignore[method-assign]
    figures = run(replace(ONE, contests=(contest,)), 1)["figures"]
    assert isinstance(figures, dict) and "flag" not in figures and "peer_share_of_known" not in figures
    assert figures["not_checked"] == "known figure needs a matrix unit: not checked"
    assert "known figure needs a matrix unit: not checked" in capsys.readouterr().out


def test_which_unit_a_probed_instruction_tells_of() -> None:
    named = {"avx2 fp32 fma": plan.VECTOR, "neon fp32 fma": plan.VECTOR, "amx bf16 tiles": plan.MATRIX}
    others = ("avx512 bf16 dot", "avx512 int8 dot", "amx int8 tiles")
    assert {name: unit_of(name) for name in (*named, *others)} == {**named, **dict.fromkeys(others)}


def test_a_figure_that_is_missing_is_no_fault_of_ours(run: Run) -> None:
    figures = run(replace(ONE, figure="what_nobody_tells"), 1)["figures"]
    assert figures == {"skipped": "it failed: ours gave no what_nobody_tells"}


def test_an_engine_that_fails_is_skipped_with_its_words(run: Run) -> None:
    broken = replace(ONE, contests=(replace(ONE.contests[0], peer="broken"),))
    figures = run(broken)["figures"]
    assert isinstance(figures, dict)
    assert figures["skipped"].startswith("it failed: broken ended at its start") and "no number" in figures["skipped"]


def test_each_pair_is_of_processes_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def processes(scenario: Scenario) -> dict[str, int]:
        """How many of each, after its starts in the record and that each was asked once before it counts."""
        run.shop.log.write_text("")
        figures = run(scenario)["figures"]
        pids = {name: [line.split()[1] for line in run.asked() if line.startswith(name)] for name in ("pelton", "vllm")}
        found = {name: len(set(its)) for name, its in pids.items()}
        assert isinstance(figures, dict)
        assert figures["starts"] == {"ours": found["pelton"], "theirs": found["vllm"]}
        assert [len(its) for its in pids.values()] == [2 * count + 3 for count in found.values()]
        assert run.measured()[2:4] == ["pelton", "vllm"] and run.probes[-1] == {"pelton": "T", "vllm": "T"}
        return found

    assert processes(replace(ONE, restarts=True)) == {"pelton": 3, "vllm": 3}
    monkeypatch.setattr(duel, "RESTART_SECONDS", 0.0)  # every peer takes longer
    assert processes(replace(ONE, restarts=True)) == {"pelton": 3, "vllm": 1}
    assert processes(ONE) == {"pelton": 1, "vllm": 1}


def test_starts_are_measured_from_a_fresh_process(run: Run) -> None:
    contest = Contest(BF16, "vllm", FRESH, FRESH, None, Aim(1))
    start = replace(ONE, contests=(contest,), figure="start_s", beside=("peak_rss_mib",), kind="start", less=True)
    figures = run(start, 2)["figures"]
    assert isinstance(figures, dict)
    assert figures["ours"]["start_s"]["min"] > 0.02 and figures["theirs"]["peak_rss_mib"]["min"] > 5
    assert len({entry.split()[1] for entry in run.asked()}) == 4


def test_beside_a_busy_process(run: Run) -> None:
    told = ("quiet_tok_s", "busy_tok_s")
    disturbed = replace(ONE, figure="share_of_quiet", beside=told, kind="disturbed")
    figures = run(disturbed, 1)["figures"]
    assert isinstance(figures, dict)
    assert 0.1 < figures["ours"]["share_of_quiet"]["median"] < 5
    assert figures["ours"]["quiet_tok_s"]["median"] > figures["ours"]["busy_tok_s"]["median"] / 5


def test_an_answer_beside_a_busy_process_is_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours has made its 20 tokens by then; the peer, at 30 ms each, has not."""
    monkeypatch.setattr(duel, "BUSY_SECONDS", 0.4)
    monkeypatch.setattr(duel, "disturber", lambda: Command((sys.executable, "-c", "input()"), os.environ))
    busy = replace(ONE, output=20, figure="share_of_quiet", beside=("busy_tok_s",), kind="disturbed")
    figures = run(busy, 1)["figures"]
    assert isinstance(figures, dict)
    assert figures["bounds"].startswith("the peer's rate") and "in 1 of 1 pairs" in figures["bounds"]
    assert 5 < figures["theirs"]["busy_tok_s"]["median"] < 40


def test_the_time_is_kept(run: Run) -> None:
    given = peers.Given(1, 0, False, run.shop, {}, run.probe)  # type: ignore[arg-type]
    (line,) = peers.run([Match(ONE, ONE.contests[0])], given)
    assert "minutes of --minutes are over" in line["figures"]["skipped"] and not run.shop.made
    (kept,) = table.latest([{**line, "figures": {"old": True}}, line])
    assert kept["figures"] == {"old": True}, "a contest that a run did not come to replaces none"
    assert table.latest([kept, {**line, "figures": {"skipped": "it failed"}}])[0]["figures"] == {"skipped": "it failed"}


def test_only_what_is_missing() -> None:
    words = ["--scenarios", "decode", "--peers", "llama.cpp"]
    chosen = peers.chosen_by(peers.parser().parse_args(words), plan.SCENARIOS)
    settings = {"scenario": "decode", "peer": "llama.cpp", "precision": BF16}

    def left(commit: str, figures: dict[str, object]) -> int:
        line = {"settings": settings, "commit": "abc+changes", "figures": figures}
        return len(peers.missing(chosen, [line], commit))

    assert left("abc", {"ratio": {"pairs": 5}}) == left("abc+changes", {"ratio": {"pairs": 5}}) == len(chosen) - 1
    assert left("abd", {"ratio": {"pairs": 5}}) == left("abc", {"skipped": "x"}) == len(chosen)
    assert left("abc", {"ratio": {"pairs": 4}}) == len(chosen)


def test_a_program_that_hears_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.3)
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork(); os.write(1, b'up\\n'); "
    deaf += "time.sleep(600)"
    with pytest.raises(KeyboardInterrupt), Programs(tmp_path) as started:
        program = started.start("deaf", [sys.executable, "-c", deaf], os.environ, talks=True)
        assert program.line(b"up", 20) == b"up"
        program.pause()
        raise KeyboardInterrupt
    assert program.child.returncode == -9
    assert session_members(program.child.pid) == []


def test_a_worker_answers_with_all_tokens(tmp_path: Path, programs: Programs) -> None:
    model = tiny_talker(tmp_path / "model")
    words = (sys.executable, str(FAKE.parents[2] / "bench" / "peers" / "worker.py"), "pelton", str(model), "")
    worker = Worker("w", Command(words, os.environ), programs, Limits(30, 30))
    worker.start()
    try:
        figures = worker.ask(replace(ONE, requests=2), ["one two", "three"])
    finally:
        worker.end()
    assert figures["out_tokens"] == 10 and figures["decode_tok_s"] > 1 and figures["ttft_ms"] > 0
    with pytest.raises(ProgramError, match="does not run"):
        worker.ask(ONE, ["one"])


def test_prompts_have_their_number_of_tokens() -> None:
    def encode(text: str) -> Sequence[int]:
        return [0] + [len(word) for word in text.split()]

    prompts = Prompts(encode)
    scenario = replace(ONE, prompt=50, shared=30, requests=3)
    asked = prompts.of(scenario)
    assert len(encode(prompts.text(9))) == 9
    assert len(set(asked)) == 3 and len({" ".join(text.split()[:29]) for text in asked}) == 1
    assert len(set(prompts.of(scenario)) | set(asked)) == 6


def test_the_plan_has_the_best_peers_first_and_starts_each_pair_of_engines_once() -> None:
    chosen = list(plan.matches(plan.SCENARIOS, None, None))
    first = [(match.contest.best, match.contest.best and match.contest.activations == plan.AS_IS) for match in chosen]
    assert first == sorted(first, reverse=True) and len(set(first)) == 3
    for part in set(first):
        order = [peers.setups(match) for match, its in zip(chosen, first, strict=True) if its == part]
        changes = sum(one != other for one, other in zip(order, order[1:], strict=False))
        assert changes + 1 == len(set(order))
    assert [match.scenario.name for match in chosen[:3]] == ["decode"] * 3
    covered = {match.scenario.name for match, its in zip(chosen, first, strict=True) if its == (True, True)}
    assert covered == {scenario.name for scenario in plan.SCENARIOS}
    assert {scenario.workload for scenario in plan.SCENARIOS} <= {"chat", "ide", "rag", "agent", "batch"}
    aimed = [scenario for scenario in plan.SCENARIOS if scenario.kind != plan.ARRIVAL]  # which is told, and has no aim
    assert all(contest.aim for scenario in aimed for contest in scenario.contests)


def test_only_the_best_peers() -> None:
    def chosen(*words: str) -> list[Match]:
        return peers.chosen_by(peers.parser().parse_args(words), plan.SCENARIOS)

    assert all(match.contest.best for match in chosen("--best")) and len(chosen()) > len(chosen("--best")) + 20
    assert {match.contest.peer for match in chosen("--best", "--scenarios", "prefix")} == {"vllm"}


def test_our_rows_of_8_bits_stand_beside_the_others() -> None:
    """Each contest of theirs has one of ours without them, and they reach our engine and nobody else's."""
    found = dict.fromkeys(("decode", "ttft512", "ttft2048", "ttft7000", "batch8", "batch32", "gemma-prefill"), False)
    for match in plan.matches(plan.SCENARIOS, None, None):
        contest = match.contest
        if contest.activations == plan.AS_IS:
            continue
        found[match.scenario.name] = True
        assert replace(contest, activations=plan.AS_IS) in match.scenario.contests and contest.precision != BF16
        ours, theirs = peers.setups(match)
        assert (ours.activations, theirs.activations) == (plan.INT8_ROWS, plan.AS_IS)
        assert str(match).endswith("ours with int8 rows")
    assert all(found.values())


def test_a_server_and_a_worker_get_our_activations(tmp_path: Path, programs: Programs) -> None:
    class Files(FakeModels):
        def file(self, engine: str, precision: str, model: str) -> Path:
            return tmp_path / "q8_0.gguf"

        def tokenizer(self, engine: str, model: str) -> Path:
            return Path()

    shop = Shop(Place(tmp_path, 1, programs), Files(), programs)  # type: ignore[arg-type]
    for how in (SERVED, plan.WORKER):
        commands = [
            shop.make(Setup(plan.PELTON, how, plan.INT8, plan.SMOLLM2, activations=rows)).told()["command"]
            for rows in (plan.AS_IS, plan.INT8_ROWS)
        ]
        assert ["int8" in str(command).split() for command in commands] == [False, True]


def test_what_is_unknown_is_named() -> None:
    given = peers.parser().parse_args(["--scenarios", "decode,nothing"])
    with pytest.raises(SystemExit, match="'nothing' is none of arrival, batch32"):
        peers.chosen_by(given, plan.SCENARIOS)
    assert "mistralrs" in peers.listing() and "minutes" in peers.dry_run(plan.matches(plan.SCENARIOS, None, None), 5)


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median / 2, "max": median * 2, "pairs": 5}


def test_the_table_names_the_best_peer_and_what_is_skipped() -> None:
    settings = {"scenario": "decode", "precision": BF16, "how": SERVED, "figure": "decode_tok_s"}

    def line(peer: str, ratio: float, **more: object) -> dict[str, object]:
        figures = {
            "ours": {"decode_tok_s": spread(100)},
            "theirs": {"decode_tok_s": spread(80)},
            "ratio": spread(ratio),
        }
        aim = {"least": 1.2, "of": plan.RATIO}
        return {"settings": {**settings, "peer": peer, "aim": aim}, "figures": {**figures, **more}}

    lines = [line("a", 9.0), line("a", 1.3), line("b", 1.1), line("c", 1.0, flag="set up wrong?")]
    lines.append({"settings": {**settings, "peer": "d"}, "figures": {"skipped": "no wheel"}})
    told = table.table(table.latest(lines)).splitlines()
    assert len(told) == 6 and "pairs" not in "".join(told[2:])
    assert "(chat)" in told[2] and "1.30 [0.65-2.60]" in told[2] and "met" not in told[2]
    assert "best peer: not met" in told[3] and "set up wrong?" in told[4] and "skipped: no wheel" in told[5]


def test_the_table_has_a_verdict_for_each_of_our_ways() -> None:
    def line(activations: str, ratio: float, pairs: int = 5) -> dict[str, object]:
        aim = {"least": 1.1, "of": plan.RATIO}
        named = {"scenario": "decode", "precision": plan.INT4, "peer": "a", "how": SERVED, "figure": "decode_tok_s"}
        settings = {**named, "aim": aim, "activations_ours": activations}
        speeds = {side: {"decode_tok_s": spread(100)} for side in ("ours", "theirs")}
        doubt = {"not_checked": "known figure needs a matrix unit: not checked"}
        return {"settings": settings, "figures": {**speeds, "ratio": {**spread(ratio), "pairs": pairs}, **doubt}}

    told = table.table(table.latest([line(plan.AS_IS, 1.0), line(plan.INT8_ROWS, 1.3, 3)])).splitlines()[2:]
    assert "| 4 bit |" in told[0] and "best peer: not met; known figure needs a matrix unit: not checked" in told[0]
    assert "| 4 bit; our rows in 8 bits |" in told[1] and "best peer: met with int8 rows; only 3 of 5 pairs" in told[1]


def test_tables_are_put_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"ms": {"exact": 4.2, "fma": 4.0}, "fastest_variant": "fma", "cost": 0.05, "interval_95": [0.04, 0.06]}
    machine = {"cpu": "X", "cores": 2, "isa": "avx2"}
    line = {"date": "d", "commit": "c", "machine": machine, "figures": {"1": {**row, "blocks": 40}, "64": row}}
    line["figures"]["64"]["blocks"] = 40  # type: ignore[index]
    (tmp_path / "exactness.jsonl").write_text(json.dumps(line))
    file = tmp_path / "numbers.md"
    file.write_text("front\n<!-- table: exactness -->\nold\n<!-- end -->\nback\n")
    monkeypatch.setattr(sys, "argv", ["table", "--results", str(tmp_path), "--into", str(file)])
    for _ in range(2):
        table.main()
        text = file.read_text()
        assert text.startswith("front\n") and text.endswith("<!-- end -->\nback\n") and "old" not in text
        assert text.count("| 1 (chat, ide) | 4.20 | fma, 4.00 | +5.0% | +4.0% to +6.0% | 40 |") == 1
        assert "64 (batch)" in text and "X, 2 cores, avx2" in text
    with pytest.raises(ValueError, match="no <!-- table: peers -->"):
        table.into("text", "peers", "filling")


def test_a_quick_look_is_short_and_says_that_it_says_little(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    match = peers.shortened(Match(replace(ONE, prompt=7000, output=256), ONE.contests[0]))
    assert match.scenario.prompt == 64 and match.scenario.output == 8 and match.contest.known is None
    run(match.scenario, 1)
    told = capsys.readouterr().out
    assert told.startswith("decode bf16 vllm: ") and "decode_tok_s" in told and "only 1 of 5 pairs" in told


def test_a_command_is_told_without_folders() -> None:
    command = Command(("/a/b/vllm", "serve", "/c/model", "--port", "81"), {}, {"LD_PRELOAD": "/x/a.so:/y/b.so"}, 81)
    assert command.told() == {"command": "vllm serve model --port PORT", "variables": {"LD_PRELOAD": "a.so:b.so"}}


def test_other_precisions_come_from_the_same_weights(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np
    from bench.peers.convert import write_gguf

    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("n", weights[0])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    source = gguf.GGUFReader(tmp_path / "a.gguf")
    held = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    for name, tolerance in (("bf16", 2**-8), ("f16", 2**-11), ("q8_0", 2**-6)):
        write_gguf(source, name, tmp_path / f"{name}.gguf")
        made = gguf.GGUFReader(tmp_path / f"{name}.gguf")
        assert made.fields["llama.context_length"].contents() == 77
        assert made.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
        tensors = {tensor.name: tensor for tensor in made.tensors}
        found = gguf.quants.dequantize(tensors["w"].data, tensors["w"].tensor_type)
        assert np.allclose(found, held, rtol=0, atol=tolerance * np.abs(held).max())
        assert np.array_equal(tensors["n"].data, weights[0])


def test_waiting_ends_when_the_program_has(programs: Programs) -> None:
    program = programs.start("short", [sys.executable, "-c", "print('x')"], os.environ, talks=True)
    start = time.monotonic()
    assert program.line(b"y", 20) is None and time.monotonic() - start < 15


def pair(
    ours: float, theirs: float, read: tuple[float, float, float] = (2e9, 4e9, 90e9), **more: float
) -> dict[str, object]:
    """One pair of a contest in decode_tok_s, with probes before, between and behind."""
    probes = [{plan.READ: one} for one in read]
    figures = {"ours": {"decode_tok_s": ours}, "theirs": {"decode_tok_s": theirs}}
    return {**figures, "probes": probes, "ratio": ours / theirs, **more}


def test_a_summary_is_of_medians_and_of_what_stood_around_our_block() -> None:
    match = Match(ONE, ONE.contests[0])
    pairs = [pair(30, 10), pair(60, 10), pair(10, 10)]
    told = summary(match, pairs, 10_000_000)
    assert told["ratio"] == {"median": 3.0, "min": 1.0, "max": 6.0, "pairs": 3}
    assert told["ours"] == {"decode_tok_s": {"median": 30, "min": 10, "max": 60, "pairs": 3}}
    # 30 tokens/s of 10 MB each at (2 + 4) / 2 GB/s: the probe behind the peer's block has nothing to do with it.
    share = told["our_share_of_reading"]
    assert isinstance(share, dict) and share["median"] == pytest.approx(0.1)
    assert spread_of([1.0, 2.0, 9.0])["median"] == 2.0


def test_a_median_below_the_known_figure_is_flagged() -> None:
    """Whatever the best pair was."""
    match = Match(ONE, ONE.contests[0])
    for shares, flagged in (((0.5, 0.6, 2.0), True), ((0.5, 0.9, 2.0), False)):
        told = summary(match, [pair(3, 1, peer_share_of_known=share) for share in shares], None)
        assert ("flag" in told) is flagged, shares


def test_an_aim_is_of_the_ratio_or_of_our_own_figure() -> None:
    figures = {"ours": {"x": {"median": 0.5}}, "ratio": {"median": 1.3}}
    found = [met(aim, figures, "x") for aim in (Aim(1.2), Aim(1.4), Aim(0.4, plan.OURS), Aim(0.6, plan.OURS), None)]  # type: ignore[arg-type]
    assert found == [True, False, True, False, None]


def test_less_is_better_where_it_is() -> None:
    """Of seconds the peer's known ones over those that it took."""
    assert replace(ONE, less=True).better(2.0, 6.0) == 3.0 and ONE.better(6.0, 2.0) == 3.0


def test_a_peer_that_takes_longer_than_known_does_not_count(run: Run) -> None:
    slow = replace(ONE.contests[0], known=Known(1.0))
    scenario = replace(ONE, contests=(slow,), figure="ttft_ms", less=True)
    figures = run(scenario, 1)["figures"]
    assert isinstance(figures, dict) and "flag" in figures and figures["peer_share_of_known"]["median"] < 0.85
    scenario = replace(scenario, contests=(replace(slow, known=Known(1e6)),))
    figures = run(scenario, 1)["figures"]
    assert isinstance(figures, dict) and "flag" not in figures and figures["peer_share_of_known"]["median"] > 1


def test_a_known_figure_is_scaled_by_the_probes_around_the_peer(run: Run) -> None:
    """Of three probes the last two."""
    reads = iter([1e9, 20e9, 20e9])
    run.probe = lambda: {plan.READ: next(reads), plan.VECTOR: 9e12}  # type: ignore[method-assign]
    figures = run(replace(ONE, contests=(replace(ONE.contests[0], known=Known(1.0)),)), 1)["figures"]
    assert isinstance(figures, dict) and figures["peer_share_of_known"]["median"] > 10
    theirs = figures["theirs"]["decode_tok_s"]["median"]
    assert figures["peer_share_of_known"]["median"] == pytest.approx(theirs, rel=0.01)


def test_a_verdict_is_of_the_median_and_of_rivals_that_count() -> None:
    def line(peer: str, ratio: float, precision: str = BF16, of: str = plan.RATIO, **more: object) -> dict[str, object]:
        named = {"scenario": "decode", "precision": precision, "peer": peer, "how": SERVED, "figure": "decode_tok_s"}
        figures = {side: {"decode_tok_s": spread(1.0)} for side in ("ours", "theirs")}
        return {
            "settings": {**named, "aim": {"least": 1.2, "of": of}},
            "figures": {**figures, "ratio": spread(ratio), **more},
        }

    # Extremes are half and twice the median: 1.1 is not met though 2.2 was seen. What is flagged is no rival.
    lines = [line("a", 1.1), line("b", 0.9, flag="set up wrong?"), line("c", 0.8, plan.INT8), line("d", 5.0)]
    told = table.table(table.latest(lines)).splitlines()[2:]
    said = {row.split("|")[3].strip()[0]: row.split("|")[8] for row in told}
    assert "best peer: not met" in said["a"] and "best peer" in said["c"]
    assert "set up wrong?" in said["b"] and "best peer" not in said["b"] and "best peer" not in said["d"]
    (own,) = table.table(table.latest([line("e", 9.0, of=plan.OURS)])).splitlines()[2:]
    assert own.split("|")[8].strip().startswith("not met"), "the median of 1.0, not the largest of 2.0"
    assert "1.00 [0.50-2.00]" in own


def test_the_last_line_of_exactness_is_told() -> None:
    row = {"ms": {"exact": 4.2, "fma": 4.0}, "fastest_variant": "fma", "interval_95": [0.04, 0.06], "blocks": 40}
    told = table.exactness([{"figures": {"1": {**row, "cost": cost}}} for cost in (0.5, -0.05)])
    assert "| -5.0% |" in told and "50.0%" not in told


def test_all_that_is_under_way_at_once_is_warmed(run: Run) -> None:
    scenario = replace(ONE, requests=4, concurrency=3)
    run(scenario, 1)
    assert run.measured()[:6] == ["pelton"] * 3 + ["vllm"] * 3 and len(run.measured()) == 6 + 8


def test_who_disturbs_is_ended_and_the_share_is_of_the_quiet_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = run.folder / "disturbers"
    code = f"import os, time; open({str(noted)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    monkeypatch.setattr(duel, "disturber", lambda: Command((sys.executable, "-c", code), os.environ))
    told = ("quiet_tok_s", "busy_tok_s")
    figures = run(replace(ONE, figure="share_of_quiet", beside=told, kind="disturbed"), 1)["figures"]
    assert isinstance(figures, dict)
    for side in ("ours", "theirs"):
        share, quiet, busy = (figures[side][name]["median"] for name in ("share_of_quiet", *told))
        assert share == pytest.approx(busy / quiet, abs=1e-3)
    pids = [int(line) for line in noted.read_text().split()]
    assert len(pids) == 2 and all(state_of(pid) in ("", "Z") for pid in pids)


def test_a_figure_of_zero_is_no_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "ask", lambda self, scenario, prompts: {"decode_tok_s": 0.0})
    assert run(ONE, 1)["figures"] == {"skipped": "it failed: ours gave no decode_tok_s"}


def test_only_the_peers_that_are_named() -> None:
    found = peers.chosen_by(peers.parser().parse_args(["--peers", "vllm"]), plan.SCENARIOS)
    assert {match.contest.peer for match in found} == {"vllm"}
