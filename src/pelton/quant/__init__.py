"""Weight schemes, how a checkpoint stores the numbers of its matrices, and ways to quantise dense ones at load.

Holds their registries and the choice.
"""

from collections.abc import Iterable

from pelton.core.errors import UnknownNameError, UnsupportedModelError
from pelton.core.registry import Registry, parse_choice
from pelton.program.weights import Storage
from pelton.quant.method import Method
from pelton.quant.scheme import WeightScheme

SCHEMES: Registry[type[WeightScheme]] = Registry(
    "weight_scheme",
    {
        "dense": "pelton.quant.schemes.dense:Dense",
        "integer_codes": "pelton.quant.schemes.integer_codes:IntegerCodes",
    },
)
QUANTIZATIONS: Registry[type[Method]] = Registry(
    "quantization",
    {
        "int4": "pelton.quant.methods.int4:Int4",
        "int8": "pelton.quant.methods.int8:Int8",
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


def method_for(setting: str, text: str) -> Method:
    """The way to quantise that a setting's value names; SettingError for what there is not."""
    choice = parse_choice(setting, text)
    if choice.name not in QUANTIZATIONS:
        raise UnknownNameError(
            f"{setting}={text!r} cannot work.",
            f"There are {', '.join(QUANTIZATIONS.names())}. How a checkpoint is quantised is seen by its files.",
        )
    return QUANTIZATIONS.get(choice.name)(choice)
