"""The server in turns with itself under other settings: what a technique gains or costs on a served workload.

python -m bench.variants [MODEL] [--only prefix,chunking,planning,tier] [--pairs N]

prefix: 32 requests behind one prefix of 1,500 tokens, with and without prefix caching. chunking: p99 between tokens of
four answers while a prompt of 7,000 tokens arrives, in steps as they are planned and with the prompt in one step. tier:
time to the first token of a prompt of 4,096 tokens that is in files, in memory, or nowhere (bench/tier.py). planning:
32 requests, 8 at a time, each step planned while the one before runs (`ours`), and when it is over.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from bench import record
from bench.peers.ask import NAME as ASKED
from bench.peers.ask import Figures, Prompts, served
from bench.peers.plan import SCENARIOS, Scenario
from bench.scenarios import NAME, server
from bench.tier import TOKENS, lines, tier

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.fetch.pull import pull
from pelton.tokenize.tokenizer import build_tokenizer

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
SECONDS = 300.0
TIER = "tier"
assert NAME == ASKED


@dataclass(frozen=True)
class Variant:
    """Two sets of flags for one scenario: as it is, and without the technique."""

    scenario: Scenario
    ours: tuple[str, ...]
    without: tuple[str, ...]


VARIANTS = {
    "prefix": Variant(BY_NAME["prefix"], (), ("--no-enable-prefix-caching",)),
    "chunking": Variant(BY_NAME["arrival"], (), ("--max-num-batched-tokens", "8192", "--context-cost", "0")),
    "planning": Variant(BY_NAME["batch8"], ("--planning-depth", "2"), ("--planning-depth", "1")),
}


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--only", help=f"some of: {', '.join((*VARIANTS, TIER))}")
    flags.add_argument("--pairs", type=int, default=5)
    flags.add_argument(
        "--folder", type=Path, help="on the disk that tier measures (default: the system's temporary one)"
    )
    given = flags.parse_args()
    names = given.only.split(",") if given.only else [*VARIANTS, TIER]
    unknown = [name for name in names if name not in (*VARIANTS, TIER)]
    if unknown:
        flags.error(f"argument --only: {unknown[0]!r} is none of {', '.join((*VARIANTS, TIER))}")
    path = pull(given.model)
    checkpoint = open_checkpoint(path)
    prompts = Prompts(build_tokenizer(checkpoint).encode_prompt)
    checkpoint.close()
    for name in names:
        before = record.machine()
        settings: dict[str, object] = {"model": given.model, "variant": name}
        if name == TIER:
            figures = tier(str(path), prompts, given.pairs, given.folder)
            print(*lines(figures), sep="\n")
            settings["tokens"] = TOKENS
        else:
            figures = compared(str(path), VARIANTS[name], prompts, given.pairs)
            settings["without"] = VARIANTS[name].without
        print(f"{name}: {json.dumps(figures)}", flush=True)
        if not given.dry:
            record.keep("variants", settings, figures, before)


def compared(path: str, variant: Variant, prompts: Prompts, pairs: int) -> dict[str, object]:
    """The ratio of the scenario's figure, and all figures of both sides."""
    told = turns(path, variant, prompts, pairs)
    figure = variant.scenario.figure
    ratios = [variant.scenario.better(ours[figure], without[figure]) for ours, without in told]
    figures: dict[str, object] = {"figure": figure, "ratio": record.summary(ratios)}
    for side, which in (("ours", 0), ("without", 1)):
        figures[side] = {key: record.summary([pair[which][key] for pair in told]) for key in told[0][which]}
    return figures


def turns(path: str, variant: Variant, prompts: Prompts, pairs: int) -> list[tuple[Figures, Figures]]:
    """(ours, without) of each pair, the same prompts for both."""
    with server(path, list(variant.ours)) as (ours, _), server(path, list(variant.without)) as (without, _):
        both = (ours, without)
        for url in both:
            warm = replace(variant.scenario, kind="ask", prompt=256, output=16)
            served(url, prompts.of(warm), warm, SECONDS)
        told = []
        for _ in range(pairs):
            asked = prompts.of(variant.scenario)
            figures = [served(url, asked, variant.scenario, SECONDS) for url in both]
            told.append((figures[0], figures[1]))
        return told


if __name__ == "__main__":
    main()
