"""Plain rotary frequencies (arXiv 2104.09864): no scaling, no options."""

from pelton.layers.rope import RopeParameters, Rotation, base_frequencies, rounded


class Default:
    """theta^(-2j / dim)."""

    options: tuple[str, ...] = ()

    def rotation(self, parameters: RopeParameters) -> Rotation:
        return Rotation(rounded(base_frequencies(parameters.theta, parameters.dim)))
