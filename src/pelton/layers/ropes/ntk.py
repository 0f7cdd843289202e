"""NTK-aware scaling with a fixed factor: the base grows, so that slow pairs are interpolated and fast ones are not.

Published in a forum in 2023 ("NTK-Aware Scaled RoPE"); arXiv 2309.00071, section 3.1, has the formula.
"""

from pelton.layers.rope import Form, RopeOption, RopeParameters, Rotation, base_frequencies, rounded, stretched_base


class Ntk:
    """(theta * factor^(dim / (dim - 2)))^(-2j / dim): the slowest pair is divided by the factor exactly."""

    options: tuple[RopeOption, ...] = (RopeOption("factor", Form.FROM_ONE),)

    def longest(self, parameters: RopeParameters) -> int:
        return int(parameters.context * parameters.number("factor"))

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return None

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        theta = stretched_base(parameters, parameters.number("factor"))
        return Rotation(rounded(base_frequencies(theta, parameters.dim)))
