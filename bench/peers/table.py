"""Markdown tables from JSON lines: `python -m bench.peers.table` prints them, with --into FILE it puts them there.

The latest line of each contest, and of what exactness costs. In a file a table stands between `<!-- table: NAME -->`
and `<!-- end -->`. Invariant: a figure is printed with its extremes, and what does not count says so.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import record
from bench.peers import gains
from bench.peers.gains import markdown, shown
from bench.peers.plan import AS_IS, INT8_ROWS, LEAST_PAIRS, OURS, SCENARIOS, Scenario

Line = Mapping[str, Any]
Key = tuple[str, str, str, str]
NOT_REACHED = "not_reached"  # among the figures of a contest that its run had no time left for
ROWS = {1: ("chat", "ide"), 4: ("agent", "rag"), 16: ("chat", "agent", "rag"), 64: ("batch",)}  # up to so many rows
INT8_ROWS_SAY = "; our rows in 8 bits"
HEAD = ("scenario (workload)", "precision", "peer", "Pelton", "peer's", "ratio", "aim", "")


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each contest, in the order of the scenarios; one that a run did not come to replaces none."""
    kept: dict[Key, Line] = {}
    for line in lines:
        if not (line["figures"].get(NOT_REACHED) and key_of(line) in kept):
            kept[key_of(line)] = line
    order = {scenario.name: place for place, scenario in enumerate(SCENARIOS)}
    return sorted(kept.values(), key=lambda line: order.get(line["settings"]["scenario"], len(order)))


def key_of(line: Line) -> Key:
    """What a contest is told apart by: scenario, precision, our activations, peer."""
    return *_ours(line), line["settings"]["peer"]


def _ours(line: Line) -> tuple[str, str, str]:
    """What is compared with peers: scenario, precision, and our activations."""
    settings = line["settings"]
    return settings["scenario"], settings["precision"], settings.get("activations_ours", AS_IS)


def table(lines: Sequence[Line]) -> str:
    """All contests as one markdown table."""
    return markdown([HEAD, *(_row(line, lines) for line in lines)])


def _row(line: Line, lines: Sequence[Line]) -> tuple[str, ...]:
    settings, figures = line["settings"], line["figures"]
    scenario = next((one for one in SCENARIOS if one.name == settings["scenario"]), None)
    says = f"{scenario.says} ({scenario.workload})" if scenario else settings["scenario"]
    precision = settings["precision"] + (INT8_ROWS_SAY if _ours(line)[2] == INT8_ROWS else "")
    front = (says, precision, f"{settings['peer']}, {settings['how']}")
    if "skipped" in figures:
        return (*front, "", "", "", "", f"skipped: {figures['skipped']}")
    name = settings["figure"]
    ours, theirs = (shown(figures[side].get(name)) for side in ("ours", "theirs"))
    return (*front, ours, theirs, shown(figures["ratio"], 2), _aim(settings), _verdict(line, lines, scenario))


def _aim(settings: Mapping[str, Any]) -> str:
    aim = settings.get("aim")
    if aim is None:
        return ""
    return f"ours >= {aim['least']:g}" if aim["of"] == OURS else f">= {aim['least']:g}x"


def _verdict(line: Line, lines: Sequence[Line], scenario: Scenario | None) -> str:
    """What the row means: only the best peer of a scenario and precision decides about an aim. Each of our two ways
    to take the rows has its own verdict, which names the rounded one.
    """
    figures, settings = line["figures"], line["settings"]
    if "flag" in figures:
        return str(figures["flag"])
    said = []
    rounded = " with int8 rows" if _ours(line)[2] == INT8_ROWS else ""
    aim = settings.get("aim")
    if aim is not None and scenario is not None:
        if aim["of"] == OURS:
            said.append("met" if figures["ours"][settings["figure"]]["median"] >= aim["least"] else "not met")
        elif _is_best(line, lines, scenario):
            said.append(f"best peer: {'met' if figures['ratio']['median'] >= aim['least'] else 'not met'}{rounded}")
    if "our_share_of_reading" in figures:
        said.append(f"ours at {figures['our_share_of_reading']['median']:.0%} of reading its weights")
    if (pairs := figures["ratio"]["pairs"]) < LEAST_PAIRS:
        said.append(f"only {pairs} of {LEAST_PAIRS} pairs")
    said += [str(figures[name]) for name in ("not_checked", "bounds") if name in figures]
    if scenario is not None and scenario.restarts and "starts" in figures:
        said.append("starts {ours}, {theirs}".format(**figures["starts"]))
    beside = [name for name in figures["ours"] if name != settings["figure"]]
    for name in beside:
        pair = f"{shown(figures['ours'][name])}, {shown(figures['theirs'].get(name)) or 'unknown'}"
        said.append(f"{name} {pair}")
    return "; ".join(said)


