"""From one row of logits to its token, where no mathematics of sampling is handed in: edits, then the most likely.

Draws nothing. Invariant: log-probabilities and ranks are the raw logits', whatever the edits.
"""

import numpy as np
import torch

from pelton.backends.backend import ALLOWED, ONLY_ALLOWED, SEEN, Float32, Records

# Token, log-probability, rank, ids and log-probabilities of the most likely tokens.
Choice = tuple[int, float, int, list[int], list[float]]


def edited(logits: Float32, record: np.void, edits: Records) -> Float32:
    """The row [vocab] that is drawn from, in fp32: docs/numerics.md, section 8."""
    only_allowed = bool(record["flags"] & ONLY_ALLOWED)
    row = np.full_like(logits, -np.inf) if only_allowed else logits.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for token, bias, count, flags in edits:
            if only_allowed and not flags & ALLOWED:
                continue
            x = logits[token] + bias
            if flags & SEEN:
                x = x * record["repetition"] if x < 0 else x / record["repetition"]
            x = x - record["frequency"] * np.float32(count)
            if count > 0:
                x = x - record["presence"]
            row[token] = -np.inf if np.isnan(x) else x
    return row


def most_likely(logits: Float32, record: np.void, edits: Records) -> Choice:
    """The largest edited logit, the lower id among equals; token -1 where none is above -inf."""
    row = edited(logits, record, edits)
    token = int(np.argmax(row))
    return scored(logits, token if row[token] > -np.inf else -1, int(record["logprobs"]))


def scored(logits: Float32, token: int, wanted: int) -> Choice:
    """What is told of a token that is given; rank 0 without log-probabilities (`wanted` below 0)."""
    logprobs = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()
    best = np.argsort(-logits, kind="stable")[: max(0, wanted)]
    best = best[logits[best] > -np.inf]
    rank = 1 + int((logits > logits[token]).sum()) if wanted >= 0 else 0
    return token, float(logprobs[token]), rank, best.tolist(), logprobs[best].tolist()
