"""GGUF's integer codes with a scale (and a minimum) for each 16 or 32 of them, its K-quants among them.

Matrices may be of different types, and some of them dense.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.program.formats import FORMATS
from pelton.program.weights import Storage
from pelton.quant.scheme import DENSE, WeightFacts, measure, rounding

CODED = frozenset(name for name, form in FORMATS.items() if form.codes)


class GgufBlocks:
    """The codes form: codes are multiplied as integers and the scales applied to each group's sum."""

    needs: ClassVar[Needs] = Needs()

    def claims(self, formats: frozenset[str]) -> bool:
        return bool(formats & CODED) and formats <= CODED | DENSE

    def describe(self, storages: Iterable[Storage], *, exact: bool) -> WeightFacts:
        storages = tuple(storages)
        bits, sizes = measure(storages)
        rounded = rounding(storages, exact=exact)
        groups = sorted({FORMATS[form].group for form in sizes} - {0})
        per = " or ".join(str(group) for group in groups)
        arithmetic = f"codes as stored times {'fp32' if exact else 'bf16'} activations, scaled per group of {per}"
        needs = replace(self.needs, claim=Claim.LOSSY if rounded else Claim.EXACT)
        return WeightFacts(bits, sizes, "; ".join(filter(None, (arithmetic, rounded))), needs)
