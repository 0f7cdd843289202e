"""Values that flow between ops, and the sizes of a step they depend on. Shapes are symbolic until a step is known."""

from dataclasses import dataclass

Dim = int | str  # a constant, "T" tokens in the step, "R" rows that need logits or "S" sequences
TOKENS, ROWS, SEQUENCES = "T", "R", "S"


@dataclass(frozen=True, slots=True)
class Value:
    """One activation: `shape` is [rows, width] (or [rows]), `dtype` "f32" or "i32"."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of one step. `contexts`: for each sequence (start index, tokens computed); `logit_rows`: R."""

    contexts: tuple[tuple[int, int], ...]
    logit_rows: int

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.contexts)

    def size(self, dim: Dim) -> int:
        """The number a Dim stands for in this step."""
        if isinstance(dim, int):
            return dim
        return {TOKENS: self.tokens, ROWS: self.logit_rows, SEQUENCES: len(self.contexts)}[dim]

    def nbytes(self, value: Value) -> int:
        """Bytes of a value in this step; all dtypes have 4-byte elements."""
        total = 4
        for dim in value.shape:
            total *= self.size(dim)
        return total

    @staticmethod
    def of(tokens: int, context: int) -> "StepShape":
        """`tokens` tokens of one sequence after `context` cached ones, logits for the last (as in `pelton program`)."""
        return StepShape(((context, tokens),), 1)
