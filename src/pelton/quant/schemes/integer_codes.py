"""Integer codes with a scale (and a minimum) for each group of them or for each row.

GGUF's blocks, its K-quants among them, codes of compressed-tensors, and codes made at load. Matrices may be of
different formats, and some of them dense.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.program.formats import FORMATS
from pelton.program.weights import CODES, Storage
from pelton.quant.scheme import DENSE, WeightFacts, measure, rounding

CODED = frozenset(name for name, form in FORMATS.items() if form.codes)


class IntegerCodes:
    """In the codes form integers are multiplied and scales applied to each group's sum; else weights are made first."""

    needs: ClassVar[Needs] = Needs()

    def claims(self, formats: frozenset[str]) -> bool:
        return bool(formats & CODED) and formats <= CODED | DENSE

    def describe(self, storages: Iterable[Storage], *, exact: bool, inputs: str = "") -> WeightFacts:
        storages = tuple(storages)
        bits, sizes = measure(storages)
        rounded = rounding(storages, exact=exact)
        made = ", ".join(sorted({storage.made for storage in storages if storage.made}))
        coded = [storage for storage in storages if storage.format in CODED]
        values = [storage for storage in coded if storage.form != CODES]
        groups = sorted({FORMATS[storage.format].group for storage in coded})
        per = " or ".join(f"group of {group}" if group else "row" for group in groups)
        times = f"times {inputs or ('fp32' if exact else 'bf16') + ' activations'}"
        source = f"weights rounded to {made} at load, codes" if made else "codes as stored"
        if values:
            arithmetic = f"{source} turned into {'fp32' if exact else 'bf16'} weights {times}"
        else:
            arithmetic = f"{source} {times}, scaled per {per}"
        lossy = bool(rounded or made or (values and not exact))
        needs = replace(self.needs, claim=Claim.LOSSY if lossy else Claim.EXACT)
        return WeightFacts(bits, sizes, "; ".join(filter(None, (arithmetic, rounded))), needs)
