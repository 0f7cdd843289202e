"""What `pelton simulate` shows: tables, and lines of blocks for what changes over time. It computes no figure."""

from collections.abc import Callable, Mapping, Sequence

from pelton.cli.bars import bar
from pelton.cli.terminal import count_text, table_lines
from pelton.core.words.sizes import size_text
from pelton.measure.bench.figures import METRICS
from pelton.measure.simulate.cache_sizes import Reuse
from pelton.measure.simulate.outcome import Moment

Table = Mapping[str, object]
SHOWN = ("ttft", "itl", "tpot", "e2el")
COLUMNS = ("mean", "p50", "p90", "p99")
SIZES = 9  # lines of the table of cache sizes, the unlimited one beside them
MIB, GIB = 1 << 20, 1 << 30
UNKNOWN = "-"


def figure_lines(table: Table) -> list[str]:
    """Times, rates and what memory did."""
    rows: list[tuple[str, ...]] = [("", *COLUMNS)]
    for name in SHOWN:
        rows.append((f"{METRICS[name]}, ms", *(_ms(table[_key(column, name)]) for column in COLUMNS)))
    return [*table_lines(rows), "", *table_lines(_facts(table), left=2)]


def _key(column: str, name: str) -> str:
    return f"{column}_{name}_ms"


def _facts(table: Table) -> list[tuple[str, str]]:
    failed = f", {table['failed']} failed ({table['first_error']})" if table["failed"] else ""
    swapped = f", {table['swaps']} of them to host memory" if table["swaps"] else ""
    good = []
    if table["slo_attainment"] is not None:
        kept, rate = _share(table["slo_attainment"]), _number(table["request_goodput"])
        good.append(("goodput", f"{kept} of the requests kept the goals, {rate} a second"))
    return [
        ("requests", f"{table['completed']} answered{failed} in {_number(table['duration'])} s"),
        (
            "throughput",
            f"{_number(table['request_throughput'])} requests/s, {_number(table['output_throughput'])} output "
            f"tokens/s, {_number(table['total_token_throughput'])} with those of prompts",
        ),
        *good,
        ("prefix cache", _hits(table)),
        ("KV use", f"{_share(table['mean_kv_usage'])} of {table['kv_blocks']} blocks on average, "
                   f"at most {_share(table['max_kv_usage'])}"),
        ("at once", f"{_number(table['mean_running'])} requests ran on average; at most {table['max_waiting']} waited"),
        ("preemptions", f"{table['preemptions']}{swapped}"),
        ("steps", f"{table['steps']} in {table['calls']} calls, {_share(table['busy_share'])} of the time"),
    ]  # fmt: skip


def _hits(table: Table) -> str:
    if table["prefix_hit_rate"] is None:
        return "off"
    best = table["prefix_hit_rate_unlimited"]
    enough = table["prefix_blocks_enough"]
    bound = "" if best is None else f"; a cache without limit: {_share(best)}, in {enough} blocks"
    return f"{_share(table['prefix_hit_rate'])} of the prompts' tokens found{bound}"


def course_lines(course: Sequence[Moment]) -> list[str]:
    """Four lines of blocks, each from nothing to its largest value."""
    if not course:
        return []
    lines: list[tuple[str, list[float], Callable[[float], str]]] = [
        ("KV use", [moment.kv_usage for moment in course], lambda most: f"{most:.0%}"),
        ("running", [moment.running for moment in course], lambda most: f"{most:.1f}"),
        ("waiting", [float(moment.waiting) for moment in course], lambda most: f"{most:.0f}"),
        ("tokens/s", [moment.tokens_per_s for moment in course], count_text),
    ]
    return [f"{name:<9}|{bar(values)}| 0 to {told(max(values))}" for name, values, told in lines]


def cache_sizes(reuse: Reuse, block_bytes: int) -> list[int]:
    """Sizes in blocks: powers of two MiB, up to what finds all that can be found."""
    most = max(reuse.enough, 1)
    sizes = [most]
    size = 1 << max(0, (most * block_bytes // MIB)).bit_length()
    while len(sizes) < SIZES and size * MIB >= block_bytes:
        blocks = size * MIB // block_bytes
        if blocks < sizes[0]:
            sizes.insert(0, blocks)
        size //= 2
    return sizes


def reuse_record(reuse: Reuse, block_bytes: int, second_per_token: float) -> list[dict[str, object]]:
    """For each size what is found, and what the bytes beyond the size before it are worth; the last has no limit."""
    rows: list[dict[str, object]] = []
    before_bytes = before_found = 0
    for blocks in [*cache_sizes(reuse, block_bytes), None]:
        found, size = reuse.found(blocks), None if blocks is None else blocks * block_bytes
        more = None if size is None else (size - before_bytes) / GIB
        seconds = (found - before_found) * second_per_token
        rows.append(
            {
                "blocks": blocks,
                "bytes": size,
                "found_tokens": found,
                "hit_rate": reuse.rate(blocks),
                "seconds_saved": found * second_per_token,
                "seconds_per_further_gib": seconds / more if more else None,
            }
        )
        before_bytes, before_found = size or 0, found
    return rows


def reuse_lines(rows: Sequence[Table]) -> list[str]:
    """The table of cache sizes."""
    shown = [("cache", "blocks", "found tokens", "hit rate", "saves, s", "s per further GiB")]
    for row in rows:
        worth = row["seconds_per_further_gib"]
        shown.append(
            (
                "without limit" if row["bytes"] is None else size_text(float(str(row["bytes"]))),
                UNKNOWN if row["blocks"] is None else str(row["blocks"]),
                str(row["found_tokens"]),
                f"{float(str(row['hit_rate'])):.1%}",
                _number(row["seconds_saved"]),
                UNKNOWN if worth is None else _number(worth),
            )
        )
    return table_lines(shown)


def _ms(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else UNKNOWN


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else UNKNOWN
