"""Small real GGUF files, whole and split, damaged at random by a seeded generator, then opened, built and read.

Whatever the damage, the answer is a whole model or one of Pelton's errors: no other exception, little memory and time.
"""

import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoint.gguf_files import (
    gguf_bytes,
    model_tensors,
    model_values,
    split_values,
    typed_tensors,
    write_parts,
)

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.program.formats import FORMATS

TENSORS = [*model_tensors(), *typed_tensors(rows=1)]
CASES = 2000
MOST_SECONDS = 5.0  # for a case, on a busy machine
MOST_BYTES = 16 << 20  # allocated at once in any case
HOSTILE = (0, 1, 2, 0x7F, 0xFF, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
KEYS = [key.encode() for key, _, _ in [*model_values(), *split_values(0, 1, 1)]]
Damage = Callable[[np.random.Generator, bytes, int], bytes]


def flip_bits(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    changed = bytearray(content)
    for at in rng.integers(0, header, rng.integers(1, 9)):
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def flip_data(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    return content[:header] + flip_bits(rng, content[header:] + b"\0", len(content) - header + 1)


def truncate(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    return content[: rng.integers(0, header if rng.random() < 0.5 else len(content))]


def extend(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 200)))


def hostile_number(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    """A count, length, type, offset or value becomes an extreme one, of 4 or 8 bytes."""
    layout = "<Q" if rng.random() < 0.7 else "<I"
    number = struct.pack(layout, HOSTILE[rng.integers(len(HOSTILE))] & (2 ** (8 * struct.calcsize(layout)) - 1))
    at = 8 + int(rng.integers(2)) * 8 if rng.random() < 0.1 else int(rng.integers(8, header - 8))
    return content[:at] + number + content[at + len(number) :]


def hostile_value(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    """Behind one of the metadata keys: its type, and the value or its length."""
    keys = [key for key in KEYS if key in content]
    at = content.find(keys[rng.integers(len(keys))])
    start = content.find(b"\0\0\0", at) - 1  # the type, whose upper bytes are zeros
    return content[: start - 8] + hostile_number(rng, content[start - 8 :], 32)


def copy_piece(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    length, (source, target) = int(rng.integers(1, 64)), rng.integers(0, header, 2)
    return content[:target] + content[source : source + length] + content[target + length :]


def drop_piece(rng: np.random.Generator, content: bytes, header: int) -> bytes:
    at = int(rng.integers(0, header))
    return content[:at] + content[at + int(rng.integers(1, 40)) :]


DAMAGES: tuple[Damage, ...] = (
    flip_bits, flip_data, truncate, extend, hostile_number, hostile_value, copy_piece, drop_piece,
)  # fmt: skip


def header_size(content: bytes) -> int:
    """At least where the header ends: the last tensor's name and what follows it."""
    names = [tensor.name.encode() if isinstance(tensor.name, str) else tensor.name for tensor in TENSORS]
    return max(content.rfind(name) + len(name) + 36 for name in names)


def outcome(path: Path) -> str:
    try:
        checkpoint = open_checkpoint(path)
    except (CheckpointError, UnsupportedModelError) as error:
        assert len(str(error)) < 4096
        return "refused"
    try:
        metadata = checkpoint.gguf_metadata
        assert metadata is not None
        with np.errstate(all="ignore"):
            for tensor in checkpoint.tensors.values():
                form, raw = FORMATS[tensor.format], tensor.read()
                assert form.decode(raw, 1, len(raw) // form.block_bytes * form.block).size == prod(tensor.shape)
        assert len(dict(metadata)) == len(metadata)
    except CheckpointError:  # arrays are read when asked for
        return "refused"
    finally:
        checkpoint.close()
    return "opened"


def measured(path: Path, what: object) -> str:
    tracemalloc.reset_peak()
    before, started = tracemalloc.get_traced_memory()[0], time.perf_counter()
    found = outcome(path)
    assert time.perf_counter() - started < MOST_SECONDS, what
    assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES, what
    return found


@pytest.mark.parametrize("parts", [1, 3])
def test_damaged_files_are_opened_or_refused(tmp_path: Path, parts: int) -> None:
    if parts == 1:
        paths = [tmp_path / "m.gguf"]
        paths[0].write_bytes(gguf_bytes(model_values(), TENSORS))
    else:
        paths = write_parts(tmp_path, TENSORS, parts)
    whole = [path.read_bytes() for path in paths]
    counts: dict[str, Counter[str]] = {damage.__name__: Counter() for damage in DAMAGES}
    tracemalloc.start()
    try:
        assert measured(paths[0], "undamaged") == "opened"
        for case in range(CASES):
            rng = np.random.default_rng([parts, case])
            target, damage = int(rng.integers(parts)), DAMAGES[case % len(DAMAGES)]
            paths[target].write_bytes(damage(rng, whole[target], header_size(whole[target])))
            found = measured(paths[int(rng.integers(parts))], (damage.__name__, case))
            counts[damage.__name__][found] += 1
            paths[target].write_bytes(whole[target])
    finally:
        tracemalloc.stop()
    print({name: dict(found) for name, found in counts.items()})
    for name in ("flip_bits", "hostile_number", "hostile_value", "copy_piece"):
        assert min(counts[name]["refused"], counts[name]["opened"]) > 0, name
    assert counts["truncate"]["opened"] == counts["drop_piece"]["opened"] == 0
    assert counts["flip_data"]["refused"] == counts["extend"]["refused"] == 0


def test_parts_mixed_at_random(tmp_path: Path) -> None:
    """Parts go missing, change places or come from another model, and the name of one of them opens the rest."""
    paths = write_parts(tmp_path, TENSORS, 3)
    whole = [path.read_bytes() for path in paths]
    foreign = [path.read_bytes() for path in write_parts(tmp_path, TENSORS[1:], 3, "other")]
    counts: Counter[str] = Counter()
    for case in range(200):
        rng = np.random.default_rng(case)
        pool = [*whole, *foreign, None]
        chosen = [whole[i] if rng.random() < 0.7 else pool[rng.integers(len(pool))] for i in range(3)]
        for path, content in zip(paths, chosen, strict=True):
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        present = [path for path in paths if path.exists()]
        found = outcome(present[rng.integers(len(present))]) if present else "refused"
        assert (found == "opened") == (chosen == whole)
        counts[found] += 1
    assert min(counts["opened"], counts["refused"]) > 20
