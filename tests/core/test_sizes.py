"""Sizes for people."""

import pytest

from pelton.core.words.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (93.8 * 2**20, "93.8 MiB"),
        (64 << 20, "64.0 MiB"), (3 << 29, "1.5 GiB"), (10 << 30, "10.0 GiB"), (5 << 50, "5120.0 TiB"),
    ],
)  # fmt: skip
def test_the_unit_fits(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("shift", range(60))
def test_what_is_there_is_never_told_as_nothing(shift: int) -> None:
    assert float(size_text(1 << shift).split()[0]) >= 1
