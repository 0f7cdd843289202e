"""Answers on the terminal: printed as they come, stopped by Ctrl-C, their figures. They keep no conversation.

Invariant: what `text` holds has been written to stdout.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from pelton.cli.terminal import emit, say, table_lines
from pelton.core.clock import Clock, SystemClock
from pelton.core.params import SamplingParams
from pelton.core.request import Logprob, RequestOutput
from pelton.engine.llm import LLM
from pelton.engine.prompts import Prompt


@dataclass(slots=True)
class Printed:
    """What was printed of an answer. `first`, `last`: seconds from the request to its first and last token.

    `finish`: why it ended, None while it has not; `prompt`, `seed`: None where nobody told. `output`: of a local model,
    `logprobs`: as a server tells them of a completion.
    """

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    stopped: bool = False
    prompt: int | None = None
    finish: str | None = None
    seed: int | None = None
    error: str | None = None
    output: RequestOutput | None = None
    logprobs: dict[str, list[object]] = field(default_factory=dict)

    def stats(self) -> str:
        """Figures for people: time to first token, decoding speed, sizes, why it ended, the seed that repeats it."""
        facts = [f"first token after {self.first * 1000:.0f} ms"]
        if self.tokens > 1 and self.last > self.first:
            facts.append(f"{(self.tokens - 1) / (self.last - self.first):.1f} tokens/s")
        if self.finish is None:
            return "; ".join([*facts, f"{self.tokens} tokens", "stopped"])
        sizes = f"{self.tokens} out" if self.prompt is None else f"{self.prompt} tokens in, {self.tokens} out"
        seed = [] if self.seed is None else [f"seed {self.seed}"]
        return "; ".join([*facts, sizes, f"ended by {self.finish}", *seed])

    def cut(self, context: int | None) -> str | None:
        """What to say of an answer that ended by its length; None if it did not. `context`: tokens of both together."""
        if self.finish != "length":
            return None
        if context is not None and self.prompt is not None and self.prompt + self.tokens >= context:
            return f"(the context of {context} tokens is full)"
        return f"(cut after {self.tokens} tokens; --max-tokens allows more)"


@dataclass(slots=True)
class Printer:
    """Prints one answer as its pieces come; of several, each as a whole when it has ended."""

    answers: int = 1
    clock: Clock = field(default_factory=SystemClock)
    printed: Printed = field(default_factory=Printed)
    _start: float = 0.0
    _waiting: dict[int, str] = field(default_factory=dict)
    _shown: int = 0

    def begin(self) -> None:
        """The request is sent now."""
        self._start = self.clock.now()

    def take(self, text: str, tokens: int, *, index: int = 0, finish: str | None = None) -> None:
        """A piece of the answer `index`, which ends with it if `finish` says why."""
        printed = self.printed
        if tokens:
            printed.last = self.clock.now() - self._start
            printed.first = printed.first or printed.last
            printed.tokens += tokens
        printed.finish = finish or printed.finish
        if self.answers > 1:
            self._waiting[index] = text = self._waiting.get(index, "") + text
            if finish is None:
                return
            self._shown += 1
            say(f"({self._shown} of {self.answers})", dim=True)
            text = text if text.endswith("\n") else text + "\n"
        emit(text)
        printed.text += text


def print_answer(llm: LLM, prompt: Prompt, params: SamplingParams) -> Printed:
    """Streams the answers to stdout. Ctrl-C ends them and is told by `stopped`; RequestError for a bad prompt."""
    printer = Printer(params.n)
    printed = printer.printed
    printer.begin()
    pieces = llm.stream(prompt, params)
    try:
        for piece in pieces:
            printer.take(piece.text, len(piece.token_ids), index=piece.index, finish=piece.finish_reason)
            if piece.output is not None:
                output = printed.output = piece.output
                printed.prompt, printed.seed, printed.error = len(output.prompt_token_ids), output.seed, output.error
                printed.finish = output.outputs[0].finish_reason
    except KeyboardInterrupt:
        printed.stopped = True
    finally:
        # Takes the request out of the engine, wherever its iterator stands.
        if isinstance(pieces, Generator):
            pieces.close()
    return printed


def show_logprobs(output: RequestOutput) -> None:
    """Tables on stderr: of the prompt's and of each answer's tokens, what was asked for."""
    if output.prompt_logprobs is not None:
        known = [(token, place) for token, place in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)]
        show_table([(token, place) for token, place in known if place is not None])
    for completion in output.outputs:
        if completion.logprobs is not None:
            show_table(list(zip(completion.token_ids, completion.logprobs, strict=True)))


def show_table(places: "list[tuple[int, dict[int, Logprob]]]") -> None:
    """A line for each token: its log-probability and rank, and the alternatives."""
    rows = [("token", "logprob", "rank", "likeliest")]
    for token, place in places:
        drawn = place[token]
        others = sorted((entry for entry in place.values()), key=lambda entry: -entry.logprob)
        listed = "  ".join(f"{entry.decoded_token!r} {entry.logprob:.3f}" for entry in others)
        rows.append((repr(drawn.decoded_token), f"{drawn.logprob:.4f}", str(drawn.rank), listed))
    say("\n".join(table_lines(rows)))


def show_remote_logprobs(told: Mapping[str, list[object]]) -> None:
    """The same of a server's answer to a completion; ranks are not told there."""
    rows = [("token", "logprob", "likeliest")]
    for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        likeliest = top.items() if isinstance(top, Mapping) else ()
        rows.append((repr(token), str(logprob), "  ".join(f"{text!r} {value:.3f}" for text, value in likeliest)))
    say("\n".join(table_lines(rows)))
