"""Reads the rotary parameters of a config in all spellings. Knows the keys; what they mean is the kinds' business.

Spellings: `rope_parameters` (one table, or one for each layer type), or `rope_theta` beside `rope_scaling`; `rope_type`
or `type` in the table. Invariant: a key of the table is an option of its kind, or neutral, or refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pelton.core.errors import CheckpointError
from pelton.layers import ROPES
from pelton.layers.rope import ORIGINAL_CONTEXT, Form, Option, RopeOption, RopeParameters
from pelton.layers.rotary import longest_text, read_divisors
from pelton.models.checks import LARGEST_OTHER, OFF, in_range, is_number, missing, unknown_key, unsupported
from pelton.program.weights import TensorSource

SPELLINGS = ("rope_parameters", "rope_scaling")
PARTIAL = "partial_rotary_factor"
THETA = "rope_theta"
OLD_NAMES = {"su": "longrope"}  # of kinds, in configs
KEYS = ("rope_type", "type", THETA, ORIGINAL_CONTEXT, PARTIAL, "finetuned")
# Of kinds that do not take these: the value that changes nothing. The last three are GGUF's.
NEUTRAL: Mapping[str, float] = {
    "attention_factor": 1, "attn_factor": 1, "mscale": 1, "mscale_all_dim": 1,
    "yarn_ext_factor": 1, "yarn_attn_factor": 1, "yarn_log_multiplier": 0,
}  # fmt: skip

LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"  # of a GGUF
DIVISOR_TENSORS = (LONG_DIVISORS, SHORT_DIVISORS)


@dataclass(frozen=True, slots=True)
class RopeWanted:
    """What a family asks for: rotated numbers of a head, the config's context, the base where nothing says one.

    `layer_type`: whose table is read where there is one for each. `partial`: the share of a head that `dim` is, which a
    table may say too. `theta` and `scaled` are those outside of a table.
    """

    dim: int
    context: int
    theta: float
    layer_type: str | None = None
    partial: float = 1.0
    scaled: bool = True


def read_rope(raw: Mapping[str, object], wanted: RopeWanted) -> RopeParameters:
    """Rotary parameters of the config `raw`; raises UnsupportedModelError naming the field that cannot be.

    Where both spellings are given they must say the same: which of them is meant differs between programs.
    """
    given = [name for name in SPELLINGS if raw.get(name) and (wanted.scaled or _by_layer(raw[name], wanted.layer_type))]
    found = [_read_table(raw, field, wanted) for field in given or SPELLINGS[:1]]
    if found[0] != found[-1]:
        raise unsupported(given[-1], raw[given[-1]], f"the same as in {given[0]}, or one of the two alone")
    return found[0]


def read_partial(raw: Mapping[str, object], default: float, layer_type: str | None = None) -> float:
    """The share of a head that is rotated: partial_rotary_factor, in the table or outside of it, or the default."""
    places = {PARTIAL: raw.get(PARTIAL)}  # a table's own says more than one for all, but no file has two
    for field in SPELLINGS:
        name, table = _table_of(raw, field, layer_type)
        places[f"{name}.{PARTIAL}"] = table.get(PARTIAL)
    said = {field: value for field, value in places.items() if value is not None}
    for field, value in said.items():
        if not is_number(value) or not 0 < in_range(field, value) <= 1:
            raise unsupported(field, value, "a number above 0, up to 1")
        if value != next(iter(said.values())):
            raise unsupported(field, value, f"the same as {next(iter(said))}, or one of the two alone")
    return next((in_range(field, value) for field, value in said.items()), default)


def has_original(raw: Mapping[str, object]) -> bool:
    """Whether the config says how long texts were before scaling, in a table for all layers or outside of it."""
    tables = (_table_of(raw, field, None)[1] for field in SPELLINGS)
    return any(place.get(ORIGINAL_CONTEXT) for place in (raw, *tables))


def with_divisors(parameters: RopeParameters, tensors: Mapping[str, TensorSource]) -> RopeParameters:
    """The parameters with a GGUF's rope_factors_short and rope_factors_long as options, where the file has them.

    Families whose files may hold them call this before `rotation_of`, and ignore DIVISOR_TENSORS in `finish`.
    """
    found = {name: tensors[name] for name in DIVISOR_TENSORS if name in tensors}
    if not found:
        return parameters
    options = {option.name for option in ROPES.get(parameters.kind)().options}
    if len(found) < len(DIVISOR_TENSORS) or not {"long_factor", "short_factor"} <= options:
        names = " and ".join(found)
        raise CheckpointError(
            f"The file has {names}, but its rotary scaling is {parameters.kind!r}.", "It needs both, and longrope."
        )
    lists: dict[str, Option] = {
        "long_factor": tuple(read_divisors(found[LONG_DIVISORS], parameters.dim // 2)),
        "short_factor": tuple(read_divisors(found[SHORT_DIVISORS], parameters.dim // 2)),
    }
    return replace(parameters, options={**parameters.options, **lists})


def _by_layer(table: object, layer_type: str | None) -> bool:
    """Whether there is a table for each layer type, of which this one is wanted."""
    if not isinstance(table, Mapping) or layer_type is None:
        return False
    return layer_type in table or any(isinstance(value, Mapping) for value in table.values())


def _table_of(raw: Mapping[str, object], field: str, layer_type: str | None) -> tuple[str, Mapping[str, object]]:
    """The table's name in the config and its content, of one layer type where there are several."""
    table = raw.get(field) or {}
    if not isinstance(table, Mapping):
        raise unsupported(field, table, "a table of rotary parameters")
    if not _by_layer(table, layer_type):
        return field, table
    name, inner = f"{field}.{layer_type}", table.get(layer_type) or {}
    if not isinstance(inner, Mapping):
        raise unsupported(name, inner, "a table of rotary parameters")
    return name, inner


