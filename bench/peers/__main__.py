"""Pelton beside other engines, in turns, on this machine: python -m bench.peers [--peers ...] [--scenarios ...]

Installs each peer in an environment of its own (from PyPI), makes the model files once, and measures contest after
contest: ours, the peer, ours, the peer, ... at least five pairs, each block between two probes of the machine, whoever
is not measured stopped. It appends a JSON line for each contest to bench/results/peers.jsonl and prints a table. What
cannot be had is skipped, with the reason. From the project's folder, in an environment where Pelton is installed.
"""

import argparse
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import record
from bench.peers import table
from bench.peers.ask import Prompts
from bench.peers.duel import BUSY_SECONDS, MachineProbe, ProbeMachine, Sides, Surroundings, duel
from bench.peers.engines import Engine, Limits, Setup, Shop
from bench.peers.install import RECIPES, Place, Recipe, Skip, install
from bench.peers.models import Models
from bench.peers.plan import (
    AS_IS,
    EACH_BLOCK,
    GEMMA,
    LEAST_PAIRS,
    LLAMA,
    PELTON,
    SCENARIOS,
    SERVED,
    SMOLLM2,
    Match,
    Scenario,
    matches,
)
from bench.peers.process import ProgramError, Programs

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.environment import cache_folder
from pelton.core.errors import PeltonError
from pelton.tokenize.tokenizer import build_tokenizer

NAME = "peers"
QUICK_PROMPT, QUICK_OUTPUT, QUICK_REQUESTS = 64, 8, 4
START_GUESS_SECONDS = {"vllm": 120.0}  # of a server; the others start within seconds
RESTART_GUESS_SECONDS = 2.0


@dataclass(frozen=True)
class Given:
    """The command's settings, and what tests replace."""

    pairs: int
    minutes: float
    keep: bool
    shop: Shop
    recipes: Mapping[str, Recipe]
    probe: ProbeMachine


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--peers", "--only", type=_names, help="some of those that --list tells, with commas")
    flags.add_argument("--scenarios", type=_names, help="some of those that --list tells, with commas")
    flags.add_argument("--best", action="store_true", help="of each aim only its best peer, as far as that is known")
    flags.add_argument("--missing", action="store_true", help="only what bench/results lacks a figure of this commit")
    flags.add_argument("--pairs", type=int, default=LEAST_PAIRS, help=f"of each contest (default: {LEAST_PAIRS})")
    flags.add_argument("--folder", type=Path, default=cache_folder() / "bench-peers", help="environments and models")
    flags.add_argument("--smollm2", type=Path, help="the GGUF file in 4 bits, where it is not to be pulled")
    flags.add_argument("--gemma3", type=Path, help="the GGUF file in Q4_K_M, where it is not to be pulled")
    flags.add_argument("--pelton-flags", default="", help="further flags of pelton serve")
    flags.add_argument("--minutes", type=float, default=240, help="after these no further contest begins (240)")
    flags.add_argument("--block-seconds", type=float, default=300, help="longest block of requests (300)")
    flags.add_argument("--start-seconds", type=float, default=600, help="longest start of an engine (600)")
    flags.add_argument("--install-seconds", type=float, default=3600, help="longest step of an installation (3600)")
    flags.add_argument("--install-only", action="store_true", help="make environments and models, measure nothing")
    flags.add_argument("--list", action="store_true", help="tell peers, scenarios and aims, and end")
    flags.add_argument("--dry-run", action="store_true", help="tell what would be measured, in which order, and end")
    flags.add_argument(
        "--quick", action="store_true", help="one short pair each, kept nowhere: whether all of it works"
    )
    flags.add_argument("--no-record", action="store_true", help="keep nothing in bench/results")
    return flags


def _names(text: str) -> set[str]:
    return {name for name in text.split(",") if name}


