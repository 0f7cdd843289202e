"""One answer: printed as it comes, stopped by Ctrl-C, its figures. It keeps no conversation.

Invariant: what `text` holds has been written to stdout.
"""

from collections.abc import Generator
from dataclasses import dataclass

from pelton.cli.terminal import emit, say, table_lines
from pelton.core.clock import Clock, SystemClock
from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM
from pelton.engine.outputs import StreamPiece
from pelton.engine.prompts import Prompt


@dataclass(slots=True)
class Printed:
    """What was printed of an answer. `first`, `last`: seconds from the request to its first and last token."""

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    stopped: bool = False
    output: RequestOutput | None = None

    @property
    def error(self) -> str | None:
        return self.output.error if self.output else None

    def stats(self) -> str:
        """Figures for people: time to first token, decoding speed, sizes, why it ended, the seed that repeats it."""
        facts = [f"first token after {self.first * 1000:.0f} ms"]
        if self.tokens > 1 and self.last > self.first:
            facts.append(f"{(self.tokens - 1) / (self.last - self.first):.1f} tokens/s")
        if self.output is None:
            return "; ".join([*facts, f"{self.tokens} tokens", "stopped"])
        sizes = f"{len(self.output.prompt_token_ids)} tokens in, {self.tokens} out"
        ended = f"ended by {self.output.outputs[0].finish_reason}"
        return "; ".join([*facts, sizes, ended, f"seed {self.output.seed}"])

    def cut(self, context: int) -> str | None:
        """What to say of an answer that ended by its length; None if it did not. `context`: tokens of both together."""
        if self.output is None or self.output.outputs[0].finish_reason != "length":
            return None
        if len(self.output.prompt_token_ids) + self.tokens >= context:
            return f"(the context of {context} tokens is full)"
        return f"(cut after {self.tokens} tokens; --max-tokens allows more)"


def print_answer(llm: LLM, prompt: Prompt, params: SamplingParams) -> Printed:
    """Streams the answer to stdout. Ctrl-C ends it and is told by `stopped`; RequestError for a bad prompt."""
    printed = Printed()
    clock = SystemClock()
    start = clock.now()
    pieces = llm.stream(prompt, params)
    try:
        for piece in pieces:
            _print_piece(printed, piece, clock, start)
    except KeyboardInterrupt:
        printed.stopped = True
    finally:
        # Takes the request out of the engine, wherever its iterator stands.
        if isinstance(pieces, Generator):
            pieces.close()
    return printed


def _print_piece(printed: Printed, piece: StreamPiece, clock: Clock, start: float) -> None:
    if piece.token_ids:
        printed.last = clock.now() - start
        printed.first = printed.first or printed.last
        printed.tokens += len(piece.token_ids)
    if piece.output is not None:
        printed.output = piece.output
    emit(piece.text)
    printed.text += piece.text


def show_logprobs(output: RequestOutput) -> None:
    """A table on stderr: each token, its log-probability and rank, and the alternatives."""
    rows = [("token", "logprob", "rank", "likeliest")]
    completion = output.outputs[0]
    for token, place in zip(completion.token_ids, completion.logprobs or [], strict=True):
        drawn = place[token]
        others = sorted((entry for entry in place.values()), key=lambda entry: -entry.logprob)
        listed = "  ".join(f"{entry.decoded_token!r} {entry.logprob:.3f}" for entry in others)
        rows.append((repr(drawn.decoded_token), f"{drawn.logprob:.4f}", str(drawn.rank), listed))
    say("\n".join(table_lines(rows)))
