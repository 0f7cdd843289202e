"""`pelton kv`: the KV memory of a running server, live: its blocks and the prefix tree. It loads no model."""

import json
from collections.abc import Mapping
from time import sleep

import click

from pelton.cli.loading import key_of_environment
from pelton.cli.options import debug_option
from pelton.cli.remote import Json, Remote
from pelton.cli.terminal import emit, table_lines
from pelton.core.environment import API_KEY
from pelton.core.words.sizes import size_text

URL = "http://127.0.0.1:8000"
STATES = ("held", "shared", "cached", "free")
INDENT = "  "


@click.command("kv")
@click.argument("url", default=URL)
@click.option("--runs", type=click.IntRange(0, 2000), default=40, show_default=True, help="Runs of blocks to show.")
@click.option(
    "--requests", type=click.IntRange(0, 2000), default=20, show_default=True, help="Requests and sessions to show."
)
@click.option(
    "--tokens", is_flag=True, help="Show token ids and names of sessions, if the server has --show-cached-tokens."
)
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Show it again, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="All that the server tells, as a line of JSON.")
@click.option("--api-key", help=f"The key that the server asks for [the variable {API_KEY}].")
@debug_option
def kv(
    url: str, runs: int, requests: int, tokens: bool, every: float | None, as_json: bool, api_key: str | None
) -> None:
    """Show what the KV memory of the server at URL holds now.

    A block is held by requests or sessions (shared: by several), cached for whoever comes, or free. The tree has a line
    for each run of blocks that no prompt parts within; those that most is behind come first.

    Requests are told with the blocks they hold, and how many of their tokens are computed; sessions and slots with what
    is held for them while no request of theirs runs.
    """
    with Remote(url, api_key or key_of_environment(), called="URL") as remote:
        while True:
            told = remote.told(f"/kv/tree?runs={runs}&requests={requests}&tokens={str(tokens).lower()}")
            shown = [*_groups(told), "", *_summary(told), *_requests(told), *_held_for(told), *_tree(told)]
            lines = [json.dumps(told)] if as_json else shown
            emit("\n".join(lines) + "\n")
            if every is None:
                return
            sleep(every)
            emit("" if as_json else "\n")


def _groups(told: Json) -> list[str]:
    header = ("KV group", "blocks", *STATES, "saved by sharing")
    rows: list[tuple[str, ...]] = [header]
    for number, group in enumerate(_listed(told.get("groups"))):
        window = group.get("window")
        name = f"{number}: {'all tokens' if window is None else f'a window of {window}'}"
        rows.append((name, *(f"{_whole(group.get(state)):,}" for state in ("total", *STATES, "saved"))))
    return table_lines(rows)


def _summary(told: Json) -> list[str]:
    waste = told.get("waste")
    lines = [f"blocks of {told.get('block_size')} tokens"]
    if isinstance(waste, float | int):
        lines[0] += f"; {waste:.1%} of the places in held ones are empty"
    sessions = told.get("sessions")
    if isinstance(sessions, Mapping) and sessions.get("open"):
        blocks, of = _counted(_whole(sessions.get("blocks")), "blocks"), _whole(sessions["open"])
        lines.append(f"held by sessions: {blocks}, for {of:,} of them")
    lines += _tiers(told.get("tiers"))
    if told.get("prefix_caching") is False:
        return [*lines, "prefix caching is off"]
    counted = [_counted(_whole(told.get(name)), name) for name in ("namespaces", "nodes", "evictions")]
    return [*lines, f"prefix tree: {', '.join(counted)}, {told.get('depth')} deep"]


def _tiers(tiers: object) -> list[str]:
    """Host slots and files, where there are any."""
    if not isinstance(tiers, Mapping):
        return []
    count = {str(name): _whole(value) for name, value in tiers.items()}
    lines = []
    if count.get("host_slots"):
        used, waiting = count["host_slots_used"], count["swapped"]
        lines.append(f"host slots: {used:,} of {count['host_slots']:,} held, preempted requests there: {waiting:,}")
    if "disk_blocks" in count:
        size, found = size_text(count["disk_bytes"]), count["disk_hit_tokens_total"]
        lines.append(f"files: {count['disk_blocks']:,} blocks, {size} with other models', {found:,} tokens found there")
    return lines


def _requests(told: Json) -> list[str]:
    """Who is in the engine, and what each holds."""
    header = ("request", "state", "tokens", "computed", "blocks", "own", "shared", "host slots", "session")
    rows: list[tuple[str, ...]] = [header]
    for one in _listed(told.get("requests")):
        counts = (f"{_whole(one.get(name)):,}" for name in header[3:7])
        host = f"{_whole(one.get('host_slots')):,}"
        known = f"{_whole(one.get('tokens')):,}"
        rows.append((_name(one.get("id")), str(one.get("state")), known, *counts, host, _name(one.get("session", ""))))
    lines = ["", *table_lines(rows)] if len(rows) > 1 else []
    left = _whole(told.get("requests_left_out"))
    lines += [f"{_counted(left, 'requests')} more"] if left else []
    return [*lines, ""] if lines else []


def _held_for(told: Json) -> list[str]:
    """Sessions, those used last first."""
    listed = _listed(told.get("held_for"))
    if not listed:
        return []
    rows: list[tuple[str, ...]] = [("session", "tokens", "blocks")]
    rows += [(_name(one.get("session")), *(f"{_whole(one.get(name)):,}" for name in rows[0][1:])) for one in listed]
    left = _whole(told.get("held_for_left_out"))
    return ["", *table_lines(rows), *([f"{_counted(left, 'sessions')} more"] if left else []), ""]


def _tree(told: Json) -> list[str]:
    lines: list[str] = []
    for space in _listed(told.get("tree")):
        lines.append(f"namespace {space.get('name')}: {space.get('nodes')} nodes, {space.get('depth')} deep")
        stack = [(1, run) for run in reversed(_listed(space.get("children")))]
        while stack:
            level, run = stack.pop()
            lines.append(INDENT * level + _run(run))
            stack += [(level + 1, child) for child in reversed(_listed(run.get("children")))]
    left = _whole(told.get("left_out"))
    return [*lines, f"{left:,} nodes are not shown"] if left else lines


def _run(run: Json) -> str:
    states = ", ".join(f"{run[state]} {state}" for state in ("held", "shared", "cached", "computing") if run.get(state))
    nodes, behind, tokens = _whole(run.get("nodes")), _whole(run.get("behind")), run.get("tokens")
    text = f"{nodes} {'block' if nodes == 1 else 'blocks'}: {states or 'none left'}"
    text += f"; {behind} behind" if behind else ""
    return f"{text}; tokens {' '.join(map(str, tokens))}" if isinstance(tokens, list) else text


def _listed(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _name(value: object) -> str:
    """What a client chose, without what would move the cursor of who looks at it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(value))


def _counted(count: int, things: str) -> str:
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
