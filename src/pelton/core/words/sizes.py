"""Sizes in bytes as people read them. What a size is for, others say.

Invariant: the unit is the largest of which there is one at least, so that nothing that is there is told as 0.0.
"""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(count: float) -> str:
    """Bytes for people: "93.8 MiB"."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {UNITS[0]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"
