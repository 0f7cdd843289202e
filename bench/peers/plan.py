"""What is compared: the scenarios, who meets whom in which precision, what a peer is known to reach, and the aims.

Data only. `known` figures were measured on one machine of 2026 (two cores of a Xeon with AMX); a run scales them by
its own probe and uses them for nothing but telling a peer that is set up wrong (docs/numbers.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass

PELTON = "pelton"
VLLM, LLAMA, OPENVINO, MISTRALRS = "vllm", "llama.cpp", "openvino", "mistralrs"
BF16, INT8, INT4, Q4_K_M = "bf16", "8 bit", "4 bit", "Q4_K_M"
SMOLLM2, GEMMA = "smollm2", "gemma3-270m"
# How an engine is reached: over HTTP, by a worker in its own process, by its own bench, or by a fresh start each time.
SERVED, WORKER, OWN_BENCH, FRESH = "served", "in process", "its own bench", "fresh"
READ, MATRIX = "read", "matrix"  # the probe that a known figure is scaled by
KNOWN_PROBE = {READ: 20e9, MATRIX: 5.6e12}  # of the machine of the known figures: bytes and FLOPs per second
LEAST_SHARE = 0.85  # of its known figure that a peer must reach
RATIO, OURS = "ratio", "ours"


@dataclass(frozen=True)
class Aim:
    """`least` of the ratio to the best peer, or of our own figure."""

    least: float
    of: str = RATIO


@dataclass(frozen=True)
class Contest:
    """One peer against Pelton in one precision. `known`: what the peer reached; None: it is not known."""

    precision: str
    peer: str
    how: str
    ours: str = SERVED
    known: float | None = None
    aim: Aim | None = None


@dataclass(frozen=True)
class Scenario:
    """`requests` prompts of `prompt` tokens, `concurrency` at a time, answers of `output`; `shared` tokens in front.

    `figure` decides; `less`: a smaller one is better. `beside`: figures told with it. `scaled_by`: the probe of the
    known figures. `kind`: ask, start, or disturbed.
    """

    name: str
    says: str
    workload: str
    contests: tuple[Contest, ...]
    figure: str
    prompt: int
    output: int
    requests: int = 2
    concurrency: int = 1
    shared: int = 0
    less: bool = False
    beside: tuple[str, ...] = ()
    scaled_by: str | None = READ
    kind: str = "ask"
    model: str = SMOLLM2

    def better(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        return theirs / ours if self.less else ours / theirs


def _ttft(name: str, tokens: int, workload: str, requests: int, contests: tuple[Contest, ...]) -> Scenario:
    return Scenario(
        name,
        f"time to first token, {tokens:,} tokens, ms",
        workload,
        contests,
        "ttft_ms",
        tokens,
        2,
        requests,
        less=True,
        scaled_by=MATRIX,
    )


_TWICE, _THRICE, _MORE = Aim(2), Aim(3), Aim(2.5)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "decode",
        "one stream, offline, 128 in / 256 out, tok/s",
        "chat",
        (
            Contest(BF16, LLAMA, OWN_BENCH, WORKER, 54.2, Aim(1.2)),
            Contest(BF16, OPENVINO, WORKER, WORKER, 38.8, Aim(1.2)),
            Contest(INT8, LLAMA, OWN_BENCH, WORKER, 107, Aim(1.15)),
            Contest(INT8, OPENVINO, WORKER, WORKER, 39.9, Aim(1.15)),
            Contest(INT8, MISTRALRS, WORKER, WORKER, 50.6, Aim(1.15)),
            Contest(INT4, LLAMA, OWN_BENCH, WORKER, 163, Aim(1.1)),
            Contest(INT4, OPENVINO, WORKER, WORKER, 55, Aim(1.1)),
        ),
        "decode_tok_s",
        128,
        256,
    ),
    Scenario(
        "served",
        "one stream, served, 128 in / 256 out, tok/s",
        "chat",
        (
            Contest(BF16, VLLM, SERVED, SERVED, 28.9, Aim(1.7)),
            Contest(BF16, LLAMA, SERVED, SERVED, 33.8, Aim(1.7)),
            Contest(INT8, LLAMA, SERVED, SERVED, 57, Aim(1.7)),
            Contest(INT4, LLAMA, SERVED, SERVED, 66, _TWICE),
        ),
        "decode_tok_s",
        128,
        256,
        beside=("itl_p99_ms",),
    ),
    _ttft(
        "ttft512",
        512,
        "ide",
        3,
        (
            Contest(BF16, VLLM, SERVED, SERVED, 244, _THRICE),
            Contest(BF16, OPENVINO, WORKER, WORKER, 279, _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, 242, _THRICE),
            Contest(INT8, LLAMA, SERVED, SERVED, 662, _THRICE),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE),
            Contest(INT4, LLAMA, SERVED, SERVED, 796, _THRICE),
        ),
    ),
    _ttft(
        "ttft2048",
        2048,
        "rag",
        2,
        (
            Contest(BF16, VLLM, SERVED, SERVED, 1300, _THRICE),
            Contest(BF16, OPENVINO, WORKER, WORKER, 1427, _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, 1081, _THRICE),
            Contest(INT8, LLAMA, SERVED, SERVED, 3923, _THRICE),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE),
            Contest(INT4, LLAMA, SERVED, SERVED, 4415, _THRICE),
        ),
    ),
    _ttft(
        "ttft7000",
        7000,
        "rag",
        1,
        (
            Contest(BF16, VLLM, SERVED, SERVED, 5071, _THRICE),
            Contest(BF16, OPENVINO, WORKER, WORKER, 9236, _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, None, _THRICE),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE),
            Contest(INT4, LLAMA, SERVED, SERVED, None, _THRICE),
        ),
    ),
    Scenario(
        "batch8",
        "32 requests, 256 in / 128 out, 8 at a time, tok/s",
        "batch",
        (
            Contest(BF16, OPENVINO, WORKER, SERVED, 182, _TWICE),
            Contest(BF16, VLLM, SERVED, SERVED, 158, _TWICE),
            Contest(INT8, OPENVINO, WORKER, SERVED, 159, _MORE),
            Contest(INT8, LLAMA, SERVED, SERVED, 77, _MORE),
            Contest(INT4, OPENVINO, WORKER, SERVED, None, _MORE),
            Contest(INT4, LLAMA, SERVED, SERVED, 96, _MORE),
        ),
        "out_tok_s",
        256,
        128,
        32,
        8,
        beside=("itl_p50_ms", "itl_p99_ms", "ttft_ms"),
    ),
    Scenario(
        "batch32",
        "32 requests, 256 in / 128 out, 32 at a time, tok/s",
        "batch",
        (
            Contest(BF16, OPENVINO, WORKER, SERVED, 354, _TWICE),
            Contest(BF16, VLLM, SERVED, SERVED, 309, _TWICE),
            Contest(INT8, OPENVINO, WORKER, SERVED, 325, _MORE),
            Contest(INT8, LLAMA, SERVED, SERVED, 79, _MORE),
            Contest(INT4, OPENVINO, WORKER, SERVED, None, _MORE),
            Contest(INT4, LLAMA, SERVED, SERVED, 78, _MORE),
        ),
        "out_tok_s",
        256,
        128,
        32,
        32,
        beside=("itl_p50_ms", "itl_p99_ms", "ttft_ms"),
    ),
    Scenario(
        "prefix",
        "32 requests behind one prefix of 1,500 tokens, 50 own, 32 out, at once, s",
        "agent",
        (Contest(BF16, VLLM, SERVED, SERVED, 6.8, _THRICE),),
        "wall_s",
        50,
        32,
        32,
        32,
        1500,
        less=True,
        beside=("ttft_ms", "itl_p50_ms"),
        scaled_by=MATRIX,
    ),
    Scenario(
        "start",
        "start of a server to its first token, s",
        "chat",
        (
            Contest(INT8, LLAMA, FRESH, FRESH, None, Aim(1)),
            Contest(INT4, LLAMA, FRESH, FRESH, None, Aim(1)),
        ),
        "start_s",
        5,
        1,
        1,
        less=True,
        beside=("peak_rss_mib",),
        kind="start",
    ),
    Scenario(
        "gemma-decode",
        "Gemma 3 270M, one stream, offline, 128 in / 256 out, tok/s",
        "chat",
        (Contest(Q4_K_M, LLAMA, OWN_BENCH, WORKER, None, Aim(1.1)),),
        "decode_tok_s",
        128,
        256,
        model=GEMMA,
    ),
    Scenario(
        "gemma-prefill",
        "Gemma 3 270M, prompts of 512 tokens, offline, tok/s",
        "rag",
        (Contest(Q4_K_M, LLAMA, OWN_BENCH, WORKER, None, _THRICE),),
        "prefill_tok_s",
        512,
        1,
        scaled_by=MATRIX,
        model=GEMMA,
    ),
    Scenario(
        "disturbed",
        "one stream, served, beside a process busy on one core, share of quiet",
        "chat",
        (
            Contest(INT8, LLAMA, SERVED, SERVED, None, Aim(0.4, OURS)),
            Contest(BF16, VLLM, SERVED, SERVED, None, Aim(0.4, OURS)),
        ),
        "share_of_quiet",
        128,
        256,
        1,
        beside=("quiet_tok_s", "busy_tok_s"),
        scaled_by=None,
        kind="disturbed",
    ),
)


@dataclass(frozen=True)
class Match:
    """A contest in its scenario."""

    scenario: Scenario
    contest: Contest

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.contest.precision} {self.contest.peer}"


def matches(scenarios: tuple[Scenario, ...], names: set[str] | None, peers: set[str] | None) -> Iterator[Match]:
    """Those of the scenarios and peers named; None: all. What needs the same engines stands together: some of them
    take minutes to start.
    """
    chosen = [
        Match(scenario, contest)
        for scenario in scenarios
        if names is None or scenario.name in names
        for contest in scenario.contests
        if peers is None or contest.peer in peers
    ]
    order = {scenario.name: place for place, scenario in enumerate(scenarios)}
    yield from sorted(
        chosen,
        key=lambda match: (
            match.contest.peer,
            match.contest.precision,
            match.contest.how,
            match.contest.ours,
            match.scenario.model,
            match.scenario.concurrency,
            order[match.scenario.name],
        ),
    )


def known_now(match: Match, probe: dict[str, float]) -> float | None:
    """What the peer should reach on this machine at this moment; None where that is not known."""
    scenario, known = match.scenario, match.contest.known
    if known is None or scenario.scaled_by is None or scenario.scaled_by not in probe:
        return None
    factor = probe[scenario.scaled_by] / KNOWN_PROBE[scenario.scaled_by]
    return known / factor if scenario.less else known * factor