def _is_best(line: Line, lines: Sequence[Line], scenario: Scenario) -> bool:
    """By the ratio: the peer that we are least ahead of."""
    key = _ours(line)
    rivals = [
        other["figures"]["ratio"]["median"]
        for other in lines
        if _ours(other) == key and "ratio" in other["figures"] and "flag" not in other["figures"]
    ]
    return bool(line["figures"]["ratio"]["median"] <= min(rivals))


def read(file: Path) -> list[Line]:
    """The lines of a file of results; none where it is not there."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def exactness(lines: Sequence[Line]) -> str:
    """What the last line of exactness.jsonl says, by the number of rows."""
    if not lines:
        return ""
    head = ("rows of a step (workload)", "exact, ms", "fastest variant, ms", "cost", "95 % interval", "blocks")
    rows: list[tuple[str, ...]] = [head]
    for count, row in lines[-1]["figures"].items():
        low, high = row["interval_95"]
        name = row["fastest_variant"]
        rows.append(
            (
                f"{count} ({', '.join(ROWS[min(key for key in ROWS if key >= int(count))])})",
                f"{row['ms']['exact']:.2f}",
                f"{name}, {row['ms'][name]:.2f}",
                f"{row['cost']:+.1%}",
                f"{low:+.1%} to {high:+.1%}",
                str(row["blocks"]),
            )
        )
    return markdown(rows)


def step(lines: Sequence[Line]) -> str:
    """The last line of each model in step.jsonl: for each workload the step beside its limit, and its parts."""
    last = {line["settings"]["formats"]: line["figures"] for line in lines}
    groups = list(dict.fromkeys(name for figures in last.values() for row in figures.values() for name in row))
    groups = ["step", *(name for name in groups if name != "step")]
    rows: list[tuple[str, ...]] = [("weights", "workload", *(f"{name}, ms" for name in groups))]
    for formats, figures in last.items():
        for workload, row in figures.items():
            rows.append((formats, workload, *(_beside_limit(row[name]) if name in row else "" for name in groups)))
    return markdown(rows)


def _beside_limit(part: Mapping[str, float]) -> str:
    share = f" ({part['limit_ms'] / part['ms']:.0%})" if part["limit_ms"] and part["ms"] else ""
    return f"{part['ms']:.2f}{share}"


def told_machine(lines: Sequence[Line]) -> str:
    """Where the last line was measured."""
    if not lines or "machine" not in lines[-1]:
        return ""
    line = lines[-1]
    machine = line["machine"]
    return f"{line['date']}, commit {line['commit']}: {machine['cpu']}, {machine['cores']} cores, {machine['isa']}."


def into(text: str, name: str, filling: str) -> str:
    """The text with what stands between the marks of a table replaced. Raises ValueError where there are none."""
    start, end = f"<!-- table: {name} -->", "<!-- end -->"
    front, found, rest = text.partition(start)
    _, ended, back = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"no {start} ... {end}")
    return f"{front}{start}\n{filling}\n{end}{back}"


TABLES: Mapping[str, Callable[[Sequence[Line]], str]] = {
    "peers": lambda lines: table(latest(lines)),
    "step": step,
    "exactness": exactness,
    "variants": gains.variants,
    "baselines": gains.baselines,
    "sweep": gains.sweep,
    "scheduler": gains.scheduler,
}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--results", type=Path, default=record.RESULTS, help="folder of the JSON lines")
    flags.add_argument("--into", type=Path, help="a file with marks, such as docs/numbers.md")
    given = flags.parse_args()
    for name, filled in TABLES.items():
        lines = read(given.results / f"{name}.jsonl")
        if not lines:
            continue
        told = f"{told_machine(lines)}\n\n{filled(lines)}"
        if given.into:
            given.into.write_text(into(given.into.read_text(encoding="utf-8"), name, told), encoding="utf-8")
        else:
            print(f"{told}\n")


if __name__ == "__main__":
    main()
