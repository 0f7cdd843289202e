"""Pearson's chi-square test at a fixed level, without scipy."""

import numpy as np
import numpy.typing as npt

Z = 3.719  # normal quantile of 1 - 1e-4


def critical(freedom: int) -> float:
    """Value that chi-square exceeds with probability 1e-4 (Wilson and Hilferty's cube)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + Z * spread**0.5) ** 3)


def fits(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> bool:
    """Whether counts come from these probabilities (same shape, any scale); what is impossible must not occur."""
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    expected = probabilities[possible] / probabilities.sum() * counts.sum()
    assert expected.min() >= 5, f"only {expected.min():.1f} draws are expected in some cell"
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    return bool(statistic <= critical(int(possible.sum()) - 1))
