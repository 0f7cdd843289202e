"""Perplexity of a model on a text: windows of its tokens are scored by the engine, as prompts. It draws nothing.

Two conventions say which tokens count, because figures compare only within one: HF, windows that slide (Hugging Face's
guide; with a stride of a whole window they are disjoint), and LLAMA_CPP, the later half of each disjoint window.
Invariant: a token counts at most once, and only with at least one token before it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pelton.core.clock import Clock
from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM
from pelton.tokenize.tokenizer import Tokenizer

HF, LLAMA_CPP = "hf", "llama.cpp"
CONVENTIONS = (HF, LLAMA_CPP)
CTX_SIZE = 2048
TOGETHER = 4096  # tokens of windows that are handed over at once
LEAST_HALVED = 3  # tokens of a window of LLAMA_CPP, whose later half is looked at from its second token on
SCORE = SamplingParams(max_tokens=0, prompt_logprobs=0, detokenize=False)
FIRST_EDGE = 16  # tokens before, up to which the table by position has one line


@dataclass(frozen=True, slots=True)
class Plan:
    """`size` tokens a window, the next one `stride` tokens later; `bos`: the model's first token stands before a text.

    Of LLAMA_CPP the stride is the size, and the first token stands in place of each window's first one.
    """

    size: int
    stride: int
    convention: str = HF
    bos: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens to score; those from index `first` on count."""

    ids: tuple[int, ...]
    first: int


