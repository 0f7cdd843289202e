"""The layer loop that decoder-only families share: pre-norm attention and MLP with residuals, final norm, head.

What differs between families is handed in as blocks; a block adds its ops and knows its own tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pelton.layers.embedding import embed, head
from pelton.layers.linear import add
from pelton.layers.norm import rms_norm
from pelton.program.builder import Builder

Block = Callable[[str, str], str]  # (normed input [T, hidden], tensor prefix of the layer) -> output [T, hidden]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
IDS, POSITIONS = "ids", "positions"


@dataclass(frozen=True, slots=True)
class Frame:
    """Sizes around the blocks. `eps`: of the norms. `tied`: without a head of its own, the embedding serves as head."""

    layers: int
    hidden: int
    vocab: int
    eps: float
    tied: bool


def add_decoder(builder: Builder, frame: Frame, attention: Block, mlp: Block) -> None:
    """Adds the entry "target" with inputs ids and positions (declared before, for the blocks' own tables)."""

    def norm(x: str, layer: str) -> str:
        return rms_norm(builder, x, f"{layer}.weight", frame.hidden, frame.eps, f"{layer}.normed")

    x = embed(builder, IDS, EMBEDDING, frame.vocab, frame.hidden)
    for number in range(frame.layers):
        layer = f"model.layers.{number}"
        x = add(builder, attention(norm(x, f"{layer}.input_layernorm"), layer), x, f"{layer}.attended")
        x = add(builder, mlp(norm(x, f"{layer}.post_attention_layernorm"), layer), x, f"{layer}.out")
    x = norm(x, "model.norm")
    # Files of tied models may hold the head once more; if it differs, the file means it.
    tied = frame.tied and not builder.has(HEAD)
    head(builder, x, EMBEDDING if tied else HEAD, frame.vocab, frame.hidden)
    builder.entry("target", (IDS, POSITIONS))
