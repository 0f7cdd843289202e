"""From a request's parameters to the record that a backend draws by. Decides nothing that a step decides."""

import numpy as np

from pelton.backends.backend import SAMPLING
from pelton.core.params import SamplingParams
from pelton.sampling import ordered_steps


def encode(params: SamplingParams, place: int, child: int = 0) -> np.void:
    """The SAMPLING record of one row. `place`: output index of the next token; `child`: which of several answers.

    `params.seed` is given: whoever builds a request draws one. The record holds what takes effect, in fp32.
    """
    assert params.seed is not None, "a request without a seed has reached the runner"
    record: np.void = np.zeros(1, SAMPLING)[0]
    record["seed"] = params.seed
    record["target"] = -1
    record["place"] = place
    record["child"] = child
    record["logprobs"] = -1 if params.logprobs is None else params.logprobs
    for step in ordered_steps():
        step.encode(params, record)
    return record
