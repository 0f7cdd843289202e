"""The builder's accounting: every tensor used once or refused, groups of equal states, shapes that fit."""

from collections.abc import Callable

import pytest
from tests.program.sources import ShapeSource

from pelton.core.errors import CheckpointError, UnknownNameError, UnsupportedModelError
from pelton.program.builder import Builder
from pelton.program.op import Attr
from pelton.program.states import KVSpec

SHAPES = {"table": (10, 64), "wide": (96, 64), "gain": (64,), "short": (63,)}


@pytest.fixture
def builder() -> Builder:
    """A builder with values ids, positions, x [T, 64] and y [T, 96]."""
    builder = Builder({name: ShapeSource(name, shape) for name, shape in SHAPES.items()})
    builder.input("ids")
    builder.input("positions")
    builder.op("embed", ("ids",), ("x",), weights=(builder.gather("table", 10, 64),))
    builder.op("linear", ("x",), ("y",), weights=(builder.matrix("wide", 96, 64),))
    return builder


def test_unused_tensors_are_refused_by_name(builder: Builder) -> None:
    builder.entry("target", ("ids",))
    with pytest.raises(UnsupportedModelError, match="2 tensors.*'gain'"):
        builder.finish(vocab=10, context=8)
    with pytest.raises(UnsupportedModelError, match="1 tensors.*'short'"):
        builder.finish(vocab=10, context=8, ignored=("ain",))
    module = builder.finish(vocab=10, context=8, ignored=("gain", "short"))
    assert set(module.storages) == {"table", "wide"}


def test_missing_tensors_and_other_shapes_are_refused_by_name(builder: Builder) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'other'"):
        builder.vector("other", 3)
    with pytest.raises(CheckpointError, match=r"'table' has shape \(10, 64\), but the config asks for \(10, 65\)"):
        builder.matrix("table", 10, 65)


def test_two_views_share_one_storage(builder: Builder) -> None:
    view = builder.matrix("table", 10, 64)
    builder.op("head", ("x",), weights=(view,))
    builder.entry("target", ("ids",))
    module = builder.finish(vocab=10, context=8, ignored=("gain", "short"))
    assert {view.storage for view in module.weights.values()} == {"table", "wide"}
    assert len(module.weights) == 3
    assert module.weight_bytes == 2 * (640 + 96 * 64)


def test_equal_states_are_one_group(builder: Builder) -> None:
    wide, narrow = KVSpec(2, 32, 32), KVSpec(1, 32, 32, window=64)
    assert builder.state(wide) == ("kv0", 0)
    assert builder.state(narrow) == ("kv1", 0)
    assert builder.state(wide) == ("kv0", 1)
    builder.entry("target", ("ids",))
    module = builder.finish(vocab=10, context=8, ignored=("gain", "short"))
    assert module.kv_token_bytes(2) == 2 * (2 * 64) * 2 + 64 * 2


def test_names_are_unique_and_kinds_known(builder: Builder) -> None:
    with pytest.raises(ValueError, match="'y' is defined twice"):
        builder.op("add", ("x", "x"), ("y",))
    with pytest.raises(UnknownNameError, match="linear"):
        builder.op("liner", ("x",), ("z",))


def test_entries_start_empty(builder: Builder) -> None:
    builder.entry("one", ("ids",))
    builder.input("ids")
    builder.op("embed", ("ids",), ("x",), weights=(builder.gather("table", 10, 64),))
    builder.entry("two", ("ids",))
    module = builder.finish(vocab=10, context=8, ignored=("gain", "short"))
    assert [len(module.entries[name].ops) for name in ("one", "two")] == [2, 1]
    assert set(module.entries["two"].values) == {"ids", "x"}


def _op(kind: str, inputs: tuple[str, ...], attrs: dict[str, Attr] | None = None) -> Callable[[Builder], object]:
    def add(builder: Builder) -> object:
        weights = {"rms_norm": (builder.vector("short", 63),), "linear": (builder.matrix("wide", 96, 64),)}
        state = builder.state(KVSpec(2, 16, 16))[0] if kind in ("kv_write", "attend") else None
        outputs = () if kind in ("kv_write", "head") else ("z",)
        matrix = (builder.matrix("wide", 96, 64),) if kind == "head" else weights.get(kind, ())
        return builder.op(kind, inputs, outputs, weights=matrix, state=state, attrs=attrs)

    return add


@pytest.mark.parametrize(
    ("misfit", "message"),
    [
        (_op("add", ("x", "y")), "shapes"),
        (_op("gated", ("x", "y"), {"activation": "silu"}), "gated"),
        (_op("gated", ("x", "x"), {"activation": "relu"}), "'relu'"),
        (_op("linear", ("y",)), "input width 96, but 'wide:matrix' has 64 columns"),
        (_op("rms_norm", ("x",)), "width 64"),
        (_op("kv_write", ("x", "x"), {"layer": 0}), "widths 64, 64"),
        (_op("attend", ("x",), {"heads": 3, "layer": 0}), "3 heads"),
        (_op("attend", ("y",), {"heads": 6, "layer": 0}), None),
        (_op("head", ("y",)), "head"),
    ],
)
def test_shapes_must_fit(builder: Builder, misfit: Callable[[Builder], object], message: str | None) -> None:
    if message is None:
        assert misfit(builder) == ("z",)
        return
    with pytest.raises(ValueError, match=message):
        misfit(builder)


def test_rope_tables_wider_than_a_head_are_refused(builder: Builder) -> None:
    builder.op("rope_table", ("positions",), ("table",), attrs={"inverse_frequencies": (1.0, 0.1), "factor": 1.0})
    builder.op("rope", ("x", "table"), ("fits",), attrs={"heads": 16})
    with pytest.raises(ValueError, match="wider than a head"):
        builder.op("rope", ("x", "table"), ("z",), attrs={"heads": 32})
