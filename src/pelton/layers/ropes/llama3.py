"""The scaling of Llama 3.1 and later (arXiv 2407.21783): long waves are divided, short ones kept, a ramp between."""

from decimal import localcontext

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


class Llama3:
    """Wavelengths below original / high_freq_factor stay, those above original / low_freq_factor are divided."""

    options: tuple[RopeOption, ...] = (
        RopeOption("factor", Form.FROM_ONE),
        RopeOption("low_freq_factor"),
        RopeOption("high_freq_factor"),
        RopeOption(ORIGINAL_CONTEXT),
    )

    def longest(self, parameters: RopeParameters) -> int:
        return parameters.context

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return None

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        factor, low, high, original = (parameters.number(option.name) for option in self.options)
        if low >= high:
            raise UnsupportedModelError(
                f"The model's rotary scaling has low_freq_factor={low} and high_freq_factor={high}.",
                "The first must be below the second.",
            )
        base = base_frequencies(parameters.theta, parameters.dim)
        with localcontext(DIGITS):
            scaled = []
            for frequency in base:
                wavelength = TWO_PI / frequency
                if wavelength < original / high:
                    scaled.append(frequency)
                elif wavelength > original / low:
                    scaled.append(frequency / factor)
                else:
                    kept = (original / wavelength - low) / (high - low)
                    scaled.append((1 - kept) * frequency / factor + kept * frequency)
            return Rotation(rounded(scaled))
