"""The layer loop that decoder-only families share: attention and MLP with residuals and norms, final norm, head.

What differs between families is handed in as blocks; a block adds its ops and knows its own tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pelton.layers.embedding import embed, head
from pelton.layers.linear import add
from pelton.layers.norm import NormShape, norm
from pelton.program.builder import Builder

Block = Callable[[str, str, int], str]  # (input [T, hidden], tensor prefix of the layer, its number) -> [T, hidden]

EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_NORM = "model.embed_norm"
FINAL_NORM = "model.norm"
HEAD = "lm_head.weight"
IDS, POSITIONS = "ids", "positions"


@dataclass(frozen=True, slots=True)
class Norms:
    """Names of a layer's norms, below its prefix; None: there is none at that place. The default is pre-norm."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the blocks. `tied`: without a head of its own, the embedding serves as head.

    `embed_scale` multiplies embeddings, `logit_scale` logits; `softcap`: of the logits (0: none). `embed_norm`: the
    embedding is normed (EMBEDDING_NORM) before the first layer.
    """

    layers: int
    hidden: int
    vocab: int
    norm: NormShape
    tied: bool
    norms: Norms = field(default_factory=Norms)
    embed_scale: float = 1.0
    embed_norm: bool = False
    logit_scale: float = 1.0
    softcap: float = 0.0


def add_decoder(builder: Builder, frame: Frame, attention: Block, mlp: Block) -> None:
    """Adds the entry "target" with inputs ids and positions (declared before, for the blocks' own tables)."""

    def normed(x: str, layer: str) -> str:
        return norm(builder, x, layer, frame.hidden, frame.norm, f"{layer}.normed")

    def around(block: Block, x: str, number: int, before: str | None, after: str | None, name: str) -> str:
        layer = f"model.layers.{number}"
        y = block(normed(x, f"{layer}.{before}") if before else x, layer, number)
        return add(builder, normed(y, f"{layer}.{after}") if after else y, x, f"{layer}.{name}")

    norms = frame.norms
    x = embed(builder, IDS, EMBEDDING, frame.vocab, frame.hidden, frame.embed_scale)
    if frame.embed_norm:
        x = normed(x, EMBEDDING_NORM)
    for number in range(frame.layers):
        x = around(attention, x, number, norms.before_attention, norms.after_attention, "attended")
        x = around(mlp, x, number, norms.before_mlp, norms.after_mlp, "out")
    x = normed(x, FINAL_NORM)
    # Files of tied models may hold the head once more; if it differs, the file means it.
    tied = frame.tied and not builder.has(HEAD)
    tensor = EMBEDDING if tied else HEAD
    head(builder, x, tensor, frame.vocab, frame.hidden, scale=frame.logit_scale, softcap=frame.softcap)
    builder.entry("target", (IDS, POSITIONS))
