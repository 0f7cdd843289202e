"""The digest of a module's computation: equal for equal modules, another for every change of where a key stands."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.mini import CONFIG, Source
from tests.models.test_llama_module import shapes
from tests.program.sources import ShapeSource, dense

from pelton.models import build_module
from pelton.program.coordinates import coordinates
from pelton.program.module import Entry, Module
from pelton.program.op import Op
from pelton.program.passes import run_passes
from pelton.program.states import KVSpec, State
from pelton.program.weights import VECTOR, Storage, WeightView

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LISTS = {"short_factor": [1.5] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}


def module(length: int | None = None, **changes: Any) -> Module:
    config = {**CONFIG, **changes}
    return build_module(Source({n: ShapeSource(n, s) for n, s in shapes(config).items()}, config), length)


def scaled(length: int | None = None, **options: Any) -> Callable[[], Module]:
    return lambda: module(length, rope_scaling=options)


def with_attend(**attrs: Any) -> Module:
    """The plain module with these constants in its first attend."""
    made = module()
    entry = made.entries["target"]
    place = next(i for i, op in enumerate(entry.ops) if op.kind == "attend")
    ops = list(entry.ops)
    ops[place] = replace(ops[place], attrs={**ops[place].attrs, **attrs})
    return made.with_entry(replace(entry, ops=tuple(ops)))


def with_window(window: int) -> Module:
    made = module()
    states = {name: replace(state, spec=replace(state.spec, window=window)) for name, state in made.states.items()}
    return replace(made, states=states)


DIFFERENT: dict[str, Callable[[], Module]] = {
    "plain": module,
    "base": lambda: module(rope_theta=10000.000000000002),
    "linear": scaled(type="linear", factor=2.0),
    "linear, another factor": scaled(type="linear", factor=4.0),
    "ntk": scaled(type="ntk", factor=2.0),
    "dynamic": scaled(type="dynamic", factor=2.0),
    "dynamic, frozen for less": scaled(5000, type="dynamic", factor=2.0),
    "yarn": scaled(**YARN),
    "yarn, another temperature": scaled(**YARN, attention_factor=1.0),
    "yarn, another original": scaled(**{**YARN, "original_max_position_embeddings": 2048}),
    "longrope": scaled(type="longrope", **LISTS),
    "longrope, short": scaled(64, type="longrope", **LISTS, attention_factor=1.0),
    "slopes": lambda: with_attend(slopes=(0.5,) * CONFIG["num_attention_heads"]),
    "other slopes": lambda: with_attend(slopes=(0.25,) * CONFIG["num_attention_heads"]),
    "scale": lambda: with_attend(scale=0.3),
    "window": lambda: with_window(64),
    "wider window": lambda: with_window(65),
    "eps": lambda: module(rms_norm_eps=2e-5),
    "layers": lambda: module(num_hidden_layers=2),
}


def test_every_change_changes_it() -> None:
    found = {name: coordinates(make()) for name, make in DIFFERENT.items()}
    assert len(set(found.values())) == len(found), found
    passed = {name: coordinates(run_passes(make())) for name, make in DIFFERENT.items()}
    assert len(set(passed.values())) == len(passed), passed


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_modules_have_equal_digests(name: str) -> None:
    assert coordinates(DIFFERENT[name]()) == coordinates(DIFFERENT[name]())


def test_a_length_counts_only_where_positions_depend_on_it() -> None:
    assert coordinates(module()) == coordinates(module(100))
    short = scaled(type="dynamic", factor=2.0)
    assert coordinates(module(100, rope_scaling={"type": "dynamic", "factor": 2.0})) == coordinates(module())
    assert coordinates(module(8192, rope_scaling={"type": "dynamic", "factor": 2.0})) == coordinates(short())


def test_it_is_the_same_in_another_process() -> None:
    code = (
        "from tests.program.test_coordinates import module; "
        "from pelton.program.coordinates import coordinates; print(coordinates(module()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == coordinates(module())


def test_the_order_of_rows_in_a_file_counts() -> None:
    """Files that keep pairs side by side have their rows of q and k read in another order."""
    config = dict(CONFIG)
    tensors = {n: ShapeSource(n, s) for n, s in shapes(config).items()}
    assert coordinates(build_module(Source(tensors, config, "gguf"))) != coordinates(module())


# ---------------------------------------------------------------------------------------------------
# each field alone, in a module of one op

OP = Op("scale", ("x",), ("y",), ("w",), "kv", {"eps": 1e-5, "heads": 2, "interleaved": False})
ENTRY = Entry("target", (OP,), {}, ("x",), ("y",))
STATE = State("kv", KVSpec(2, 16, 16), 3)
STORAGE = Storage("w", 1, 3, dense("w", np.zeros(3)), (0, 1, 2))
VIEW = WeightView("w", "w", VECTOR)


def small(
    op: Mapping[str, Any] = {}, entry: Mapping[str, Any] = {}, state: Mapping[str, Any] = {},
    storage: Mapping[str, Any] = {}, view: Mapping[str, Any] = {},
) -> Module:  # fmt: skip
    """The module of these five records, with other fields."""
    made = replace(ENTRY, **{"ops": (replace(OP, **op),), **entry})
    states = {STATE.name: replace(STATE, **state)}
    return Module({"w": replace(STORAGE, **storage)}, {"w": replace(VIEW, **view)}, states, {made.name: made}, 9, 64)


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("op", {"kind": "add"}),
    ("op", {"inputs": ("z",)}),
    ("op", {"outputs": ("z",)}),
    ("op", {"weights": ("v",)}),
    ("op", {"weights": ()}),
    ("op", {"state": "other"}),
    ("op", {"state": None}),
    ("op", {"attrs": {**OP.attrs, "eps": 1.0000000000000003e-5}}),
    ("op", {"attrs": {**OP.attrs, "more": 1}}),
    ("entry", {"name": "draft"}),
    ("entry", {"inputs": ("x", "z")}),
    ("entry", {"outputs": ()}),
    ("entry", {"ops": (OP, OP)}),
    ("state", {"layers": 4}),
    ("state", {"spec": KVSpec(1, 16, 16)}),
    ("storage", {"name": "v"}),
    ("storage", {"rows": 2}),
    ("storage", {"cols": 4}),
    ("storage", {"source": dense("w", np.zeros(3), "F16")}),
    ("storage", {"plus": 1.0}),
    ("storage", {"row_order": None}),
    ("storage", {"row_order": (0, 2, 1)}),
    ("view", {"name": "v"}),
    ("view", {"storage": "v"}),
    ("view", {"use": "matrix"}),
    ("view", {"shard": "rows"}),
]


@pytest.mark.parametrize(("record", "fields"), FIELDS, ids=lambda given: str(given)[:40])
def test_every_field_counts(record: str, fields: dict[str, Any]) -> None:
    assert coordinates(small(**{record: fields})) != coordinates(small())


def test_the_order_in_which_attrs_are_given_does_not_count() -> None:
    assert coordinates(small(op={"attrs": dict(reversed(OP.attrs.items()))})) == coordinates(small())


def test_what_memory_holds_and_a_sources_name_do_not_count() -> None:
    again = small(storage={"source": dense("other", np.ones(3))})
    assert coordinates(replace(again, context=128)) == coordinates(small())
