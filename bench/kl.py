"""What the default arithmetic costs in quality: teacher-forced KL divergence to an fp32 oracle, per token, in nats.

python bench/kl.py [MODEL] --text FILE [--tokens 4000] [--window 1000] [--dtype auto]

The oracle is transformers in fp32 on the same weights, decoded to fp32; beside Pelton stands transformers in bf16. The
text is cut into windows that are fed whole, without anything before them. Needs the test extra (torch, transformers).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import record
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedModel

from pelton.backends import BACKENDS
from pelton.backends.backend import SAMPLING, CompileOptions, Executable, StepInputs
from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.models import build_module
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.passes import run_passes
from pelton.program.weights import Storage
from pelton.tokenize.tokenizer import build_tokenizer

BLOCK = 32
PIECE = 256  # tokens, and rows of logits, of one step
AIM = 1.2  # times the divergence of transformers in bf16
Floats = NDArray[np.float32]


def decoded(storage: Storage) -> torch.Tensor:
    """The storage in fp32, rows in the order of the model's ops."""
    values = FORMATS[storage.format].decode(storage.source.read(), storage.rows, storage.cols)
    if storage.row_order is not None:
        values = values[list(storage.row_order)]
    storage.source.release()
    return torch.from_numpy(np.array(values[0] if storage.rows == 1 else values))


def oracle(checkpoint: Checkpoint, module: Module, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' model with the checkpoint's weights; its rotary pairs are (j, j + dim / 2), as the ops' are."""
    config = AutoConfig.for_model(**checkpoint.config)
    model = LlamaForCausalLM(config)
    weights = {name: decoded(storage) for name, storage in module.storages.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise SystemExit(f"kl: the oracle lacks {sorted(set(missing) - tied)} and has no use for {unexpected}")
    model.tie_weights()
    return model.to(dtype).eval()  # type: ignore[no-any-return]


def oracle_logprobs(model: PreTrainedModel, tokens: NDArray[np.int32]) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def pelton_logits(executable: Executable, tokens: NDArray[np.int32]) -> Iterator[Floats]:
    """Logits of each token, piece by piece; the window's blocks are 1, 2, 3, ..."""
    for start in range(0, len(tokens), PIECE):
        piece = tokens[start : start + PIECE]
        end = start + len(piece)
        sampling = np.zeros(len(piece), SAMPLING)
        sampling["top_p"], sampling["logprobs"] = 1.0, -1
        inputs = StepInputs(
            tokens=piece,
            positions=np.arange(start, end, dtype=np.int32),
            starts=np.array([start], np.int32),
            counts=np.array([len(piece)], np.int32),
            tables=np.arange(1, -(-end // BLOCK) + 1, dtype=np.int32),
            table_offsets=np.array([0, -(-end // BLOCK)], np.int32),
            logit_rows=np.arange(len(piece), dtype=np.int32),
            sampling=sampling,
            want_logits=True,
        )
        logits = executable.run(inputs).logits
        assert logits is not None
        yield logits


def divergences(true: torch.Tensor, other: torch.Tensor) -> NDArray[np.float64]:
    """KL(true || other) at each place, from log-probabilities [places, vocab]."""
    return ((true.exp() * (true - other)).sum(dim=-1)).double().numpy()


def measure(
    oracles: tuple[PreTrainedModel, PreTrainedModel], executable: Executable, tokens: NDArray[np.int32], window: int
) -> Mapping[str, NDArray[np.float64]]:
    """Divergence at each token, by name."""
    exact, rounded = oracles
    found: dict[str, list[NDArray[np.float64]]] = {"pelton": [], "transformers bf16": []}
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        true = oracle_logprobs(exact, part)
        found["transformers bf16"].append(divergences(true, oracle_logprobs(rounded, part)))
        place = 0
        for logits in pelton_logits(executable, part):
            ours = torch.log_softmax(torch.from_numpy(logits), dim=-1)
            found["pelton"].append(divergences(true[place : place + len(ours)], ours))
            place += len(ours)
    return {name: np.concatenate(values) for name, values in found.items()}


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--text", type=Path, required=True, help="UTF-8 text to score")
    flags.add_argument("--tokens", type=int, default=4000)
    flags.add_argument("--window", type=int, default=1000)
    flags.add_argument("--dtype", choices=("auto", "float32"), default="auto")
    given = flags.parse_args()
    before = record.machine()
    checkpoint = open_checkpoint(given.model)
    ids = build_tokenizer(checkpoint).encode_prompt(given.text.read_text(encoding="utf-8"))[: given.tokens]
    tokens = np.array(ids, np.int32)
    module = build_module(checkpoint)
    oracles = oracle(checkpoint, module, torch.float32), oracle(checkpoint, module, torch.bfloat16)
    options = CompileOptions(max_tokens=PIECE, max_rows=PIECE, exact=given.dtype == "float32")
    executable = BACKENDS.get("cpu")().compile(run_passes(module), options)
    executable.allocate((-(-given.window // BLOCK) + 1,) * len(module.states))
    found = measure(oracles, executable, tokens, given.window)
    executable.close()
    figures: dict[str, object] = {}
    for name, values in found.items():
        figures[name] = {
            "mean": float(values.mean()),
            "p99": float(np.quantile(values, 0.99)),
            "max": float(values.max()),
        }
        print(f"{name:<18} mean {values.mean():.3e}  p99 {np.quantile(values, 0.99):.3e}  max {values.max():.3e}")
    ratio = found["pelton"].mean() / found["transformers bf16"].mean()
    print(f"{'ratio of the means':<18} {ratio:.3f}  aim at most {AIM}")
    if not given.dry:
        figures["ratio"] = float(ratio)
        settings: dict[str, object] = {
            "model": given.model,
            "dtype": given.dtype,
            "text": given.text.name,
            "tokens": len(tokens),
            "window": given.window,
        }
        record.keep("kl", settings, figures, before)


if __name__ == "__main__":
    main()
