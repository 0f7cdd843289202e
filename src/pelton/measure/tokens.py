"""What a text costs with different models: its tokens by each tokenizer, and the arithmetic, memory and price of those.

Costs are those of the models' Programs. Invariant: figures are of the text alone; no token is added before or after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pelton.program.costs import total_cost
from pelton.program.module import Module
from pelton.program.values import StepShape
from pelton.tokenize.tokenizer import Tokenizer

MILLION = 1_000_000
KV_ELEMENT = 2  # bytes of a cached number in the default arithmetic


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to count for, by the name its user gave it. `module`: its Program, if all of the model is known.

    `price`: of a million prompt tokens, in whatever currency. `note`: why something is missing.
    """

    name: str
    tokenizer: Tokenizer
    module: Module | None = None
    price: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text by its name."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """One model's figures for some texts; None: not known. `pieces`: prompts that a long text had to be cut into."""

    model: str
    characters: int
    tokens: int
    prefill_flops: int | None = None
    kv_bytes: int | None = None
    price: float | None = None
    pieces: int = 1

    @property
    def per_1000(self) -> float:
        """Tokens per 1000 characters."""
        return 1000 * self.tokens / self.characters if self.characters else 0.0


def count(subject: Subject, text: Text) -> TokenCosts:
    """The figures of one text."""
    tokens = len(subject.tokenizer.encode(text.content, param=text.name))
    price = None if subject.price is None else subject.price * tokens / MILLION
    module = subject.module
    if module is None:
        return TokenCosts(subject.name, len(text.content), tokens, price=price)
    whole, rest = divmod(tokens, module.context)
    # Computing the cost of a whole context takes its time, so that it is not asked for where the text has none.
    lengths = {length: times for length, times in ((module.context, whole), (rest, min(rest, 1))) if times}
    flops = sum(times * prefill_flops(module, length) for length, times in lengths.items())
    kv = sum(times * kv_bytes(module, length) for length, times in lengths.items())
    return TokenCosts(subject.name, len(text.content), tokens, flops, kv, price, pieces=max(sum(lengths.values()), 1))


def prefill_flops(module: Module, tokens: int) -> int:
    """Of a prompt of so many tokens, with the logits of its last; a multiply-add is 2."""
    return total_cost(module, StepShape.of(tokens, 0)).flops if tokens else 0


def kv_bytes(module: Module, tokens: int) -> int:
    """Of the keys and values that are kept of so many tokens: of a layer with a window those in it."""
    return sum(
        state.layers * state.spec.token_bytes(KV_ELEMENT) * min(tokens, state.spec.window or tokens)
        for state in module.states.values()
    )


def together(rows: Sequence[TokenCosts]) -> TokenCosts:
    """One model's figures for all texts, each being a prompt of its own."""
    first = rows[0]
    return TokenCosts(
        model=first.model,
        characters=sum(row.characters for row in rows),
        tokens=sum(row.tokens for row in rows),
        prefill_flops=None if first.prefill_flops is None else sum(row.prefill_flops or 0 for row in rows),
        kv_bytes=None if first.kv_bytes is None else sum(row.kv_bytes or 0 for row in rows),
        price=None if first.price is None else sum(row.price or 0.0 for row in rows),
        pieces=sum(row.pieces for row in rows),
    )


def relative(row: TokenCosts, first: TokenCosts) -> Mapping[str, float | None]:
    """Each figure of a row over that of the first row; None where one of them is not known, or nothing."""
    pairs = {
        "tokens": (row.tokens, first.tokens),
        "prefill_flops": (row.prefill_flops, first.prefill_flops),
        "kv_bytes": (row.kv_bytes, first.kv_bytes),
        "price": (row.price, first.price),
    }
    return {name: None if mine is None or not theirs else mine / theirs for name, (mine, theirs) in pairs.items()}