@dataclass(slots=True)
class Tally:
    """Sums of negative log-probabilities in nats, of their squares, and how many."""

    count: int = 0
    nats: float = 0.0
    squares: float = 0.0

    def add(self, values: Sequence[float]) -> None:
        self.count += len(values)
        self.nats = math.fsum((self.nats, *values))
        self.squares = math.fsum((self.squares, *(value * value for value in values)))

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.nats / self.count if self.count else math.nan

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean) if self.mean < 700 else math.inf

    @property
    def error(self) -> float:
        """One standard error of the perplexity, tokens taken as independent; nan for fewer than two."""
        if self.count < 2:
            return math.nan
        variance = max(self.squares / self.count - self.mean**2, 0.0)
        return self.perplexity * math.sqrt(variance / (self.count - 1))


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. `bytes`: of the tokens that count. `by_position`: of all tokens scored, by how many stand before:
    (least, most, tally), whether they count or not.
    """

    plan: Plan
    windows: int
    tally: Tally
    bytes: int
    seconds: float
    by_position: tuple[tuple[int, int, Tally], ...] = field(default=())

    @property
    def bits_per_byte(self) -> float:
        return self.tally.nats / math.log(2) / self.bytes if self.bytes else math.nan

    def record(self) -> dict[str, object]:
        """As JSON; numbers that are none are null."""
        tally, plan = self.tally, self.plan
        return {
            "perplexity": _number(tally.perplexity),
            "stderr": _number(tally.error),
            "nats_per_token": _number(tally.mean),
            "nats_per_byte": _number(self.bits_per_byte * math.log(2)),
            "bits_per_byte": _number(self.bits_per_byte),
            "tokens": tally.count,
            "bytes": self.bytes,
            "windows": self.windows,
            "ctx_size": plan.size,
            "stride": plan.stride,
            "convention": plan.convention,
            "bos": plan.bos,
            "seconds": self.seconds,
            "by_position": [
                {"from": least, "to": most, "tokens": part.count, "perplexity": _number(part.perplexity)}
                for least, most, part in self.by_position
            ],
        }


def text_ids(tokenizer: Tokenizer, text: str, plan: Plan) -> list[int]:
    """The text's tokens as the plan's convention has them, BOS in front if the plan has it.

    HF: special tokens that are spelled out count as such. LLAMA_CPP: they are text, and a last newline is dropped.
    """
    special = plan.convention != LLAMA_CPP
    ids = tokenizer.encode(text if special else text.removesuffix("\n"), special=special, param="text")
    bos = [_bos(tokenizer)] if plan.bos else []
    return bos + ids if ids[:1] != bos else ids


def windows(ids: Sequence[int], plan: Plan, bos_id: int | None = None) -> list[Window]:
    """The windows of a text's tokens; RequestError for a text that has no token to count.

    `bos_id`: what stands in place of the first tokens of LLAMA_CPP's windows, where the plan has it so.
    """
    found = list(_halves(ids, plan, bos_id) if plan.convention == LLAMA_CPP else _sliding(ids, plan))
    if not any(window.first < len(window.ids) for window in found):
        least = plan.size if plan.convention == LLAMA_CPP else 2
        raise RequestError(
            f"The text has {len(ids)} tokens, which is too short: {least} are needed.",
            "Give a longer text, or smaller windows." if least > 2 else "Give a longer text.",
            param="text",
        )
    return found


def _untold(done: int, of: int, tally: Tally) -> None:
    """Nobody asked to hear."""


def perplexity(
    llm: LLM, text: str, plan: Plan, clock: Clock, told: Callable[[int, int, Tally], None] = _untold
) -> Report:
    """Scores the text; `told` hears how many windows are done, of how many, and the sums so far.

    RequestError for a text too short, and for windows longer than the model takes (one token must be left).
    """
    start = clock.now()
    tokenizer = llm.get_tokenizer()
    check_plan(plan, llm.report.max_model_len)
    ids = text_ids(tokenizer, text, plan)
    listed = windows(ids, plan, _bos(tokenizer) if plan.bos else None)
    tally, places = Tally(), [Tally() for _ in range(plan.size.bit_length() + 1)]
    size = done = 0
    together = max(1, TOGETHER // plan.size)
    for at in range(0, len(listed), together):
        batch = listed[at : at + together]
        outputs = llm.generate([{"prompt_token_ids": window.ids} for window in batch], SCORE, use_tqdm=False)
        for window, output in zip(batch, outputs, strict=True):
            nats = _nats(output)
            tally.add(nats[window.first :])
            size += sum(len(tokenizer.known_bytes(token) or b"") for token in window.ids[window.first :])
            for bits, place in enumerate(places):
                least, most = _edges(bits)
                place.add(nats[max(least, 1) : most + 1])
        done += len(batch)
        told(done, len(listed), tally)
    by_position = tuple((*_clipped(bits, plan.size), place) for bits, place in enumerate(places) if place.count)
    return Report(plan, len(listed), tally, size, clock.now() - start, by_position)


def check_plan(plan: Plan, max_model_len: int) -> None:
    """RequestError for windows that cannot be scored, or that would leave tokens out."""
    if not 2 <= plan.size < max_model_len:
        raise RequestError(
            f"Windows of {plan.size} tokens cannot be scored: the model takes {max_model_len} tokens at once.",
            f"Choose from 2 to {max_model_len - 1}.",
            param="ctx_size",
        )
    if plan.convention == LLAMA_CPP and plan.size < LEAST_HALVED:
        raise RequestError(
            f"Windows of {plan.size} tokens have none that counts in the convention {LLAMA_CPP}.",
            f"Choose from {LEAST_HALVED} to {max_model_len - 1}, or the convention {HF}.",
            param="ctx_size",
        )
    if not 1 <= plan.stride <= plan.size:
        raise RequestError(
            f"A stride of {plan.stride} tokens does not fit windows of {plan.size}.",
            f"Choose from 1 to {plan.size}.",
            param="stride",
        )


def _sliding(ids: Sequence[int], plan: Plan) -> Iterator[Window]:
    """Each window's tokens that none before it had."""
    before = 0
    for start in range(0, len(ids), plan.stride):
        end = min(start + plan.size, len(ids))
        yield Window(tuple(ids[start:end]), max(before - start, 1))
        before = end
        if end == len(ids):
            return


def _halves(ids: Sequence[int], plan: Plan, bos_id: int | None) -> Iterator[Window]:
    """Whole windows side by side; what is left at the end of the text is not scored."""
    for start in range(0, len(ids) - plan.size + 1, plan.size):
        window = tuple(ids[start : start + plan.size])
        yield Window(window if bos_id is None else (bos_id, *window[1:]), plan.size // 2 + 1)


def _nats(output: RequestOutput) -> list[float]:
    """Negative log-probabilities by index; that of index 0, which has none, is 0."""
    if output.error is not None or output.prompt_logprobs is None:
        raise RequestError(f"The text could not be scored: {output.error}.", param="text")
    scores = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    return [0.0 if entry is None else -entry[token].logprob for token, entry in scores]


def _edges(bits: int) -> tuple[int, int]:
    """Fewest and most tokens before those of a line: 1 to 15, 16 to 31, 32 to 63, and so on."""
    least = FIRST_EDGE << (bits - 1) if bits else 1
    return least, (FIRST_EDGE << bits) - 1


def _clipped(bits: int, size: int) -> tuple[int, int]:
    least, most = _edges(bits)
    return least, min(most, size - 1)


def _bos(tokenizer: Tokenizer) -> int:
    if tokenizer.bos_id is None:
        raise RequestError("The model has no token that starts a text.", "Leave it out (--no-bos).", param="bos")
    return tokenizer.bos_id


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
