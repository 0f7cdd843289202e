"""ALiBi's slopes against those of the families that use them, for any number of heads."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from pelton.layers.alibi import slopes


def test_slopes_of_eight_heads_are_the_papers() -> None:
    assert slopes(8) == (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 14, 16, 25, 32, 40, 48, 64, 71, 112])
def test_slopes_are_those_of_both_families(heads: int) -> None:
    ours = slopes(heads)
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    assert len(ours) == heads
    assert ours == pytest.approx(bloom.tolist(), rel=1e-6)
    assert ours == pytest.approx(mpt.tolist(), rel=1e-6)


@pytest.mark.parametrize("max_bias", [4.0, 8.0, 12.0])
@pytest.mark.parametrize("heads", [4, 6])
def test_the_largest_exponent_can_be_set(heads: int, max_bias: float) -> None:
    mpt = -build_mpt_alibi_tensor(heads, 2, alibi_bias_max=max_bias)[:, 0, 0]
    assert slopes(heads, max_bias) == pytest.approx(mpt.tolist(), rel=1e-6)
