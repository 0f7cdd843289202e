"""Markdown tables of what techniques gain: of variants, baselines, sweeps and the cost of planning. See table.py.

Invariant: the last line of each kind is told, whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
VARIANT_UNITS = {"wall_s": "s in all", "itl_p99_ms": "ms between tokens, p99", "ttft_ms": "ms to the first token"}
VARIANT_NAMES = {
    "prefix": "32 requests behind one prefix of 1,500 tokens: found, or computed by each",
    "chunking": "4 answers under way while a prompt of 7,000 tokens arrives: in pieces, or in one step",
}
TIER = "tier"
PLACES = {"tree": "the prefix tree", "files": "files on the disk"}


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Rows, the first of which is the head."""
    head, *others = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *others))


def shown(spread: Mapping[str, float] | None, digits: int | None = None) -> str:
    """Median [min-max]."""
    if spread is None:
        return ""
    if digits is None:
        digits = 0 if spread["median"] >= 1000 else 1 if spread["median"] >= 10 else 2
    return f"{spread['median']:,.{digits}f} [{spread['min']:,.{digits}f}-{spread['max']:,.{digits}f}]"


def variants(lines: Sequence[Line]) -> str:
    """Each variant's last line: the server with the technique in turns with itself without."""
    rows = [["what", "with", "without", "", "ratio", "measured"]]
    for name, line in {line["settings"]["variant"]: line for line in lines}.items():
        figures = line["figures"]
        if name == TIER:
            rows += [[*row, _where(line)] for row in _tier(figures)]
            continue
        key = line["settings"].get("figure") or next(key for key in VARIANT_UNITS if key in figures["ours"])
        rows.append(
            [
                VARIANT_NAMES.get(name, name),
                shown(figures["ours"][key]),
                shown(figures["without"][key]),
                VARIANT_UNITS[key],
                shown(figures["ratio"], 1),
                _where(line),
            ]
        )
    return markdown(rows)


def _where(line: Line) -> str:
    return f"{line['commit']}, {line['machine']['cpu']}" if "machine" in line else ""


def _tier(figures: Line) -> Iterable[list[str]]:
    """Of bench/tier.py: each place that a prompt's beginning comes from, beside computing it."""
    times, unit = figures["ttft_ms"], VARIANT_UNITS["ttft_ms"]
    for place, ratio in figures["ratio"].items():
        what = f"a prompt of 4,096 tokens: from {PLACES.get(place, place)}, or computed again"
        yield [what, shown(times[place]), shown(times["computed"]), unit, shown(ratio, 1)]


def baselines(lines: Sequence[Line]) -> str:
    """The last line of `pelton bench baselines`, and whatever else was counted there."""
    rows = [["technique", "without it", "with", "without", "", "ratio", "beside it"]]
    for gain in lines[-1]["figures"]["gains"]:
        known = ("gain", "baseline", "unit", "ours", "without", "ratio", "same_answers")
        beside = [f"{name} {value:,.3g}" for name, value in gain.items() if name not in known]
        if gain["same_answers"] is not None:
            beside.append("answers the same" if gain["same_answers"] else "ANSWERS DIFFER")
        figures = [f"{gain[side]:,.3g}" for side in ("ours", "without")]
        rows.append([gain["gain"], gain["baseline"], *figures, gain["unit"], f"{gain['ratio']:.2f}", ", ".join(beside)])
    return markdown(rows)


def sweep(lines: Sequence[Line]) -> str:
    """The last line of `pelton bench sweep`; a star: no other size of step beats it in both 99th percentiles."""
    rows = [["tokens of a step", "at once", "TTFT p50, ms", "p99", "ITL p50, ms", "p99", "output tokens/s", "front"]]
    for cell in lines[-1]["figures"]["cells"]:
        names = ("max_num_batched_tokens", "max_concurrency", "p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms")
        figures = [f"{cell[name]:,.0f}" for name in (*names, "output_throughput")]
        rows.append([*figures, "*" if cell["pareto"] else ""])
    return markdown(rows)


def scheduler(lines: Sequence[Line]) -> str:
    """The last line of bench/scheduler.py."""
    settings = lines[-1]["settings"]
    rows = [["order, and how many wait", f"us to plan a step of {settings['running']}"]]
    return markdown([*rows, *([name, shown(spread)] for name, spread in lines[-1]["figures"].items())])
