"""Settings files of a checkpoint folder. A malformed one raises CheckpointError with file and line; writes nothing."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pelton.core.errors import CheckpointError

MAX_BYTES = 100_000_000
T = TypeVar("T")


def read_text(path: Path) -> str:
    """A text file in UTF-8."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: is missing or no regular file.", "Check the model's folder.")
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_BYTES} bytes.", "This is not a settings file of a model.")
        return path.read_bytes().decode()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).", "Check the file and its permissions.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not valid UTF-8 at byte {error.start}.", "Fetch the model again.") from None


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}, line {error.lineno}, column {error.colno}: malformed JSON ({error.msg}).",
            "Fetch the model again.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: JSON that cannot be read ({error}).", "Fetch the model again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds no JSON object.", "Fetch the model again.")
    return value


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file whose content must be of `kind`."""
    content = read_object(path)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}.", "Fetch the model again.") from None
