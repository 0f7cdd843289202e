"""Token embedding and the output head: the two ends of a decoder, which may be views of one storage."""

from pelton.program.builder import Builder


def embed(builder: Builder, ids: str, tensor: str, vocab: int, hidden: int, scale: float = 1.0) -> str:
    """Adds rows of the table [vocab, hidden] by id, times `scale`; returns the value's name, [T, hidden]."""
    table = builder.gather(tensor, vocab, hidden)
    return builder.op("embed", (ids,), ("embedded",), weights=(table,), attrs={"scale": scale})[0]


def head(
    builder: Builder, x: str, tensor: str, vocab: int, hidden: int, *, scale: float = 1.0, softcap: float = 0.0
) -> None:
    """Adds the logits and the choice of tokens; x [T, hidden] is normed already. It must be the entry's last op.

    Logits are `scale` times the product, then softcap * tanh(logit / softcap) unless `softcap` is 0.
    """
    matrix = builder.matrix(tensor, vocab, hidden, shard="rows")
    attrs = {name: value for name, value, off in (("scale", scale, 1.0), ("softcap", softcap, 0.0)) if value != off}
    builder.op("head", (x,), weights=(matrix,), attrs=attrs)
