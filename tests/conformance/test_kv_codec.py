"""Every KV codec: its size formula is additive, positive and linear in layers' geometry, and it declares itself."""

import pytest
from registry_entries import entries

from pelton.core.needs import Claim, Fact, Needs
from pelton.kv import KV_CODECS
from pelton.program.states import KVSpec


@pytest.mark.parametrize("name", entries("kv_codec"))
def test_codec_declares_layout_needs_and_size(name: str) -> None:
    codec = KV_CODECS.get(name)()
    assert codec.layout and isinstance(codec.needs, Needs)
    if Fact.EXACT_KV not in codec.needs.breaks:
        assert codec.needs.claim is Claim.EXACT
    small, large = KVSpec(2, 64, 64), KVSpec(4, 64, 64)
    for element in (2, 4):
        size = codec.bytes_per_block(small, 32, element)
        assert 0 < size <= 32 * small.token_bytes(element), "a codec never takes more than the numbers themselves"
        assert codec.bytes_per_block(large, 32, element) == 2 * size
        assert codec.bytes_per_block(small, 64, element) >= size


def test_numbers_as_they_are_take_exactly_their_bytes() -> None:
    assert KV_CODECS.get("plain")().bytes_per_block(KVSpec(3, 64, 32), 32, 2) == 32 * 3 * (64 + 32) * 2
