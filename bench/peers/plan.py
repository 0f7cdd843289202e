"""What is compared: the scenarios, who meets whom in which precision, what a peer is known to reach, and the aims.

Data only. `known` figures were measured on one machine of 2026 (two cores of a Xeon with AMX); a run scales them by
its own probe and uses them for nothing but telling a peer that is set up wrong (docs/numbers.md). A contest is told
apart from others by scenario, precision, peer and activations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

PELTON = "pelton"
VLLM, LLAMA, OPENVINO, MISTRALRS = "vllm", "llama.cpp", "openvino", "mistralrs"
BF16, INT8, INT4, Q4_K_M = "bf16", "8 bit", "4 bit", "Q4_K_M"
SMOLLM2, GEMMA = "smollm2", "gemma3-270m"
# How an engine is reached: over HTTP, by a worker in its own process, by its own bench, or by a fresh start each time.
SERVED, WORKER, OWN_BENCH, FRESH = "served", "in process", "its own bench", "fresh"
READ, VECTOR, MATRIX = "read", "vector", "matrix"  # what a machine is probed for: memory, fp32 FMA, tiles in bf16
KNOWN_PROBE = {READ: 20e9, VECTOR: 0.33e12, MATRIX: 5.6e12}  # there: bytes and FLOPs per second of two threads
LEAST_SHARE = 0.85  # of its known figure that a peer must reach
LEAST_PAIRS = 5  # of a contest that says something
RATIO, OURS = "ratio", "ours"
ARRIVAL = "arrival"  # a kind of scenario
AS_IS, INT8_ROWS = "auto", "int8"  # our `--activations`
EACH_BLOCK = (OWN_BENCH, FRESH)  # reached so, an engine is another process in each block


@dataclass(frozen=True)
class Aim:
    """`least` of the ratio to the best peer, or of our own figure."""

    least: float
    of: str = RATIO


@dataclass(frozen=True)
class Known:
    """What a peer reached on the known machine, and the unit `by` which it multiplied there. One row by a vector unit
    is as good as by a matrix unit, since reading the weights takes longer; not so where only a build for the matrix
    unit has the kernels, as with llama.cpp's weights of 8 and 4 bits.
    """

    figure: float
    by: str = VECTOR


@dataclass(frozen=True)
class Contest:
    """One peer against Pelton in one precision. `known`: None where it is not known. `best`: the strongest peer of an
    aim, as far as known; measured first. `activations`: of ours.
    """

    precision: str
    peer: str
    how: str
    ours: str = SERVED
    known: Known | None = None
    aim: Aim | None = None
    best: bool = False
    activations: str = AS_IS


@dataclass(frozen=True)
class Scenario:
    """`requests` prompts of `prompt` tokens, `concurrency` at a time, answers of `output`; `shared` tokens in front.

    `figure` decides; `less`: a smaller one is better. `beside`: figures told with it. `kind`: ask, start, disturbed, or
    arrival: the last prompt arrives while the others, of which only the first words are asked, are being answered.
    `restarts`: each pair is of processes of its own. How fast a process reads its weights depends on where its pages
    happen to lie and stays so until it ends: the same program decodes one stream at rates that differ by half from
    start to start. So do those scenarios that a step of one row decides. Prompts and batches, which multiply more rows
    for each weight read, have one start, as their warming takes as long as a pair; so has a share of a process's own
    quiet figure, in which the place of its pages cancels out. `cut`: seconds after which an answer is cut, and what
    came of it counts; None: one that is not whole in time is a failure.
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
    kind: str = "ask"
    model: str = SMOLLM2
    restarts: bool = False
    cut: float | None = None

    def better(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        return theirs / ours if self.less else ours / theirs


def _also_int8_rows(*contests: Contest) -> tuple[Contest, ...]:
    """Those of quantised weights again, with our rows rounded to 8 bits as these peers round theirs."""
    rounded = [one for one in contests if one.precision != BF16 and one.peer in (LLAMA, OPENVINO)]
    return (*contests, *(replace(one, activations=INT8_ROWS) for one in rounded))


def _ttft(name: str, tokens: int, workload: str, requests: int, contests: tuple[Contest, ...]) -> Scenario:
    return Scenario(
        name,
        f"time to first token, {tokens:,} tokens, ms",
        workload,
        _also_int8_rows(*contests),
        "ttft_ms",
        tokens,
        2,
        requests,
        less=True,
    )


_TWICE, _THRICE, _MORE = Aim(2), Aim(3), Aim(2.5)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "decode",
        "one stream, offline, 128 in / 256 out, tok/s",
        "chat",
        _also_int8_rows(
            Contest(BF16, LLAMA, OWN_BENCH, WORKER, Known(54.2), Aim(1.2), best=True),
            Contest(BF16, OPENVINO, WORKER, WORKER, Known(38.8), Aim(1.2)),
            Contest(INT8, LLAMA, OWN_BENCH, WORKER, Known(107, MATRIX), Aim(1.15), best=True),
            Contest(INT8, OPENVINO, WORKER, WORKER, Known(39.9), Aim(1.15)),
            Contest(INT8, MISTRALRS, WORKER, WORKER, Known(50.6), Aim(1.15)),
            Contest(INT4, LLAMA, OWN_BENCH, WORKER, Known(163, MATRIX), Aim(1.1), best=True),
            Contest(INT4, OPENVINO, WORKER, WORKER, Known(55), Aim(1.1)),
        ),
        "decode_tok_s",
        128,
        256,
        restarts=True,
    ),
    Scenario(
        "served",
        "one stream, served, 128 in / 256 out, tok/s",
        "chat",
        (
            Contest(BF16, VLLM, SERVED, SERVED, Known(28.9), Aim(1.7), best=True),
            Contest(BF16, LLAMA, SERVED, SERVED, Known(33.8), Aim(1.7), best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, Known(57, MATRIX), Aim(1.7), best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, Known(66, MATRIX), _TWICE, best=True),
        ),
        "decode_tok_s",
        128,
        256,
        beside=("itl_p99_ms",),
        restarts=True,
    ),
    _ttft(
        "ttft512",
        512,
        "ide",
        3,
        (
            Contest(BF16, VLLM, SERVED, SERVED, Known(244, MATRIX), _THRICE, best=True),
            Contest(BF16, OPENVINO, WORKER, WORKER, Known(279, MATRIX), _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, Known(242, MATRIX), _THRICE, best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, Known(662, MATRIX), _THRICE),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE, best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, Known(796, MATRIX), _THRICE),
        ),
    ),
    _ttft(
        "ttft2048",
        2048,
        "rag",
        2,
        (
            Contest(BF16, VLLM, SERVED, SERVED, Known(1300, MATRIX), _THRICE, best=True),
            Contest(BF16, OPENVINO, WORKER, WORKER, Known(1427, MATRIX), _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, Known(1081, MATRIX), _THRICE, best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, Known(3923, MATRIX), _THRICE),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE, best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, Known(4415, MATRIX), _THRICE),
        ),
    ),
    _ttft(
        "ttft7000",
        7000,
        "rag",
        1,
        (
            Contest(BF16, VLLM, SERVED, SERVED, Known(5071, MATRIX), _THRICE, best=True),
            Contest(BF16, OPENVINO, WORKER, WORKER, Known(9236, MATRIX), _THRICE),
            Contest(INT8, OPENVINO, WORKER, WORKER, None, _THRICE, best=True),
            Contest(INT4, OPENVINO, WORKER, WORKER, None, _THRICE, best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, None, _THRICE),
        ),
    ),
    Scenario(
        "batch8",
        "32 requests, 256 in / 128 out, 8 at a time, tok/s",
        "batch",
        _also_int8_rows(
            Contest(BF16, OPENVINO, WORKER, SERVED, Known(182, MATRIX), _TWICE, best=True),
            Contest(BF16, VLLM, SERVED, SERVED, Known(158, MATRIX), _TWICE),
            Contest(INT8, OPENVINO, WORKER, SERVED, Known(159, MATRIX), _MORE, best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, Known(77, MATRIX), _MORE),
            Contest(INT4, OPENVINO, WORKER, SERVED, None, _MORE, best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, Known(96, MATRIX), _MORE),
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
        _also_int8_rows(
            Contest(BF16, OPENVINO, WORKER, SERVED, Known(354, MATRIX), _TWICE, best=True),
            Contest(BF16, VLLM, SERVED, SERVED, Known(309, MATRIX), _TWICE),
            Contest(INT8, OPENVINO, WORKER, SERVED, Known(325, MATRIX), _MORE, best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, Known(79, MATRIX), _MORE),
            Contest(INT4, OPENVINO, WORKER, SERVED, None, _MORE, best=True),
            Contest(INT4, LLAMA, SERVED, SERVED, Known(78, MATRIX), _MORE),
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
        (Contest(BF16, VLLM, SERVED, SERVED, Known(6.8, MATRIX), _THRICE, best=True),),
        "wall_s",
        50,
        32,
        32,
        32,
        1500,
        less=True,
        beside=("ttft_ms", "itl_p50_ms"),
    ),
    Scenario(
        "start",
        "start of a server to its first token, s",
        "chat",
        (
            Contest(INT8, LLAMA, FRESH, FRESH, None, Aim(1), best=True),
            Contest(INT4, LLAMA, FRESH, FRESH, None, Aim(1), best=True),
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
        (Contest(Q4_K_M, LLAMA, OWN_BENCH, WORKER, None, Aim(1.1), best=True),),
        "decode_tok_s",
        128,
        256,
        model=GEMMA,
        restarts=True,
    ),
    Scenario(
        "gemma-prefill",
        "Gemma 3 270M, prompts of 512 tokens, offline, tok/s",
        "rag",
        _also_int8_rows(Contest(Q4_K_M, LLAMA, OWN_BENCH, WORKER, None, _THRICE, best=True)),
        "prefill_tok_s",
        512,
        1,
        model=GEMMA,
        restarts=True,
    ),
    Scenario(
        "disturbed",
        "one stream, served, beside a process busy on one core, share of quiet",
        "chat",
        (
            Contest(INT8, LLAMA, SERVED, SERVED, None, Aim(0.4, OURS), best=True),
            Contest(BF16, VLLM, SERVED, SERVED, None, Aim(0.4, OURS)),
        ),
        "share_of_quiet",
        128,
        256,
        1,
        beside=("quiet_tok_s", "busy_tok_s"),
        kind="disturbed",
    ),
    Scenario(
        "arrival",
        "4 answers under way while a prompt of 7,000 tokens arrives, p99 ms between their tokens",
        "chat",
        (
            Contest(BF16, VLLM, SERVED, SERVED, None, None, best=True),
            Contest(INT8, LLAMA, SERVED, SERVED, None, None, best=True),
        ),
        "itl_p99_ms",
        7000,
        1024,
        5,
        5,
        less=True,
        beside=("quiet_itl_p99_ms", "itl_p50_ms", "ttft_ms"),
        kind=ARRIVAL,
    ),
)


@dataclass(frozen=True)
class Match:
    """A contest in its scenario."""

    scenario: Scenario
    contest: Contest

    def __str__(self) -> str:
        rows = ", ours with int8 rows" if self.contest.activations == INT8_ROWS else ""
        return f"{self.scenario.name} {self.contest.precision} {self.contest.peer}{rows}"


def matches(scenarios: tuple[Scenario, ...], names: set[str] | None, peers: set[str] | None) -> Iterator[Match]:
    """Those of the scenarios and peers named; None: all. First the best peers of the aims with our default, then with
    our rows in 8 bits, then the others. Each part is in the order of the scenarios, but what needs the same engines
    stands together: some of them take minutes to start.
    """
    order = {scenario.name: place for place, scenario in enumerate(scenarios)}
    chosen = [
        Match(scenario, contest)
        for scenario in scenarios
        if names is None or scenario.name in names
        for contest in scenario.contests
        if peers is None or contest.peer in peers
    ]
    first: dict[tuple[str | int, ...], int] = {}  # place of the first scenario of those that stand together
    for match in chosen:
        first.setdefault(_together(match), order[match.scenario.name])
    yield from sorted(
        chosen,
        key=lambda match: (
            _part(match.contest),
            first[_together(match)],
            _together(match),
            match.scenario.concurrency,
            order[match.scenario.name],
        ),
    )


def _part(contest: Contest) -> int:
    if not contest.best:
        return 2
    return 0 if contest.activations == AS_IS else 1


def _together(match: Match) -> tuple[str | int, ...]:
    one = match.contest
    return _part(one), one.peer, one.precision, one.how, one.ours, one.activations, match.scenario.model


def known_now(match: Match, probe: dict[str, float]) -> float | None:
    """What the peer should reach at least on this machine at this moment; None where that is not known.

    A figure is made of reading and of multiplying. Where one of them is faster by some factor, the part of the time
    that it takes shrinks by it, so the whole is faster at least by the lesser of both factors, and maybe by no more.
    """
    known = match.contest.known
    if known is None or not_checked(match, probe):
        return None
    factor = min(probe[unit] / KNOWN_PROBE[unit] for unit in (READ, known.by))
    return known.figure / factor if match.scenario.less else known.figure * factor


def not_checked(match: Match, probe: dict[str, float]) -> str | None:
    """Why a known figure says nothing on this machine; None where it does, or where none is known."""
    known = match.contest.known
    if known is None or {READ, known.by} <= set(probe):
        return None
    needs = "a matrix unit" if known.by == MATRIX else "the rate of the vector unit, which was not measured"
    return f"known figure needs {needs}: not checked"
