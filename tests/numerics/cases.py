"""Cases of the vectors as text in a file, and as numbers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).resolve().parents[2] / "docs" / "numerics-vectors.json"
Case = dict[str, Any]
RULE = "logits[i] = ((i * 7919) mod 4001) / 256 - 9"  # what a case with `count` has for logits


def encode(value: object) -> object:
    """Floats as hexadecimal text, whatever holds them kept; integers as they are."""
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [encode(item) for item in value]
    if isinstance(value, float | np.floating):
        mantissa, _, exponent = float(value).hex().partition("p")
        return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}" if exponent else mantissa
    return int(value) if isinstance(value, np.integer) else value


def decode(value: Any) -> Any:
    """The reverse: text that is a number becomes a float, other text stays."""
    if isinstance(value, dict):
        return {name: item if name == "form" else decode(item) for name, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return float.fromhex(value) if isinstance(value, str) else value


def read() -> dict[str, list[Case]]:
    """All cases by kind; floats decoded."""
    kinds: dict[str, list[Case]] = decode(json.loads(PATH.read_text(encoding="utf-8"))["vectors"])
    return kinds


def logits_of(case: Case) -> list[float]:
    return list(ruled(case["count"])) if "count" in case else case["logits"]


@cache
def ruled(count: int) -> tuple[float, ...]:
    return tuple((i * 7919 % 4001) / 256 - 9 for i in range(count))