def listing() -> str:
    """Peers, scenarios and aims."""
    lines = [f"peers      {', '.join(sorted(RECIPES))} (tools: makes the model files)"]
    for scenario in SCENARIOS:
        lines.append(f"{scenario.name:<14} {scenario.says} [{scenario.workload}]")
        for contest in scenario.contests:
            aim = f"aim {contest.aim.least:g} of the {contest.aim.of}" if contest.aim else "no aim"
            rows = f"; ours with {contest.activations} rows" if contest.activations != AS_IS else ""
            best = "; best peer" if contest.best else ""
            lines.append(f"{'':<14}   {contest.precision:<7} {contest.peer}, {contest.how}; {aim}{rows}{best}")
    return "\n".join(lines)


def known_or_like(match: Match) -> float | None:
    """What is known of the peer, or of the same one in another precision; for a guess it will do."""
    contests = (match.contest, *match.scenario.contests)
    like = [one.known.figure for one in contests if one.peer == match.contest.peer and one.known is not None]
    return like[0] if like else None


def seconds_of(match: Match, pairs: int) -> float:
    """A rough guess from the known figures, for people who plan an evening."""
    scenario = match.scenario
    known = known_or_like(match)
    tokens = scenario.requests * scenario.output
    if scenario.kind == "start":
        block = 2.0
    elif scenario.figure == "wall_s":
        block = known or 10.0
    elif scenario.figure == "ttft_ms":
        block = scenario.requests * (known or scenario.prompt) / 1000
    else:
        block = tokens / (known or 60)
    seconds = (pairs + 1) * (1.6 * block + 1.0)
    if scenario.kind == "disturbed":
        seconds += pairs * BUSY_SECONDS
    if scenario.restarts:
        theirs = match.contest.how not in EACH_BLOCK and match.contest.peer not in START_GUESS_SECONDS
        seconds += (pairs - 1) * (1 + theirs) * (0.8 * block + RESTART_GUESS_SECONDS)
    return seconds


def setups(match: Match) -> tuple[Setup, Setup]:
    """Ours and the peer's."""
    scenario, contest = match.scenario, match.contest
    slots = scenario.concurrency if contest.peer == LLAMA and contest.how == SERVED else 1
    return (
        Setup(PELTON, contest.ours, contest.precision, scenario.model, activations=contest.activations),
        Setup(contest.peer, contest.how, contest.precision, scenario.model, slots),
    )


class Running:
    """The two engines that are up, kept over contests that need the same ones."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._up: dict[Setup, Engine] = {}
        self._seconds: dict[Setup, float] = {}  # of a start

    def sides(self, match: Match) -> Sides:
        """Those of a contest, paused; others are ended first. Skip or ProgramError where one does not start."""
        wanted = setups(match)
        self.keep_only(set(wanted))
        for setup in wanted:
            if setup not in self._up:
                engine = self._shop.make(setup)
                start = time.monotonic()
                try:
                    engine.start()
                except BaseException:
                    engine.end()
                    raise
                self._seconds[setup] = time.monotonic() - start
                engine.pause()
                self._up[setup] = engine
        ours, theirs = wanted
        return Sides(self._up[ours], self._up[theirs], self._seconds[theirs])

    def keep_only(self, wanted: set[Setup]) -> None:
        """Ends the others."""
        for setup in [setup for setup in self._up if setup not in wanted]:
            self._up.pop(setup).end()


def prompts_of(shop: Shop, model: str) -> Prompts:
    """Made with the model's own tokenizer."""
    tokenizer = build_tokenizer(open_checkpoint(str(shop.models.source(model))))
    return Prompts(tokenizer.encode_prompt)


class _Late(Skip):
    """The time was over before the contest."""


