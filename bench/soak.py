"""A server under random load for a long time: nothing may grow that should not, and nothing may be left over.

python -m bench.soak [MODEL] [--minutes 30] [--clients 16] [--serve-flags "..."]

Clients ask with prompts that share beginnings, draw and are greedy, want one answer or several, hang up in the middle,
and send what cannot be answered. Every few seconds the memory, threads and files of the server's processes are noted,
and its tasks, blocks and requests, as /metrics tells them. At the end it must be idle: no request, no block held, files
and threads as after the warm-up. Greedy questions are asked again and again: an answer that differs from its first one
is a failure. Ends with 1 if something was left over, differed, or failed that should not.
"""

import asyncio
import json
import os
import re
import shlex
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
from bench import record
from bench.scenarios import server

EVERY_SECONDS = 5.0
WARM_SHARE = 0.2  # of the time, before which nothing is compared
GROWTH = 0.05  # of resident memory from the first fifth behind the warm-up to the last one
IDLE_SECONDS = 30.0
QUESTIONS = 40
WATCHED = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
TASKS = "pelton:asyncio_tasks"
STATE = re.compile(r'state="(\w+)"')
BLOCKS = tuple(f"pelton:kv_blocks {state}" for state in ("held", "cached", "free"))
NAME = "m"


@dataclass
class Seen:
    """What happened. `answers`: of each greedy question its first answer."""

    random: Random
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    looks: list[dict[str, float]] = field(default_factory=list)


