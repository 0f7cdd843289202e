"""YaRN (arXiv 2309.00071): fast pairs stay, slow ones are interpolated, a ramp between; scores are made sharper."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from pelton.core.errors import UnsupportedModelError
from pelton.layers.rope import (
    DIGITS,
    ORIGINAL_CONTEXT,
    TWO_PI,
    Form,
    RopeOption,
    RopeParameters,
    Rotation,
    base_frequencies,
    rounded,
)

BETA_FAST, BETA_SLOW = Decimal(32), Decimal(1)
LEAST_RAMP = Decimal("0.001")


class Yarn:
    """Pairs that turn more than beta_fast times in the original context stay, those below beta_slow are divided.

    Cosines and sines are multiplied by attention_factor or, where the config does not say it, by m(factor, mscale) /
    m(factor, mscale_all_dim), without these two by m(factor, 1), with m(s, a) = 0.1 a ln(s) + 1 for s > 1, else 1; and,
    beside any of these, by attn_factor.
    """

    options: tuple[RopeOption, ...] = (
        RopeOption(ORIGINAL_CONTEXT),
        RopeOption("factor", Form.FROM_ONE, required=False),
        RopeOption("attention_factor", required=False),
        RopeOption("attn_factor", required=False),
        RopeOption("beta_fast", required=False),
        RopeOption("beta_slow", required=False),
        RopeOption("mscale", Form.FROM_ZERO, required=False),
        RopeOption("mscale_all_dim", Form.FROM_ZERO, required=False),
        RopeOption("truncate", Form.FLAG, required=False),
    )

    def longest(self, parameters: RopeParameters) -> int:
        stretched = int(parameters.number(ORIGINAL_CONTEXT) * _factor(parameters))
        return max(stretched, parameters.context)

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return None

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        factor = _factor(parameters)
        base = base_frequencies(parameters.theta, parameters.dim)
        with localcontext(DIGITS):
            low, high = _ramp(parameters)
            scaled = []
            for place, frequency in enumerate(base):
                divided = min(max((place - low) / (high - low), Decimal(0)), Decimal(1))
                scaled.append(frequency * (1 - divided) + frequency / factor * divided)
            times = _attention_factor(parameters, factor) * (parameters.optional("attn_factor") or 1)
            return Rotation(rounded(scaled), float(times))


def _factor(parameters: RopeParameters) -> Decimal:
    given = parameters.optional("factor")
    if given is not None:
        return given
    original = parameters.number(ORIGINAL_CONTEXT)
    if parameters.context <= original:
        raise UnsupportedModelError(
            f"The model's config has no factor for its rotary scaling {parameters.kind!r}, and "
            f"max_position_embeddings={parameters.context} is no longer than {ORIGINAL_CONTEXT}={original}, so that "
            "nothing would be scaled.",
            f"Give it a factor, or an {ORIGINAL_CONTEXT} below {parameters.context}.",
        )
    with localcontext(DIGITS):
        return Decimal(parameters.context) / original


def _ramp(parameters: RopeParameters) -> tuple[Decimal, Decimal]:
    """Between which pairs the frequencies go over from kept to divided."""
    original, dim = parameters.number(ORIGINAL_CONTEXT), parameters.dim
    if parameters.theta <= 1:
        raise UnsupportedModelError(
            f"The model's rotary scaling {parameters.kind!r} has rope_theta={parameters.theta:g}.",
            "It must be above 1.",
        )

    def pair_that_turns(times: Decimal) -> Decimal:
        return dim * (original / (times * TWO_PI)).ln() / (2 * Decimal(parameters.theta).ln())

    low = pair_that_turns(parameters.optional("beta_fast") or BETA_FAST)
    high = pair_that_turns(parameters.optional("beta_slow") or BETA_SLOW)
    if parameters.options.get("truncate", True):
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(low, Decimal(0)), min(high, Decimal(dim - 1))
    return low, (high if high != low else high + LEAST_RAMP)


def _attention_factor(parameters: RopeParameters, factor: Decimal) -> Decimal:
    given = parameters.optional("attention_factor")
    if given is not None:
        return given

    def sharpened(scale: Decimal) -> Decimal:
        return scale * factor.ln() / 10 + 1 if factor > 1 else Decimal(1)

    scale, all_dim = parameters.optional("mscale"), parameters.optional("mscale_all_dim")
    if scale and all_dim:
        return sharpened(scale) / sharpened(all_dim)
    return sharpened(Decimal(1))