def run(chosen: Sequence[Match], given: Given) -> list[dict[str, Any]]:
    """Every contest; its line is kept as soon as it is measured."""
    start = time.monotonic()
    running = Running(given.shop)
    prompts: dict[str, Prompts] = {}
    lines = []
    for match in chosen:
        before = record.machine()
        try:
            if time.monotonic() - start > given.minutes * 60:
                raise _Late(f"the {given.minutes:g} minutes of --minutes are over")
            versions = install(given.shop.place, match.contest.peer, given.recipes[match.contest.peer])
            if match.scenario.model not in prompts:
                prompts[match.scenario.model] = prompts_of(given.shop, match.scenario.model)
            figures, told = _measure(match, running, given, prompts[match.scenario.model])
        except Skip as reason:
            late = {table.NOT_REACHED: True} if isinstance(reason, _Late) else {}
            figures, told, versions = {"skipped": str(reason), **late}, {}, {}
        except (ProgramError, PeltonError, OSError, ValueError) as error:
            running.keep_only(set())  # whatever failed may have left an engine in any state
            figures, told, versions = {"skipped": f"it failed: {error}"}, {}, {}
        settings = _settings(match, {**told, "versions_of_peer": versions})
        lines.append({"settings": settings, "figures": figures})
        _tell(match, figures)
        if given.keep:
            record.keep(NAME, settings, figures, before)
    running.keep_only(set())
    return lines


