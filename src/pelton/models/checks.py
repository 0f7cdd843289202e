"""Checks of a config's values and the errors about them. Reads no config; every error names the field and its value."""

from pelton.core.errors import UnsupportedModelError

OFF: tuple[object, ...] = (None, False, "", [], {})
LARGEST_OTHER = (1 << 31) - 1  # a corrupt number must cost neither time nor memory before it is noticed
# Outside of these, fp32 computes infinities or nothing but rounding.
RANGES = {
    "layer_norm_eps": (1e-30, 1.0),
    "layer_norm_epsilon": (1e-30, 1.0),
    "original_max_position_embeddings": (2.0, float(LARGEST_OTHER)),
    "rms_norm_eps": (1e-30, 1.0),
    "rope_theta": (1.0, 1e30),
}
OTHER_RANGE = (1e-6, 1e12)


CONFIG_HAS = "The model's config has "  # what errors about a field begin with


def unsupported(field: str, value: object, supported: str) -> UnsupportedModelError:
    """The error for one config field: its name, its value and what would be accepted."""
    return UnsupportedModelError(
        f"{CONFIG_HAS}{field}={_shown(value)}, which is not supported.", f"Supported: {supported}."
    )


def unknown_key(field: str, value: object) -> UnsupportedModelError:
    """The error for a field that no family knows but whose name says that it may matter."""
    return UnsupportedModelError(
        f"{CONFIG_HAS}{field}={_shown(value)}, which is unknown.",
        "It may change the result; leave it out if you know that it does not.",
    )


def missing(field: str, remedy: str = "The file is incomplete or of another family.") -> UnsupportedModelError:
    """The error for a field that must be there."""
    return UnsupportedModelError(f"{CONFIG_HAS}no {field}.", remedy)


def in_range(field: str, value: object) -> float:
    """A number within what RANGES says of the last part of the field's name."""
    least, most = RANGES.get(field.rpartition(".")[2], OTHER_RANGE)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise unsupported(field, value, f"a number from {least:g} to {most:g}")
    return float(value)


def is_number(value: object) -> bool:
    """Whether an equal of False is meant as a number: 0 turns nothing off."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
