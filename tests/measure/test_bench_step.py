"""bench.step: ops of all layers in groups beside their limits, medians of processes, and the table made of them."""

from typing import Any

from bench.peers import table
from bench.step import figures_of, medians


def op(kind: str, ms: float, *weights: str) -> dict[str, Any]:
    return {"kind": kind, "weights": dict.fromkeys(weights), "seconds": ms / 1000, "limit_seconds": ms / 2000}


def run(ms: float) -> dict[str, Any]:
    ops = [op("embed", 1, "model.embed_tokens.weight:gather"), op("rope_kv", 2)]
    for layer in range(2):
        front = f"model.layers.{layer}.self_attn"
        ops += [op("linear", ms, f"{front}.q_proj.weight", f"{front}.k_proj.weight"), op("attend", 3)]
    times = {"step": 20 + ms, "limit": 10, "waiting": 1, "around": 0.5, "python": 0.25}
    return {"ops": ops, **{f"{name}_seconds": value / 1000 for name, value in times.items()}}


def test_ops_of_all_layers_are_a_group_and_runs_have_a_median() -> None:
    found = medians([figures_of(run(ms)) for ms in (4, 6, 40)])
    assert found["q_proj, k_proj"] == {"ms": 12, "limit_ms": 6}
    assert found["attend"]["ms"] == 6 and found["other"]["ms"] == 3
    assert found["step"] == {"ms": 26, "limit_ms": 10, "min_ms": 24, "max_ms": 60, "runs": 3}
    assert found["python"] == {"ms": 0.25, "limit_ms": 0}


def test_the_table_has_the_last_line_of_each_precision() -> None:
    lines = [
        {"settings": {"formats": formats}, "figures": {"chat": medians([figures_of(run(ms))])}}
        for formats, ms in (("bf16", 1), ("q8", 2), ("bf16", 4))
    ]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.step(lines).splitlines()]
    assert rows[0][:4] == ["weights", "workload", "step, ms", "other, ms"]
    assert [row[:3] for row in rows[2:]] == [["bf16", "chat", "24.00 (42%)"], ["q8", "chat", "22.00 (45%)"]]
    assert rows[2][4] == "8.00 (50%)" and rows[2][rows[0].index("python, ms")] == "0.25"
