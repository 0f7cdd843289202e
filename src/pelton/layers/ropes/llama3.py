"""The scaling of Llama 3.1 and later (arXiv 2407.21783): long waves are divided, short ones kept, a ramp between."""

from decimal import Decimal, localcontext

from pelton.core.errors import UnsupportedModelError
from pelton.layers.rope import DIGITS, RopeParameters, Rotation, base_frequencies, rounded

TWO_PI = Decimal("6.283185307179586476925286766559005768394")


class Llama3:
    """Wavelengths below original / high_freq_factor stay, those above original / low_freq_factor are divided."""

    options: tuple[str, ...] = (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    )

    def rotation(self, parameters: RopeParameters) -> Rotation:
        factor, low, high, original = (Decimal(parameters.options[name]) for name in self.options)
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