def question(number: int) -> str:
    """One of QUESTIONS prompts; they share their beginnings in groups."""
    words = Random(number // 5)
    start = " ".join(words.choice(("mill", "water", "wheel", "grain", "stone", "river")) for _ in range(60 + number))
    return f"{start} Question {number}: what turns the wheel?"


async def one(http: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    """One request of a random kind."""
    draw = seen.random
    kind = draw.choices(("greedy", "drawn", "several", "hang up", "bad"), (4, 4, 1, 3, 1))[0]
    number = draw.randrange(QUESTIONS)
    body: dict[str, object] = {"model": NAME, "prompt": question(number), "max_tokens": 1 + number % 48, "stream": True}
    if kind == "greedy":
        body["temperature"] = 0
    elif kind == "several":
        body |= {"n": draw.randrange(2, 4), "temperature": 0.8}
    elif kind == "bad":
        body |= draw.choice(({"temperature": -1}, {"max_tokens": 0.5}, {"prompt": []}, {"top_p": 3}))
    elif kind == "hang up":
        body |= {"max_tokens": 256, "ignore_eos": True}
    else:
        body |= {"temperature": 1.0, "max_tokens": draw.randrange(1, 96)}
    text, status = "", 0
    async with http.post(f"{url}/v1/completions", json=body) as reply:
        status = reply.status
        pieces = 0
        async for line in reply.content:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                event = json.loads(line[5:])
                if "error" in event:
                    seen.wrong.append(f"{kind}: {event['error']}")
                text += "".join(choice.get("text", "") for choice in event.get("choices", ()))
                pieces += 1
                if kind == "hang up" and pieces > draw.randrange(1, 30):
                    break
    seen.done[kind] += 1
    if (status != 200) != (kind == "bad"):
        seen.wrong.append(f"{kind}: status {status}")
    if kind == "greedy" and seen.answers.setdefault(number, text) != text:
        seen.wrong.append(f"question {number} was answered {seen.answers[number]!r}, then {text!r}")


async def client(url: str, seen: Seen, until: float) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        while time.monotonic() < until:
            try:
                await one(http, url, seen)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                seen.wrong.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(seen.random.expovariate(4))


def processes(root: int) -> list[int]:
    """A process and all that it started."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def sizes(root: int) -> dict[str, float]:
    """Resident MB, threads and open files of all of them."""
    rss = threads = files = 0.0
    for process in processes(root):
        try:
            status = (Path("/proc") / str(process) / "status").read_text()
            files += len(os.listdir(f"/proc/{process}/fd"))
        except OSError:
            continue
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        rss += int(lines.get("VmRSS", "0 kB").split()[0]) / 1024
        threads += int(lines.get("Threads", "0"))
    return {"rss_mib": rss, "threads": threads, "files": files}


async def metrics(url: str) -> dict[str, float]:
    """The watched ones and all totals of blocks, by their names."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    found: dict[str, float] = {}
    for line in lines:
        name = line.partition("{")[0]
        if name in (*WATCHED, TASKS) or name.startswith(("pelton:kv_", "vllm:num_preemptions")):
            state = STATE.search(line)
            found[f"{name} {state[1]}" if state else name] = float(line.rpartition(" ")[2])
    return found


async def watch(url: str, root: int, seen: Seen, until: float) -> None:
    while time.monotonic() < until:
        seen.looks.append({"at": time.monotonic(), **sizes(root), **await metrics(url)})
        await asyncio.sleep(EVERY_SECONDS)


async def soak(url: str, root: int, seen: Seen, minutes: float, clients: int) -> dict[str, float]:
    """What is left when all is over."""
    until = time.monotonic() + 60 * minutes
    await asyncio.gather(*(client(url, seen, until) for _ in range(clients)), watch(url, root, seen, until))
    quiet = time.monotonic() + IDLE_SECONDS
    while True:
        left = await metrics(url)
        if not any(left[name] for name in WATCHED) or time.monotonic() > quiet:
            return {**left, **sizes(root)}
        await asyncio.sleep(0.5)


def verdict(seen: Seen, left: dict[str, float]) -> list[str]:
    """What is wrong, in words."""
    wrong = seen.wrong[:20]
    wrong += [f"{name} is {left[name]:g} when all is over" for name in (*WATCHED, BLOCKS[0]) if left[name]]
    totals = {sum(look[name] for name in BLOCKS) for look in (*seen.looks, left)}
    if len(totals) > 1:
        wrong.append(f"the number of blocks changed: {sorted(totals)}")
    behind = seen.looks[int(len(seen.looks) * WARM_SHARE) :]
    fifth = max(1, len(behind) // 5)
    first, last = behind[:fifth], behind[-fifth:]
    for name, most in (("rss_mib", 1 + GROWTH), ("threads", 1.0), ("files", 1 + GROWTH), (TASKS, 1 + GROWTH)):
        before, after = (statistics.median(look[name] for look in looks) for looks in (first, last))
        if after > before * most + (2 if name != "rss_mib" else 0):
            wrong.append(f"{name} grew from {before:.0f} to {after:.0f}")
    missing = {"greedy", "drawn", "several", "hang up", "bad"} - seen.done.keys()
    return wrong + [f"no request of the kind {kind!r}" for kind in sorted(missing)]


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--minutes", type=float, default=30)
    flags.add_argument("--clients", type=int, default=16)
    flags.add_argument("--serve-flags", default="--kv-cache-memory-bytes 96M --max-model-len 1024 --max-num-seqs 12")
    flags.add_argument("--seed", type=int, default=0)
    given = flags.parse_args()
    before = record.machine()
    seen = Seen(Random(given.seed))
    with server(given.model, shlex.split(given.serve_flags)) as (url, _):
        root = processes(os.getpid())[1]
        left = asyncio.run(soak(url, root, seen, given.minutes, given.clients))
    wrong = verdict(seen, left)
    looks = seen.looks[int(len(seen.looks) * WARM_SHARE) :]
    figures: dict[str, object] = {
        "requests": dict(seen.done),
        "greedy_questions": len(seen.answers),
        **{
            name: record.summary([look[name] for look in looks], 1)
            for name in ("rss_mib", "threads", "files", TASKS, *BLOCKS)
        },
        "left": left,
        "wrong": wrong,
    }
    print(json.dumps(figures, indent=1))
    if not given.dry:
        settings: dict[str, object] = {
            "model": given.model,
            "minutes": given.minutes,
            "clients": given.clients,
            "flags": given.serve_flags,
        }
        record.keep("soak", settings, figures, before)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