def _read_table(raw: Mapping[str, object], field: str, wanted: RopeWanted) -> RopeParameters:
    by_layer = _by_layer(raw.get(field), wanted.layer_type)
    name, table = _table_of(raw, field, wanted.layer_type) if wanted.scaled or by_layer else (field, {})
    kind = _kind(name, table)
    theta = in_range(f"{name}.{THETA}", wanted.theta if table.get(THETA) is None else table[THETA])
    # The length before scaling: a key of its own wins over the table's; without both, the model's context.
    original = raw.get(ORIGINAL_CONTEXT) or table.get(ORIGINAL_CONTEXT) or wanted.context
    known = {**table, ORIGINAL_CONTEXT: original}
    options: dict[str, Option] = {}
    for option in ROPES.get(kind)().options:
        value = known.pop(option.name, None)
        if value is None and option.required:
            raise missing(f"{name}.{option.name}", f"{name}.rope_type={kind!r} needs it: {option.form.value}.")
        if value is not None:
            options[option.name] = _option(f"{name}.{option.name}", option, value, wanted.dim)
    _refuse_others(name, known, wanted.partial)
    parameters = RopeParameters(kind, theta, wanted.dim, wanted.context, options)
    if not 1 <= longest_text(parameters) <= LARGEST_OTHER:
        raise unsupported(f"{name}.factor", table.get("factor"), f"one that gives at most {LARGEST_OTHER} positions")
    return parameters


def _kind(name: str, table: Mapping[str, object]) -> str:
    said = table.get("rope_type", table.get("type"))
    if said is None and any(table.get(option.name) is not None for option in _scaled_options()):
        raise missing(f"{name}.rope_type", f"Say how positions are scaled, by one of: {', '.join(ROPES.names())}.")
    said = said or "default"
    kind = OLD_NAMES.get(said, said) if isinstance(said, str) else said
    if not isinstance(kind, str) or kind not in ROPES:
        raise unsupported(f"{name}.rope_type", said, ", ".join(ROPES.names()))
    other = table.get("type")
    if other not in (None, said, kind):
        raise unsupported(f"{name}.type", other, f"{said!r}, as rope_type says")
    return kind


def _scaled_options() -> list[RopeOption]:
    """Those of all kinds that mean a scaling; others may stand beside plain rotary positions."""
    options = [option for kind in ROPES for option in ROPES.get(kind)().options]
    return [option for option in options if option.name not in (*KEYS, *NEUTRAL)]


def _option(name: str, option: RopeOption, value: object, dim: int) -> Option:
    if option.form is Form.FLAG:
        if not isinstance(value, bool):
            raise unsupported(name, value, option.form.value)
        return value
    if option.form is Form.PAIRS:
        if not isinstance(value, (list, tuple)) or len(value) != dim // 2:
            raise unsupported(name, value, f"a list of {dim // 2} numbers, one for each rotated pair")
        return tuple(in_range(f"{name}[{place}]", number) for place, number in enumerate(value))
    if option.form is Form.FROM_ZERO and value == 0 and is_number(value):
        return 0.0
    number = in_range(name, value)
    if option.form is Form.FROM_ONE and number < 1:
        raise unsupported(name, value, option.form.value)
    return number


def _refuse_others(name: str, table: Mapping[str, object], partial: float) -> None:
    """Refuses what is no option of the kind, unless it is neutral."""
    for key, value in table.items():
        if key == PARTIAL and value not in (None, partial):
            raise unsupported(f"{name}.{key}", value, f"{partial:g}")
        if key in NEUTRAL and value not in (None, NEUTRAL[key]):
            raise unsupported(f"{name}.{key}", value, f"{NEUTRAL[key]:g}")
        if key not in (*KEYS, *NEUTRAL) and (value not in OFF or is_number(value)):
            raise unknown_key(f"{name}.{key}", value)