def _measure(match: Match, running: Running, given: Given, prompts: Prompts) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures, what is told of both engines)."""
    sides = running.sides(match)
    weights = given.shop.models.weight_bytes(match.contest.precision, match.scenario.model)
    around = Surroundings(prompts, given.probe, given.shop.programs, given.pairs, weights)
    figures = duel(match, sides, around)
    return figures, {"ours": sides.ours.told(), "theirs": sides.theirs.told()}


def _settings(match: Match, told: dict[str, Any]) -> dict[str, object]:
    scenario, contest = match.scenario, match.contest
    return {
        "scenario": scenario.name,
        "workload": scenario.workload,
        "model": scenario.model,
        "figure": scenario.figure,
        "precision": contest.precision,
        "peer": contest.peer,
        "how": contest.how,
        "how_ours": contest.ours,
        "activations_ours": contest.activations,
        "aim": asdict(contest.aim) if contest.aim else None,
        **told,
    }


def _tell(match: Match, figures: Mapping[str, Any]) -> None:
    """One line for people as soon as there is something."""
    if "skipped" in figures:
        print(f"{match}: skipped: {figures['skipped']}", flush=True)
        return
    ratio = figures["ratio"]
    name = match.scenario.figure
    ours, theirs = (figures[side][name]["median"] for side in ("ours", "theirs"))
    told = f"{ratio['median']:.2f}x [{ratio['min']:.2f}-{ratio['max']:.2f}], {name} {ours:,.5g} to {theirs:,.5g}"
    few = f"only {ratio['pairs']} of {LEAST_PAIRS} pairs" if ratio["pairs"] < LEAST_PAIRS else ""
    print("; ".join(part for part in (f"{match}: {told}", few, *_doubts(figures)) if part), flush=True)


def _doubts(figures: Mapping[str, Any]) -> list[str]:
    return [str(figures[name]) for name in ("flag", "not_checked", "bounds") if name in figures]


def dry_run(chosen: Iterable[Match], pairs: int) -> str:
    """What would be measured, and about how long it takes where engines are as fast as on the machine of the plan."""
    lines, total = [], 0.0
    for key, group in itertools.groupby(chosen, key=setups):
        start = START_GUESS_SECONDS.get(key[1].engine, 5.0)
        lines.append(f"start {_named(key[0])} and {_named(key[1])}: about {start:.0f} s")
        total += start
        for match in group:
            seconds = seconds_of(match, pairs)
            lines.append(f"  {match}: {pairs} pairs, about {seconds:.0f} s")
            total += seconds
    return "\n".join([*lines, f"about {total / 60:.0f} minutes, installations left out"])


def _named(setup: Setup) -> str:
    slots = f", {setup.slots} at once" if setup.slots > 1 else ""
    rows = f", {setup.activations} rows" if setup.activations != AS_IS else ""
    return f"{setup.engine} ({setup.how}, {setup.precision}{slots}{rows})"


def chosen_by(given: argparse.Namespace, scenarios: tuple[Scenario, ...]) -> list[Match]:
    """SystemExit naming what is unknown."""
    for flag, asked, known in (
        ("--scenarios", given.scenarios, {scenario.name for scenario in scenarios}),
        ("--peers", given.peers, {contest.peer for scenario in scenarios for contest in scenario.contests}),
    ):
        if unknown := (asked or set()) - known:
            raise SystemExit(f"peers: {flag}: {min(unknown)!r} is none of {', '.join(sorted(known))}")
    if given.pairs < 1:
        raise SystemExit("peers: --pairs: at least one")
    chosen = matches(scenarios, given.scenarios, given.peers)
    return [match for match in chosen if match.contest.best or not given.best]


def missing(chosen: Iterable[Match], lines: Iterable[table.Line], commit: str) -> list[Match]:
    """Those without a line of this commit that has a figure of enough pairs."""
    clean = commit.removesuffix("+changes")  # the lines themselves are a change
    there = {
        table.key_of(line)
        for line in lines
        if line["commit"].removesuffix("+changes") == clean
        and line["figures"].get("ratio", {"pairs": 0})["pairs"] >= LEAST_PAIRS
    }
    return [match for match in chosen if _key(match) not in there]


def _key(match: Match) -> table.Key:
    contest = match.contest
    return match.scenario.name, contest.precision, contest.activations, contest.peer


def shortened(match: Match) -> Match:
    """The same with few and short requests: what it tells is whether it works, not how fast."""
    scenario = match.scenario
    few = replace(
        scenario,
        prompt=min(scenario.prompt, QUICK_PROMPT),
        shared=min(scenario.shared, QUICK_PROMPT),
        output=min(scenario.output, QUICK_OUTPUT),
        requests=min(scenario.requests, QUICK_REQUESTS),
    )
    return Match(few, replace(match.contest, known=None))


def _sources(given: argparse.Namespace) -> dict[str, Path]:
    named = {SMOLLM2: given.smollm2, GEMMA: given.gemma3}
    return {model: file.resolve() for model, file in named.items() if file}


def install_all(chosen: Sequence[Match], shop: Shop) -> Iterator[str]:
    """Environments and model files of all that is chosen; a line for each."""
    for peer in sorted({match.contest.peer for match in chosen}):
        try:
            versions = install(shop.place, peer, RECIPES[peer])
            yield f"{peer}: {', '.join(f'{name} {version}' for name, version in versions.items())}"
        except Skip as reason:
            yield f"{peer}: skipped: {reason}"
    for setup in sorted({setup for match in chosen for setup in setups(match)}, key=str):
        try:
            shop.models.file(setup.engine, setup.precision, setup.model)
        except Skip as reason:
            yield f"{setup.engine}, {setup.precision}: skipped: {reason}"


def main() -> None:
    given = parser().parse_args()
    if given.list:
        print(listing())
        return
    chosen = chosen_by(given, SCENARIOS)
    if given.missing:
        chosen = missing(chosen, table.read(record.RESULTS / f"{NAME}.jsonl"), record.commit())
    if given.dry_run:
        print(dry_run(chosen, given.pairs))
        return
    if given.quick:
        chosen, given.pairs, given.no_record = [shortened(match) for match in chosen], 1, True
    folder = given.folder.resolve()
    with Programs(folder / "logs") as programs:
        place = Place(folder, given.install_seconds, programs)
        models = Models(folder / "models", _sources(given), place)
        limits = Limits(given.block_seconds, given.start_seconds)
        shop = Shop(place, models, programs, limits, tuple(given.pelton_flags.split()))
        settings = Given(given.pairs, given.minutes, not given.no_record, shop, RECIPES, MachineProbe())
        try:
            if given.install_only:
                for told in install_all(chosen, shop):
                    print(told, flush=True)
                return
            lines = run(chosen, settings)
        except KeyboardInterrupt:
            raise SystemExit("peers: interrupted; what was measured is kept") from None
    if given.pairs >= LEAST_PAIRS:
        print()
        print(table.table(table.latest(lines)))


if __name__ == "__main__":
    main()
