"""One contest, in turns: ours, the peer, ours, the peer, ..., each block between two probes of the machine.

Whoever is not measured is stopped. A ratio is that of a pair, so that a machine which changes from second to second
changes both; medians and extremes of the pairs are told. It gets its engines started, starts them anew between pairs
where the scenario says so, and keeps nothing.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from bench.peers.ask import CUT, Figures, Prompts
from bench.peers.engines import Engine, disturber
from bench.peers.plan import (
    EACH_BLOCK,
    LEAST_SHARE,
    MATRIX,
    OURS,
    READ,
    VECTOR,
    Aim,
    Match,
    Scenario,
    known_now,
    not_checked,
)
from bench.peers.process import ProgramError, Programs

from pelton.backends.cpu import _native
from pelton.backends.cpu.machine import worker_cores

READ_BYTES = 269_000_000  # what a step of the small model reads in bf16
PEAK_SECONDS = 0.03
READS = 3
SETTLED_SECONDS = 0.3  # of a disturber before it counts
# A peer that takes longer to start keeps its process: four more starts of one to two minutes each, as vLLM's, would
# take longer than all else of the contest, while the others are ready within seconds.
RESTART_SECONDS = 20.0
# Of an answer beside a busy process. A peer whose threads spin for each other may take three seconds a token there,
# so that a whole answer takes ten minutes; this many seconds bound its rate well enough.
BUSY_SECONDS = 20.0

ProbeMachine = Callable[[], dict[str, float]]


class MachineProbe:
    """Bytes and FLOPs per second of the moment, by Pelton's probe; where it has none, numpy reads memory. A unit that
    the machine lacks has no figure.
    """

    def __init__(self) -> None:
        self._probe = _native.Probe(worker_cores(0)) if hasattr(_native, "Probe") else None
        self._memory = None if self._probe else np.ones(READ_BYTES // 8)

    def __call__(self) -> dict[str, float]:
        if self._probe is None:
            return {READ: READ_BYTES / statistics.median(self._numpy_read() for _ in range(READS))}
        read = statistics.median(self._probe.read_once(READ_BYTES, True) for _ in range(READS))
        rates: dict[str, float] = {}
        for name in _native.peak_names():
            if (unit := unit_of(name)) is not None:
                rate = statistics.median(self._probe.peak(name, PEAK_SECONDS))
                rates[unit] = max(rate, rates.get(unit, 0.0))
        return {READ: READ_BYTES / read, **rates}

    def _numpy_read(self) -> float:
        assert self._memory is not None
        start = time.perf_counter()
        self._memory.max()
        return time.perf_counter() - start


def unit_of(name: str) -> str | None:
    """Which unit's rate an instruction of the probe tells; None of those that known figures are not scaled by."""
    if "fp32 fma" in name:
        return VECTOR
    return MATRIX if "bf16 tiles" in name else None


@dataclass(frozen=True)
class Sides:
    """The two engines of a contest, started and paused. `their_start`: seconds until the peer was ready."""

    ours: Engine
    theirs: Engine
    their_start: float = 0.0


@dataclass(frozen=True)
class Surroundings:
    """What a contest needs beside its engines. `weight_bytes` of a step of one row, for our share of reading them."""

    prompts: Prompts
    probe: ProbeMachine
    programs: Programs
    pairs: int
    weight_bytes: int | None = None


Pair = dict[str, object]


def duel(match: Match, sides: Sides, around: Surroundings) -> dict[str, object]:
    """All pairs and what follows from them, as JSON; ProgramError where an engine fails."""
    scenario = match.scenario
    if scenario.kind != "start":
        for engine in (sides.ours, sides.theirs):
            _warm(engine, scenario, around.prompts)
    anew = _anew(match, sides)
    pairs = []
    for number in range(around.pairs):
        for engine in anew if number else ():
            _restart(engine)
            _warm(engine, scenario, around.prompts)
        pairs.append(_pair(match, sides, around))
    return {"pairs": pairs, "starts": _starts(match, sides, around.pairs), **summary(match, pairs, around.weight_bytes)}


def _anew(match: Match, sides: Sides) -> list[Engine]:
    """Who is started again for each pair. Engines that are another process in each block are so anyhow."""
    if not match.scenario.restarts:
        return []
    ours = [] if match.contest.ours in EACH_BLOCK else [sides.ours]
    keeps = match.contest.how in EACH_BLOCK or sides.their_start > RESTART_SECONDS
    return ours if keeps else [*ours, sides.theirs]


def _starts(match: Match, sides: Sides, pairs: int) -> dict[str, int]:
    """Of how many processes each side's figures are."""
    anew = _anew(match, sides)
    each = ((sides.ours, match.contest.ours), (sides.theirs, match.contest.how))
    ours, theirs = (pairs if how in EACH_BLOCK or engine in anew else 1 for engine, how in each)
    return {"ours": ours, "theirs": theirs}


def _restart(engine: Engine) -> None:
    """Another process of the same, paused."""
    engine.end()
    engine.start()
    engine.pause()


