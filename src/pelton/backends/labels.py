"""Names of a program's ops for people. Not identities: they are made anew from the ops, in their order."""

import re
from collections import Counter
from collections.abc import Sequence

from pelton.program.op import Op

_IN_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def labels(ops: Sequence[Op]) -> tuple[str, ...]:
    """One for each op: "layer 3 attend", "head". Equal ones are told apart by what they make: "layer 3 linear (q)"."""
    names = [f"layer {layer} {op.kind}" if (layer := _layer(op)) is not None else op.kind for op in ops]
    shared = {name for name, count in Counter(names).items() if count > 1}
    return tuple(
        f"{name} ({', '.join(map(_tail, op.outputs or op.inputs))})" if name in shared else name
        for name, op in zip(names, ops, strict=True)
    )


def _layer(op: Op) -> int | None:
    """The layer that its values' names say; else the op's own, which counts within a KV group."""
    for name in op.outputs or (op.inputs if op.state else ()):
        found = _IN_LAYER.search(name)
        if found:
            return int(found[1])
    return op.integer("layer") if "layer" in op.attrs else None


def _tail(value: str) -> str:
    """A value's name behind that of its layer."""
    found = _IN_LAYER.search(value)
    return value[found.end() :] if found else value
