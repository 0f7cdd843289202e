"""Writes tiny GGUF files byte by byte, damaged ones too: nothing here refuses what a real writer would not do."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pelton.program.formats import FORMATS, GGUF_TYPES, OF_GGUF

UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 2, 4, 5, 6, 7, 8, 9, 10
LETTERS = {
    0: "B",
    1: "b",
    UINT16: "H",
    3: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "B",
    UINT64: "Q",
    11: "q",
    12: "d",
}
F32, F16, Q4_K, IQ2_XXS, BF16 = 0, 1, 12, 16, 30

Value = tuple[str, int, object]


@dataclass(frozen=True)
class Tensor:
    """`dims` in the file's order (columns first); `offset` None: after the tensor before it."""

    name: str | bytes
    dims: tuple[int, ...]
    type: int
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, elements: Sequence[object], count: int | None = None) -> bytes:
    """Element type, number and elements; `count` may lie about the number."""
    packed = b"".join(scalar(kind, element) for element in elements)
    return struct.pack("<IQ", kind, len(elements) if count is None else count) + packed


def scalar(kind: int, value: object) -> bytes:
    """`value` as bytes is written as it is, except for strings."""
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return text(value)
    return value if isinstance(value, bytes) else struct.pack("<" + LETTERS[kind], value)


def gguf_bytes(
    values: Sequence[Value],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file. `counts`: (tensors, values) the header claims, where it shall lie."""
    claimed = counts or (len(tensors), len(values))
    head = b"GGUF" + struct.pack("<IQQ", version, *claimed)
    for key, kind, value in values:
        head += text(key) + struct.pack("<I", kind) + scalar(kind, value)
    body = b""
    for tensor in tensors:
        body += b"\0" * (-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        head += text(tensor.name) + struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        head += struct.pack("<IQ", tensor.type, offset)
        body += tensor.data
    return head + b"\0" * (-len(head) % alignment) + body


WIDTH, HEADS, KV_HEADS, HIDDEN, TOKENS = 8, 2, 1, 12, 5


def model_values(arch: str = "llama") -> list[Value]:
    """Metadata of a one-layer model with a vocabulary of TOKENS tokens."""
    return [
        ("general.architecture", STRING, arch),
        (f"{arch}.block_count", UINT32, 1),
        (f"{arch}.context_length", UINT32, 64),
        (f"{arch}.embedding_length", UINT32, WIDTH),
        (f"{arch}.feed_forward_length", UINT32, HIDDEN),
        (f"{arch}.attention.head_count", UINT32, HEADS),
        (f"{arch}.attention.head_count_kv", UINT32, KV_HEADS),
        (f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        (f"{arch}.rope.freq_base", FLOAT32, 10000.0),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.tokens", ARRAY, array(STRING, ["<s>", "</s>", "a", "é", "\u4f60"])),
        ("tokenizer.ggml.scores", ARRAY, array(FLOAT32, [0.0, 0.5, 1.0, 1.5, 2.0])),
        ("tokenizer.ggml.token_type", ARRAY, array(INT32, [3, 3, 1, 1, 1])),
        ("tokenizer.ggml.bos_token_id", UINT32, 0),
        ("tokenizer.ggml.eos_token_id", UINT32, 1),
        ("tokenizer.ggml.add_bos_token", BOOL, 1),
        ("tokenizer.chat_template", STRING, "{{ messages }}"),
    ]


def model_tensors(*, tied: bool = True) -> list[Tensor]:
    """Random fp32 weights of that model."""
    random = np.random.default_rng(7)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (TOKENS, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (kv_width, WIDTH),
        "blk.0.attn_v.weight": (kv_width, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
        "output_norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["output.weight"] = (TOKENS, WIDTH)
    return [
        Tensor(name, shape[::-1], F32, random.standard_normal(shape, np.float32).tobytes())
        for name, shape in shapes.items()
    ]


def model_bytes(*, tied: bool = True) -> bytes:
    """A whole one-layer model."""
    return gguf_bytes(model_values(), model_tensors(tied=tied))


def typed_tensors(rows: int = 2, cols: int = 256) -> list[Tensor]:
    """A matrix of random bytes of every type that is supported."""
    random = np.random.default_rng(11)
    numbers = {name: number for number, name in GGUF_TYPES.items()}
    return [
        Tensor(f"blk.0.{name}", (cols, rows), numbers[name], random.bytes(rows * FORMATS[name].row_bytes(cols)))
        for name in OF_GGUF
    ]


def split_values(number: int, count: int, tensors: int) -> list[Value]:
    """What a part says of itself; `number` from 0 on."""
    return [
        ("split.no", UINT16, number),
        ("split.count", UINT16, count),
        ("split.tensors.count", INT32, tensors),
    ]


def part_name(number: int, count: int, stem: str = "m") -> str:
    """The file name of part `number` (from 0 on)."""
    return f"{stem}-{number + 1:05}-of-{count:05}.gguf"


def write_parts(folder: Path, tensors: Sequence[Tensor], count: int, stem: str = "m") -> list[Path]:
    """A model's tensors dealt out to `count` parts; the first has its metadata."""
    paths = []
    for number in range(count):
        values = (model_values() if number == 0 else []) + split_values(number, count, len(tensors))
        paths.append(folder / part_name(number, count, stem))
        paths[-1].write_bytes(gguf_bytes(values, tensors[number::count]))
    return paths
