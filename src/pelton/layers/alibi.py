"""ALiBi (arXiv 2108.12409): instead of rotated pairs, scores fall with distance, for each head at its own rate.

A family that uses it gives `slopes` to AttentionShape.slopes and no rotary table. Keys hold no position then.
"""

from decimal import Decimal, localcontext

from pelton.layers.rope import DIGITS

MAX_BIAS = 8.0


def slopes(heads: int, max_bias: float = MAX_BIAS) -> tuple[float, ...]:
    """The slope of each head: it is multiplied by (key's place - query's place) and added to the score.

    With n the power of two at or below `heads`: 2^(-max_bias * h / n) for h = 1 .. n, and for further heads every
    second slope of a model of 2n heads, the 1st, 3rd, .... BLOOM writes it so; MPT orders the 2n slopes otherwise and
    takes the same ones. Each to the nearest fp64 number.
    """
    power = 1 << (heads.bit_length() - 1)
    steps = [Decimal(head) / power for head in range(1, power + 1)]
    steps += [Decimal(2 * head + 1) / (2 * power) for head in range(heads - power)]
    with localcontext(DIGITS):
        return tuple(float(Decimal(2) ** (-Decimal(max_bias) * step)) for step in steps)
