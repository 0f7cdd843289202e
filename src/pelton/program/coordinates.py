"""coordinates: a digest of what a Module computes, so that keys and values of another are not taken for its own.

A cached key holds where it stands: its rotary angles, which depend on the kind of scaling, its factor, the base and the
length they were frozen for. And it holds all that came before it in the layers below. So the digest covers the ops with
all constants, the caches and how tensors are read; not the tensors' bytes, which the file's own fingerprint covers.
Invariant: equal modules have equal digests, in every process and on every machine.
"""

from array import array
from hashlib import sha256
from sys import byteorder

from pelton.program.module import Module
from pelton.program.op import Op
from pelton.program.weights import Storage


def coordinates(module: Module) -> str:
    """SHA-256 (hex) over states, storages and the ops of all entries. What memory holds is not looked at."""
    digest = sha256()
    for state in sorted(module.states.values(), key=lambda state: state.name):
        digest.update(repr(state).encode())
    for view in sorted(module.weights.values(), key=lambda view: view.name):
        digest.update(repr(view).encode())
    for name in sorted(module.storages):
        digest.update(_storage(module.storages[name]))
    for name in sorted(module.entries):
        entry = module.entries[name]
        digest.update(repr((name, entry.inputs, entry.outputs)).encode())
        for op in entry.ops:
            digest.update(_op(op).encode())
    return digest.hexdigest()


def _storage(storage: Storage) -> bytes:
    order = array("q", storage.row_order or ())
    if byteorder == "big":
        order.byteswap()
    read = (storage.format, storage.plus, storage.form, storage.made)
    known = (storage.name, storage.rows, storage.cols, *read, len(order))
    return repr(known).encode() + order.tobytes()


def _op(op: Op) -> str:
    """repr tells numbers apart to the last bit."""
    return repr((op.kind, op.inputs, op.outputs, op.weights, op.state, sorted(op.attrs.items())))
