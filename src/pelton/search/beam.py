"""Beam search: of all continuations the few likeliest are kept at each step. Names and shapes are vLLM's.

Each beam's next step is a request of its own, which finds what the beam has computed so far in the prefix cache; so
beams share their blocks, and where two part within a block, one of them has a copy. It needs log-probabilities alone,
and draws nothing. Invariant: what it finds does not depend on the other prompts of the call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import pow

from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams, real
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM, end_tokens
from pelton.engine.prompts import Prompts

MOST_CANDIDATES = 20  # log-probabilities that the engine tells at a place
MOST_PENALTY = 10  # a length to this power is a number still
STOPPING = (True, False, "never")


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """`length_penalty` a: a sequence of n new tokens scores sum of log p / n^a, so that more of it favours longer ones.

    `early_stopping` as in transformers: True ends at `beam_width` finished sequences, False once no running beam can
    score better as it stands, "never" once none can at any length up to `max_tokens`.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(
                    f"{name}={value!r} cannot work.", "It must be a whole number, at least 1.", param=name
                )
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(
                f"ignore_eos={self.ignore_eos!r} cannot work.", "It must be True or False.", param="ignore_eos"
            )
        penalty = real(self.length_penalty)
        if penalty is None or not abs(penalty) <= MOST_PENALTY:
            raise RequestError(
                f"length_penalty={self.length_penalty!r} cannot work.",
                f"It must be a number from {-MOST_PENALTY} to {MOST_PENALTY}.",
                param="length_penalty",
            )
        if self.early_stopping not in STOPPING:
            raise RequestError(
                f"early_stopping={self.early_stopping!r} cannot work.",
                'It must be True, False or "never".',
                param="early_stopping",
            )


@dataclass(frozen=True, slots=True)
class BeamSequence:
    """One continuation. `score`: of `cum_logprob` and its length; `finish_reason` "stop" (an end token) or "length"."""

    tokens: tuple[int, ...]
    cum_logprob: float
    score: float
    finish_reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The best sequences of one prompt, the best first."""

    prompt_token_ids: tuple[int, ...]
    sequences: tuple[BeamSequence, ...]


@dataclass(frozen=True, slots=True)
class _Beam:
    tokens: tuple[int, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class _Search:
    """The search behind one prompt."""

    prompt: tuple[int, ...]
    params: BeamSearchParams
    ends: frozenset[int]
    most: int
    beams: list[_Beam] = field(default_factory=lambda: [_Beam()])
    found: list[BeamSequence] = field(default_factory=list)

    def step(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> None:
        """The next tokens: of each beam its likeliest ones with their log-probabilities."""
        candidates = [
            _Beam((*beam.tokens, token), beam.total + logprob)
            for beam, tokens in zip(self.beams, likeliest, strict=True)
            for token, logprob in tokens
        ]
        # Stable: of equals the one of the better beam, then the likelier token, goes first.
        candidates.sort(key=lambda beam: -beam.total)
        width, kept = self.params.beam_width, list[_Beam]()
        for rank, beam in enumerate(candidates):
            if beam.tokens[-1] in self.ends:
                if rank < width:
                    self._finish(beam, "stop")
            else:
                kept.append(beam)
            if len(kept) == width:
                break
        self.beams = kept
        if kept and len(kept[0].tokens) >= self.most:
            for beam in kept:
                self._finish(beam, "length")
            self.beams = []
        elif self._done():
            self.beams = []

    def best(self) -> tuple[BeamSequence, ...]:
        return tuple(self.found)

    def _finish(self, beam: _Beam, reason: str) -> None:
        score = beam.total / pow(len(beam.tokens), self.params.length_penalty)
        self.found.append(BeamSequence(beam.tokens, beam.total, score, reason))
        self.found.sort(key=lambda sequence: -sequence.score)
        del self.found[self.params.beam_width :]

    def _done(self) -> bool:
        """Whether nothing that runs can get among the best any more."""
        params = self.params
        if len(self.found) < params.beam_width or not self.beams:
            return not self.beams
        if params.early_stopping is True:
            return True
        length = len(self.beams[0].tokens)
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self.most
        best = self.beams[0].total / pow(length, params.length_penalty)
        return best <= self.found[-1].score


def beam_search(llm: LLM, prompts: Prompts, params: BeamSearchParams) -> list[BeamSearchOutput]:
    """The likeliest continuations of one or many prompts, in their order.

    RequestError for a beam_width beyond what the engine tells log-probabilities of, for prompts that cannot run, and
    for one whose logits fail.
    """
    if not isinstance(params, BeamSearchParams):
        raise RequestError(f"{params!r} are no parameters of a beam search.", "Give BeamSearchParams.", param="params")
    ends = frozenset[int]() if params.ignore_eos else end_tokens(llm)
    wanted = (1 + max(1, len(ends))) * params.beam_width
    if wanted > MOST_CANDIDATES:
        raise RequestError(
            f"beam_width={params.beam_width} needs the {wanted} likeliest tokens at each place, and at most "
            f"{MOST_CANDIDATES} are told.",
            f"Set at most {MOST_CANDIDATES // (1 + max(1, len(ends)))}.",
            param="beam_width",
        )
    ask = SamplingParams(temperature=0.0, max_tokens=1, logprobs=wanted, ignore_eos=True, detokenize=False)
    first = llm.generate(prompts, ask, use_tqdm=False)
    searches = [_Search(tuple(output.prompt_token_ids), params, ends, _most(llm, output, params)) for output in first]
    for search, output in zip(searches, first, strict=True):
        search.step([_likeliest(output)])
    while running := [search for search in searches if search.beams]:
        asked = [{"prompt_token_ids": [*search.prompt, *beam.tokens]} for search in running for beam in search.beams]
        outputs = iter(llm.generate(asked, ask, use_tqdm=False))
        for search in running:
            search.step([_likeliest(output) for output in _take(outputs, len(search.beams))])
    return [_told(llm, search) for search in searches]


def _most(llm: LLM, output: RequestOutput, params: BeamSearchParams) -> int:
    """Tokens that a continuation may have."""
    return min(params.max_tokens, llm.report.max_model_len - len(output.prompt_token_ids))


def _take(outputs: Iterator[RequestOutput], count: int) -> Iterator[RequestOutput]:
    for _ in range(count):
        yield next(outputs)


def _likeliest(output: RequestOutput) -> list[tuple[int, float]]:
    """(token, log-probability) at the one place that was asked for, the likeliest first."""
    if output.error is not None:
        raise RequestError(output.error)
    told = output.outputs[0].logprobs
    assert told is not None and len(told) == 1
    ranked = sorted(told[0].items(), key=lambda entry: entry[1].rank or 0)
    return [(token, entry.logprob) for token, entry in ranked]


def _told(llm: LLM, search: _Search) -> BeamSearchOutput:
    tokenizer = llm.get_tokenizer()

    def text(tokens: Sequence[int]) -> str:
        """Of those that have one: a model may have more rows of logits than its tokenizer has tokens."""
        return tokenizer.decode([token for token in tokens if token < tokenizer.vocab_size])

    sequences = (
        BeamSequence(one.tokens, one.cum_logprob, one.score, one.finish_reason, text(one.tokens))
        for one in search.best()
    )
    return BeamSearchOutput(search.prompt, tuple(sequences))
