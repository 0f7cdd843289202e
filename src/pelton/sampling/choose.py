"""The choice of a token in numpy: the steps' own mathematics, then the draw. For backends without a kernel.

Not a second definition of any step. Invariant: the same token as the native kernel's, unless two scores are closer than
rounding.
"""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import SAMPLING
from pelton.core.params import SamplingParams
from pelton.sampling import ordered_steps
from pelton.sampling.philox import gumbel
from pelton.sampling.step import Logits, LogitsStep

# What a record says of the distribution; its other fields are read by name.
SHAPING = sorted({f.name for f in fields(SamplingParams)} & set(SAMPLING.names or ()) - {"logprobs"})


def choose(logits: NDArray[np.float32], record: np.void) -> tuple[int, float, int, list[int], list[float]]:
    """Token, its log-probability from the raw logits, its rank; ids and log-probabilities of the most likely tokens.

    `logits` [vocab] without NaN, their maximum finite. The last two have `record["logprobs"]` entries, fewer if fewer
    tokens are above -inf; without logprobs the rank is 0.
    """
    token = int(np.argmax(scores(logits, record)))
    top = int(record["logprobs"])
    exact = logits.astype(np.float64)
    logsumexp = exact.max() + np.log(np.exp(exact - exact.max()).sum())
    rank = 1 + int((logits > logits[token]).sum()) if top >= 0 else 0
    best = np.argsort(-logits, kind="stable")[: max(top, 0)]
    best = best[logits[best] > -np.inf]
    return token, float(exact[token] - logsumexp), rank, best.tolist(), (exact[best] - logsumexp).tolist()


def scores(logits: NDArray[np.float32], record: np.void) -> NDArray[np.float64]:
    """What the argmax is taken of [vocab]: the logits if greedy, else kept and scaled logits plus noise, or -inf."""
    params = SamplingParams(**{name: record[name].item() for name in SHAPING})
    steps = [step for step in ordered_steps() if step.wanted(params)]
    raw = _through([step for step in steps if step.moves_argmax], logits, params)
    if params.greedy:
        return raw
    shaped = _through(steps, logits, params)
    if not np.isfinite(shaped.max()):  # a tiny temperature has carried the scaled logits out of fp32
        return raw
    return shaped + gumbel(int(record["seed"]), int(record["place"]), int(record["child"]), len(logits))


def _through(steps: list[LogitsStep], logits: Logits, params: SamplingParams) -> NDArray[np.float64]:
    for step in steps:
        logits = step.apply(logits, params)
    return logits.astype(np.float64)
