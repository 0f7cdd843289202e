"""Weight schemes: how a checkpoint stores the numbers of its matrices. Holds their registry and the choice."""

from collections.abc import Iterable

from pelton.core.errors import UnsupportedModelError
from pelton.core.registry import Registry
from pelton.program.weights import Storage
from pelton.quant.scheme import WeightScheme

SCHEMES: Registry[type[WeightScheme]] = Registry(
    "weight_scheme",
    {
        "dense": "pelton.quant.schemes.dense:Dense",
        "gguf_blocks": "pelton.quant.schemes.gguf_blocks:GgufBlocks",
    },
)


def scheme_name(storages: Iterable[Storage]) -> str:
    """The scheme that claims all formats of these storages; raises UnsupportedModelError naming them if none does."""
    formats = frozenset(storage.format for storage in storages)
    for name in SCHEMES:
        if SCHEMES.get(name)().claims(formats):
            return name
    raise UnsupportedModelError(
        f"The checkpoint stores weights as {', '.join(sorted(formats))}, together in no known scheme.",
        f"Known schemes: {', '.join(SCHEMES.names())}.",
    )
