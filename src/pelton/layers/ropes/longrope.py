"""LongRoPE (arXiv 2402.13753): each pair has a divisor of its own, one for short texts and one for long ones.

Which of the two holds is decided once, by the longest text of a request: a text that outgrew the original context
midway would leave keys behind that were turned otherwise.
"""

from decimal import Decimal, localcontext

from pelton.layers.rope import (
    DIGITS,
    ORIGINAL_CONTEXT,
    Form,
    RopeOption,
    RopeParameters,
    Rotation,
    base_frequencies,
    rounded,
)


class LongRope:
    """theta^(-2j / dim) / divisor_j; divisors are long_factor where texts may be longer than the original context.

    Cosines and sines are multiplied by long_mscale or short_mscale, else by attention_factor (attn_factor in a GGUF),
    else by sqrt(1 + ln(factor) / ln(original)), where a config without `factor` means context / original. The two lists
    of divisors may be missing in a config whose file holds them as tensors; they are needed for `rotation`.
    """

    options: tuple[RopeOption, ...] = (
        RopeOption(ORIGINAL_CONTEXT),
        RopeOption("short_factor", Form.PAIRS, required=False),
        RopeOption("long_factor", Form.PAIRS, required=False),
        RopeOption("factor", Form.FROM_ONE, required=False),
        RopeOption("attention_factor", required=False),
        RopeOption("attn_factor", required=False),
        RopeOption("short_mscale", required=False),
        RopeOption("long_mscale", required=False),
    )

    def longest(self, parameters: RopeParameters) -> int:
        return parameters.context

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return int(parameters.number(ORIGINAL_CONTEXT))

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        form = "long" if length > parameters.number(ORIGINAL_CONTEXT) else "short"
        divisors = parameters.pairs(f"{form}_factor")
        base = base_frequencies(parameters.theta, parameters.dim)
        with localcontext(DIGITS):
            scaled = [frequency / divisor for frequency, divisor in zip(base, divisors, strict=True)]
            said = (parameters.optional(name) for name in (f"{form}_mscale", "attention_factor", "attn_factor"))
            factor = next((number for number in said if number is not None), None)
            return Rotation(rounded(scaled), float(factor or _attention_factor(parameters)))


def _attention_factor(parameters: RopeParameters) -> Decimal:
    original = parameters.number(ORIGINAL_CONTEXT)
    factor = parameters.optional("factor") or Decimal(parameters.context) / original
    return (1 + factor.ln() / original.ln()).sqrt() if factor > 1 else Decimal(1)