def _warm(engine: Engine, scenario: Scenario, prompts: Prompts) -> None:
    """As many requests as are under way at once: pages are touched, caches of code and shapes filled."""
    engine.resume()
    try:
        engine.ask(scenario, prompts.of(scenario)[: scenario.concurrency])
    finally:
        engine.pause()


def _pair(match: Match, sides: Sides, around: Surroundings) -> Pair:
    prompts = around.prompts.of(match.scenario)
    probes = [around.probe()]
    figures: list[Figures] = []
    for engine in (sides.ours, sides.theirs):
        engine.resume()
        try:
            figures.append(_block(match.scenario, engine, prompts, around))
        finally:
            engine.pause()
        probes.append(around.probe())
    ours, theirs = figures
    name = match.scenario.figure
    for side, block in (("ours", ours), ("the peer", theirs)):
        if not block.get(name):
            raise ProgramError(f"{side} gave no {name}")
    near = {key: (probes[1][key] + probes[2][key]) / 2 for key in probes[1]}
    known = known_now(match, near)
    pair: Pair = {
        "ours": _rounded(ours),
        "theirs": _rounded(theirs),
        "probes": [_rounded(probe) for probe in probes],
        "ratio": round(match.scenario.better(ours[name], theirs[name]), 4),
    }
    if known is not None:
        share = known / theirs[name] if match.scenario.less else theirs[name] / known
        pair["peer_share_of_known"] = round(share, 3)
    elif reason := not_checked(match, near):
        pair["not_checked"] = reason
    return pair


def _block(scenario: Scenario, engine: Engine, prompts: Sequence[str], around: Surroundings) -> Figures:
    """One block of one engine; of a disturbed one, the same quiet and beside a busy process."""
    figures = engine.ask(scenario, prompts)
    if scenario.kind != "disturbed":
        return figures
    command = disturber()
    program = around.programs.start("disturber", command.words, command.environment)
    try:
        time.sleep(SETTLED_SECONDS)
        busy = engine.ask(replace(scenario, cut=BUSY_SECONDS), around.prompts.of(scenario))
    finally:
        around.programs.end(program)
    quiet_rate, busy_rate = figures["decode_tok_s"], busy["decode_tok_s"]
    told = {"share_of_quiet": busy_rate / quiet_rate, "quiet_tok_s": quiet_rate, "busy_tok_s": busy_rate}
    return {**told, CUT: 1.0} if CUT in busy else told


def summary(match: Match, pairs: Sequence[Pair], weight_bytes: int | None) -> dict[str, object]:
    """Medians and extremes, the aim, and whether the peer is set up well enough to count."""
    ours, theirs = ([_figures(pair, side) for pair in pairs] for side in ("ours", "theirs"))
    names = [match.scenario.figure, *match.scenario.beside]
    told: dict[str, object] = {
        "ours": {name: spread([block[name] for block in ours]) for name in names if name in ours[0]},
        "theirs": {name: spread([block[name] for block in theirs]) for name in names if name in theirs[0]},
        "ratio": spread([float(str(pair["ratio"])) for pair in pairs]),
    }
    shares = [float(str(pair["peer_share_of_known"])) for pair in pairs if "peer_share_of_known" in pair]
    if shares:
        told["peer_share_of_known"] = spread(shares)
        if statistics.median(shares) < LEAST_SHARE:
            told["flag"] = (
                f"set up wrong? the peer is at {statistics.median(shares):.0%} of its known figure, which is less than "
                f"{LEAST_SHARE:.0%}: this does not count"
            )
    cuts = {"our": sum(CUT in block for block in ours), "the peer's": sum(CUT in block for block in theirs)}
    if any(cuts.values()):
        told["bounds"] = "; ".join(
            f"{whose} rate beside the busy process is an upper bound in {cut} of {len(pairs)} pairs: the answer was "
            f"not whole after {BUSY_SECONDS:.0f} s"
            for whose, cut in cuts.items()
            if cut
        )
    if reasons := [pair["not_checked"] for pair in pairs if "not_checked" in pair]:
        told["not_checked"] = reasons[0]
    if weight_bytes and match.scenario.figure == "decode_tok_s":
        reads = [_probes_around(pair)[READ] for pair in pairs]
        rates = [block["decode_tok_s"] for block in ours]
        told["our_share_of_reading"] = spread([r * weight_bytes / b for r, b in zip(rates, reads, strict=True)])
    return told


def _figures(pair: Pair, side: str) -> Figures:
    found = pair[side]
    assert isinstance(found, dict)
    return found


def _probes_around(pair: Pair) -> Figures:
    """Means of the probes before and after our block."""
    before, after = pair["probes"][:2]  # type: ignore[index]
    return {key: (before[key] + after[key]) / 2 for key in before}


def met(aim: Aim | None, figures: Mapping[str, Mapping[str, Mapping[str, float]]], figure: str) -> bool | None:
    """Whether an aim is reached; None where there is none."""
    if aim is None:
        return None
    reached = figures["ours"][figure]["median"] if aim.of == OURS else float(str(figures["ratio"]["median"]))
    return reached >= aim.least


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "pairs": len(values),
    }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 4) if value < 1e6 else float(f"{value:.4g}") for key, value in figures.items()}
