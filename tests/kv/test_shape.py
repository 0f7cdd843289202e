"""The shape of the KV memory: what is counted, what is told of the tree, and that what is left out is counted."""

import json
from typing import Any

import pytest
from tests.kv.test_prefix import SIZE, begin, store, windows

from pelton.core.config import CacheSection
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.kv.shape import DEEPEST, Wanted, shape
from pelton.kv.table import BlockTable


def told(source: Blocks, runs: int = 100, tokens: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(shape(source, Wanted(runs, tokens))))
    return found


def test_blocks_by_state_and_the_tree_in_runs() -> None:
    source, tree = store(20)
    tables = [begin(source, text) for text in ("aabbccdd", "aabbccdd", "aabbccee", "aabbff")]
    assert all(tables)
    for table in tables[2:]:
        assert table is not None
        table.release()
    seen = told(source, tokens=True)
    assert seen["groups"] == [
        {"window": None, "total": 20, "held": 4, "shared": 4, "cached": 2, "free": 14, "saved": 4}
    ]
    assert (seen["namespaces"], seen["nodes"], seen["depth"], seen["left_out"]) == (1, 6, 4, 0)
    (space,) = seen["tree"]
    (first,) = space["children"]
    assert (first["nodes"], first["held"], first["cached"], first["behind"]) == (2, 2, 0, 4)
    assert bytes(first["tokens"]).decode() == "aabb" and first["computing"] == 2
    assert [(run["nodes"], run["behind"], bytes(run["tokens"]).decode()) for run in first["children"]] == [
        (1, 2, "cc"), (1, 0, "ff"),
    ]  # fmt: skip
    assert [bytes(run["tokens"]).decode() for run in first["children"][0]["children"]] == ["dd", "ee"]
    assert "tokens" not in told(source)["tree"][0]["children"][0]
    assert tree.root_of(b"").digest.hex().startswith(space["name"])


@pytest.mark.parametrize(("runs", "left"), [(0, 6), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)])
def test_what_is_left_out_is_counted(runs: int, left: int) -> None:
    source, _ = store(20)
    for text in ("aabbccdd", "aabbccee", "aabbff"):
        begin(source, text)
    assert told(source, runs)["left_out"] == left


def test_namespaces_are_told_by_digest_and_the_largest_first() -> None:
    source, _ = store(20)
    begin(source, "aa", "secret salt")
    begin(source, "aabbcc", "other")
    seen = told(source)
    assert [space["nodes"] for space in seen["tree"]] == [3, 1] and "secret" not in json.dumps(seen)


def test_windows_count_each_group() -> None:
    source, _ = windows(9, None, 3)
    table = BlockTable(source)
    assert table.grow(8) is not None
    seen = told(source)["groups"]
    assert [(group["window"], group["held"], group["free"]) for group in seen] == [(None, 4, 5), (3, 4, 5)]


def test_without_prefix_caching_there_is_no_tree() -> None:
    source = Blocks((KVGroup(BlockPool(5)),), SIZE, CacheSection(enable_prefix_caching=False))
    assert BlockTable(source).grow(4) is not None
    seen = told(source)
    assert seen["prefix_caching"] is False and seen["groups"][0]["held"] == 2 and "tree" not in seen


def test_a_deep_tree_is_cut() -> None:
    """Each node has a side branch, so that each is a run of its own."""
    depth = DEEPEST + 20
    source, _ = store(2 * depth + 2)
    for length in range(1, depth + 1):
        begin(source, "a" * SIZE * length + "b" * SIZE)
    seen = told(source, 1000)
    assert seen["nodes"] == 2 * depth and 0 < seen["left_out"] <= 2 * 21
