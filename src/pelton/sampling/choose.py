"""The choice of a token in numpy: edits, the steps' own mathematics, then the draw. For backends without a kernel.

Not a second definition of any step. Invariant: the same token as the native kernel's, unless two scores are closer than
rounding.
"""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import ALLOWED, EDIT, ONLY_ALLOWED, SAMPLING, SEEN, Float32, Records
from pelton.core.params import SamplingParams
from pelton.sampling import ordered_steps
from pelton.sampling.philox import gumbel
from pelton.sampling.step import History, Logits

# What a record says of the distribution; its other fields are read by name.
SHAPING = sorted({f.name for f in fields(SamplingParams)} & set(SAMPLING.names or ()) - {"logprobs"})
NO_EDITS: Records = np.zeros(0, EDIT)
NO_HISTORY = History((0,))  # the steps that shape what is drawn from look at none
NONE_LEFT = -1


def choose(
    logits: Float32, record: np.void, edits: Records = NO_EDITS
) -> tuple[int, float, int, list[int], list[float]]:
    """Token, its log-probability from the raw logits, its rank; ids and log-probabilities of the most likely tokens.

    `logits` [vocab] without NaN, their maximum finite. `edits` [n] of EDIT. A record's `target` is the token, undrawn;
    token -1 with logprob -inf: none is left. The last two have `record["logprobs"]` entries, fewer if fewer tokens are
    above -inf, none without a token; without logprobs the rank is 0.
    """
    token = int(record["target"])
    if token < 0:
        drawn = scores(logits, record, edits)
        token = int(np.argmax(drawn))
        if drawn[token] == -np.inf:
            return NONE_LEFT, -np.inf, 0, [], []
    top = int(record["logprobs"])
    exact = logits.astype(np.float64)
    logsumexp = exact.max() + np.log(np.exp(exact - exact.max()).sum())
    rank = 1 + int((logits > logits[token]).sum()) if top >= 0 else 0
    best = np.argsort(-logits, kind="stable")[: max(top, 0)]
    best = best[logits[best] > -np.inf]
    return token, float(exact[token] - logsumexp), rank, best.tolist(), (exact[best] - logsumexp).tolist()


def scores(logits: Float32, record: np.void, edits: Records = NO_EDITS) -> NDArray[np.float64]:
    """What the argmax is taken of [vocab]: edited logits if greedy, else kept and scaled ones plus noise, or -inf."""
    params = SamplingParams(**{name: record[name].item() for name in SHAPING})
    edited: Logits = edit(logits, record, edits)
    raw = edited.astype(np.float64)
    if params.greedy or raw.max() == -np.inf:
        return raw
    for step in ordered_steps():
        if step.wanted(params):
            edited = step.apply(edited, params, NO_HISTORY)
    shaped = edited.astype(np.float64)
    if not np.isfinite(shaped.max()):  # a tiny temperature has carried the scaled logits out of fp32
        return raw
    return shaped + gumbel(int(record["seed"]), int(record["place"]), int(record["child"]), len(logits))


def edit(logits: Float32, record: np.void, edits: Records) -> Float32:
    """The logits [vocab] with the edits carried out, each operation rounded to fp32; the same array if there is none.

    They come after nothing and before everything: they are the steps that may move the most likely token.
    """
    only = bool(record["flags"] & ONLY_ALLOWED)
    if not (only or len(edits)):
        return logits
    result = logits.copy()
    tokens = edits["token"]
    with np.errstate(over="ignore"):
        x = logits[tokens] + edits["bias"]
        seen = (edits["flags"] & SEEN) > 0
        x = np.where(seen, np.where(x < 0, x * record["repetition"], x / record["repetition"]), x)
        x = x - record["frequency"] * edits["count"].astype(np.float32)
        x = np.where(edits["count"] > 0, x - record["presence"], x)
    if only:
        result[:] = -np.inf
        x = np.where(edits["flags"] & ALLOWED, x, np.float32(-np.inf))
    result[tokens] = x
    return result
