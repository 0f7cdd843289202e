"""Small models that use what the Llama of mini.py does not: other norms, windows, caps, biases by distance, no turning.

No families: each mixes what the ops can do. Bits and costs are compared, not meanings.
"""

from collections.abc import Callable
from dataclasses import replace

from tests.program.sources import drawn

from pelton.attention import ATTENTION
from pelton.attention.kind import AttentionShape
from pelton.layers.mlp import MLPShape, gated_mlp, plain_mlp
from pelton.layers.norm import NormShape
from pelton.layers.rope import RopeParameters
from pelton.layers.rotary import rope_table, rotation_of
from pelton.models.decoder import EMBEDDING, EMBEDDING_NORM, FINAL_NORM, IDS, POSITIONS, Frame, Norms, add_decoder
from pelton.program.builder import Builder
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.weights import TensorSource

HIDDEN, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, DIM = 96, 160, 500, 3, 6, 2, 16
FRAME = Frame(LAYERS, HIDDEN, VOCAB, NormShape(1e-5), tied=True)
ATTEND = AttentionShape(HIDDEN, HEADS, KV_HEADS, DIM, scale=0.25)
SANDWICH = Norms("before_attention", "after_attention", "before_mlp", "after_mlp")
BEHIND = Norms(None, "after_attention", None, "after_mlp")
PARTS = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}


def sandwich() -> Module:
    """Norms on both sides, gains less one, normed heads, soft-caps; every third layer sees all, the others a window."""
    gain = NormShape(1e-6, plus=1.0)
    frame = replace(FRAME, norm=gain, norms=SANDWICH, embed_scale=9.8, softcap=8.0)
    full = replace(ATTEND, softcap=5.0, head_norm=gain)
    return _module(frame, lambda layer: full if layer == 1 else replace(full, window=40))


def behind() -> Module:
    """Norms behind the blocks only, whole rows of q and k normed; logits scaled."""
    shape = replace(ATTEND, row_norm=NormShape(1e-5), biased=("q", "k", "v"))
    return _module(replace(FRAME, norms=BEHIND, logit_scale=0.25), lambda _: shape)


def centred() -> Module:
    """Centred norms and biases everywhere, an MLP without a gate, scores that fall with distance, nothing turned."""
    norm = NormShape(1e-5, centred=True, biased=True)
    slopes = tuple(2.0 ** -(head + 1) for head in range(HEADS))
    shape = replace(ATTEND, slopes=slopes, biased=("q", "k", "v", "o"))
    return _module(replace(FRAME, norm=norm, embed_norm=True), lambda _: shape, turned=0, plain=True)


def partial() -> Module:
    """Half of each head is turned, in neighbouring pairs; the last layer turns nothing."""
    return _module(FRAME, lambda _: replace(ATTEND, interleaved=True), turned=DIM // 2, unturned=LAYERS - 1)


VARIANTS: dict[str, Callable[[], Module]] = {
    "sandwich": sandwich,
    "behind": behind,
    "centred": centred,
    "partial": partial,
}


def variant(name: str, *, fused: bool = True) -> Module:
    module = VARIANTS[name]()
    return run_passes(module) if fused else module


def _module(
    frame: Frame,
    shape: Callable[[int], AttentionShape],
    *,
    turned: int = DIM,
    unturned: int = -1,
    plain: bool = False,
) -> Module:
    builder = Builder(_tensors(frame, shape(0), plain=plain))
    builder.input(IDS)
    positions = builder.input(POSITIONS)
    rotation = rotation_of(RopeParameters("default", 10000.0, turned, 4096)) if turned else None
    rope = rope_table(builder, positions, rotation) if rotation else None
    mlp = MLPShape(HIDDEN, INNER, "gelu_tanh", biased=plain)

    def attention(x: str, layer: str, number: int) -> str:
        table = None if number == unturned else rope
        return ATTENTION.get("full")().add(builder, x, table, f"{layer}.self_attn", shape(number))

    add_decoder(
        builder,
        frame,
        attention=attention,
        mlp=lambda x, layer, _: (plain_mlp if plain else gated_mlp)(builder, x, f"{layer}.mlp", mlp),
    )
    return builder.finish(vocab=VOCAB, context=4096)


class _Tensors:
    """The tensors a model is to have; dense ones are vectors."""

    def __init__(self, frame: Frame) -> None:
        self.made: dict[str, TensorSource] = {}
        self._frame = frame

    def add(self, name: str, size: tuple[int, ...], form: str = "F32") -> None:
        self.made[name] = drawn(name, size, form, seed=len(self.made))

    def norm(self, layer: str | None) -> None:
        if layer is None:
            return
        self.add(f"{layer}.weight", (HIDDEN,))
        if self._frame.norm.biased:
            self.add(f"{layer}.bias", (HIDDEN,))

    def linear(self, layer: str, rows: int, cols: int, *, biased: bool) -> None:
        self.add(f"{layer}.weight", (rows, cols), "Q4_1")
        if biased:
            self.add(f"{layer}.bias", (rows,))


def _tensors(frame: Frame, shape: AttentionShape, *, plain: bool) -> dict[str, TensorSource]:
    tensors = _Tensors(frame)
    tensors.add(EMBEDDING, (VOCAB, HIDDEN), "Q8_0")
    tensors.norm(FINAL_NORM)
    tensors.norm(EMBEDDING_NORM if frame.embed_norm else None)
    names = frame.norms
    for number in range(frame.layers):
        prefix = f"model.layers.{number}"
        for name in (names.before_attention, names.after_attention, names.before_mlp, names.after_mlp):
            tensors.norm(name and f"{prefix}.{name}")
        for part, rows in PARTS.items():
            tensors.linear(f"{prefix}.self_attn.{part}_proj", rows, HIDDEN, biased=part in shape.biased)
        tensors.linear(f"{prefix}.self_attn.o_proj", HIDDEN, HEADS * DIM, biased="o" in shape.biased)
        for part in "qk" if shape.head_norm or shape.row_norm else "":
            tensors.add(f"{prefix}.self_attn.{part}_norm.weight", (DIM if shape.head_norm else PARTS[part],))
        for part in ("up",) if plain else ("gate", "up"):
            tensors.linear(f"{prefix}.mlp.{part}_proj", INNER, HIDDEN, biased=plain)
        tensors.linear(f"{prefix}.mlp.down_proj", HIDDEN, INNER, biased=plain)
    return tensors.made
