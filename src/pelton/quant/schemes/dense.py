"""Weights as plain floating-point numbers: F32, F16 and BF16."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from pelton.core.needs import Claim, Needs
from pelton.program.weights import Storage
from pelton.quant.scheme import DENSE, WeightFacts, measure, rounding


class Dense:
    """BF16 matrices are used as they are; the others are rounded to bf16 unless activations are fp32."""

    needs: ClassVar[Needs] = Needs()

    def claims(self, formats: frozenset[str]) -> bool:
        return formats <= DENSE

    def describe(self, storages: Iterable[Storage], *, exact: bool, inputs: str = "") -> WeightFacts:
        storages = tuple(storages)
        bits, sizes = measure(storages)
        rounded = rounding(storages, exact=exact)
        arithmetic = rounded or f"weights as stored, multiplied in {'fp32' if exact else 'bf16'}"
        return WeightFacts(bits, sizes, arithmetic, replace(self.needs, claim=Claim.LOSSY if rounded else Claim.EXACT))
