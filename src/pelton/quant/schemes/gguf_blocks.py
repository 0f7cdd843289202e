"""GGUF's blocks of 32 integer codes with one scale (and one minimum): Q4_0, Q4_1, Q8_0; some matrices may be dense."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.program.weights import Storage
from pelton.quant.scheme import DENSE, WeightFacts, measure, rounding

BLOCKS = frozenset({"Q4_0", "Q4_1", "Q8_0"})


class GgufBlocks:
    """The codes form: codes are multiplied as integers and the scales applied to each block's sum."""

    needs: ClassVar[Needs] = Needs()

    def claims(self, formats: frozenset[str]) -> bool:
        return bool(formats & BLOCKS) and formats <= BLOCKS | DENSE

    def describe(self, storages: Iterable[Storage], *, exact: bool) -> WeightFacts:
        storages = tuple(storages)
        bits, sizes = measure(storages)
        rounded = rounding(storages, exact=exact)
        arithmetic = f"codes as stored times {'fp32' if exact else 'bf16'} activations, scaled per block"
        needs = replace(self.needs, claim=Claim.LOSSY if rounded else Claim.EXACT)
        return WeightFacts(bits, sizes, "; ".join(filter(None, (arithmetic, rounded))), needs)
