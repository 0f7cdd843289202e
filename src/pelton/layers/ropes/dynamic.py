"""Dynamic NTK scaling, frozen: the base is stretched for the longest text of a request and stays so.

As published, the base grows with each token, so that keys cached earlier no longer fit those that come. Frozen, a key
is the same whenever it is computed, and requests of the engine may share it.
"""

from decimal import Decimal, localcontext

from pelton.layers.rope import (
    DIGITS,
    Form,
    RopeOption,
    RopeParameters,
    Rotation,
    base_frequencies,
    rounded,
    stretched_base,
)


class Dynamic:
    """Up to the config's context nothing is scaled; beyond, theta is stretched by factor * length / context - (factor
    - 1), to the power dim / (dim - 2).
    """

    options: tuple[RopeOption, ...] = (RopeOption("factor", Form.FROM_ONE),)

    def longest(self, parameters: RopeParameters) -> int:
        return int(parameters.context * parameters.number("factor"))

    def unstretched(self, parameters: RopeParameters) -> int | None:
        return parameters.context

    def rotation(self, parameters: RopeParameters, length: int) -> Rotation:
        theta = Decimal(parameters.theta)
        if length > parameters.context:
            factor = parameters.number("factor")
            with localcontext(DIGITS):
                times = factor * length / parameters.context - (factor - 1)
            theta = stretched_base(parameters, times)
        return Rotation(rounded(base_frequencies(theta, parameters.dim)))
