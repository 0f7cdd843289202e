"""Feed-forward blocks."""

from dataclasses import dataclass

from pelton.layers.linear import linear
from pelton.program.builder import Builder

# Names in configs -> the activation of the `gated` op. "gelu" alone means the erf form and is not among them.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class MLPShape:
    """Sizes of a gated MLP; `activation` is one of the `gated` op's; `biased`: all three projections have biases."""

    hidden: int
    inner: int
    activation: str
    biased: bool = False


def gated_mlp(builder: Builder, x: str, prefix: str, shape: MLPShape) -> str:
    """Adds down(act(gate(x)) * up(x)) (arXiv 2002.05202) from `prefix`.{gate,up,down}_proj; returns [T, hidden]."""

    def project(part: str, source: str, size: tuple[int, int], shard: str) -> str:
        return linear(
            builder, source, f"{prefix}.{part}_proj", size, f"{prefix}.{part}", shard=shard, bias=shape.biased
        )

    gate = project("gate", x, (shape.inner, shape.hidden), "rows")
    up = project("up", x, (shape.inner, shape.hidden), "rows")
    (joined,) = builder.op("gated", (gate, up), (f"{prefix}.gated",), attrs={"activation": shape.activation})
    return project("down", joined, (shape.hidden, shape.inner), "cols")


def plain_mlp(builder: Builder, x: str, prefix: str, shape: MLPShape) -> str:
    """Adds down(act(up(x))) from `prefix`.{up,down}_proj; returns [T, hidden]."""
    inner = linear(
        builder, x, f"{prefix}.up_proj", (shape.inner, shape.hidden), f"{prefix}.up", shard="rows", bias=shape.biased
    )
    (active,) = builder.op("activate", (inner,), (f"{prefix}.active",), attrs={"activation": shape.activation})
    size = (shape.hidden, shape.inner)
    return linear(builder, active, f"{prefix}.down_proj", size, f"{prefix}.down", shard="cols", bias=shape.biased)
