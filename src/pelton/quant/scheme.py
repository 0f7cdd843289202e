"""The interface of a weight scheme: which formats it covers and what they mean. Bytes are program/formats'.

Formats of vectors (gains, biases) are always dense and belong to every scheme.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pelton.core.needs import Needs
from pelton.core.words.sizes import size_text
from pelton.program.weights import Storage

DENSE = frozenset({"F32", "F16", "BF16"})
ROUNDED = frozenset({"F32", "F16"})  # hold more digits than bf16


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """What start-up tells: average size in the file, bytes by format, and what the arithmetic does."""

    bits_per_weight: float
    format_bytes: dict[str, int]
    arithmetic: str
    needs: Needs

    def sentence(self) -> str:
        """All of it for people: "4.9 bits per weight (Q4_1 79.0 MiB, F32 0.1 MiB): codes as stored ..."."""
        sizes = ", ".join(f"{form} {size_text(size)}" for form, size in self.format_bytes.items())
        return f"{self.bits_per_weight:.2f} bits per weight ({sizes}): {self.arithmetic}"


class WeightScheme(Protocol):
    """One way of storing matrices. `needs`: of the scheme; what a checkpoint loses by it is in its facts."""

    needs: ClassVar[Needs]

    def claims(self, formats: frozenset[str]) -> bool:
        """Whether these formats, all that occur in a checkpoint, are this scheme."""
        ...

    def describe(self, storages: Iterable[Storage], *, exact: bool, inputs: str = "") -> WeightFacts:
        """The facts about a model's storages; `exact`: with fp32 activations (--dtype float32). `inputs`: what codes
        are multiplied with, where it is not activations as dtype has them.
        """
        ...


def rounding(storages: Iterable[Storage], *, exact: bool) -> str:
    """A sentence part about dense matrices that lose digits in bf16; empty where none does."""
    rounded = sorted({storage.format for storage in storages if len(storage.source.shape) > 1} & ROUNDED)
    if exact or not rounded:
        return ""
    return f"{' and '.join(rounded)} matrices rounded to bf16 (dtype float32 keeps them as they are)"


def measure(storages: Iterable[Storage]) -> tuple[float, dict[str, int]]:
    """Bits per weight over all storages, and bytes by format, largest first."""
    elements = 0
    sizes: dict[str, int] = {}
    for storage in storages:
        elements += storage.rows * storage.cols
        sizes[storage.format] = sizes.get(storage.format, 0) + storage.nbytes
    ordered = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    return 8 * sum(sizes.values()) / elements, ordered
