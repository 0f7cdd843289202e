"""The model files of each precision, all made from one GGUF's weights, once, by convert.py in the tools' environment.

Invariant: a file is there whole or not at all.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import RECIPES, TOOLS, Place, Skip, install
from bench.peers.plan import BF16, GEMMA, INT4, INT8, MISTRALRS, OPENVINO, Q4_K_M, SMOLLM2, VLLM

from pelton.checkpoint.fetch.pull import pull
from pelton.core.errors import PeltonError

CONVERT = Path(__file__).with_name("convert.py")
MADE = {BF16: "bf16.gguf", INT8: "q8_0.gguf"}


@dataclass(frozen=True)
class Models:
    """`folder`: where made files are kept. `sources`: GGUF files given by name of model; else they are pulled."""

    folder: Path
    sources: dict[str, Path]
    place: Place

    def source(self, model: str) -> Path:
        """The GGUF file that a model comes as; Skip where it cannot be had."""
        given = self.sources.get(model)
        if given is not None:
            if not given.is_file():
                raise Skip(f"{model}: there is no file {given}")
            return given
        try:
            return pull(model)
        except PeltonError as error:
            raise Skip(f"{model} cannot be had: {error}") from error

    def file(self, engine: str, precision: str, model: str) -> Path:
        """What an engine is given; made now where it is not there yet."""
        if model == GEMMA or precision in (INT4, Q4_K_M):
            return self.source(model)
        if engine == VLLM:
            return self._made(model) / "hf"
        if engine == OPENVINO and precision == BF16:
            return self._made(model) / "f16.gguf"  # it reads no bf16; what it computes in is its own choice
        return self._made(model) / MADE[precision]

    def tokenizer(self, engine: str, model: str) -> Path:
        """A folder with a tokenizer, for the engines that need one."""
        return self._made(model) / "hf-flat" if engine == MISTRALRS else Path()

    def weight_bytes(self, precision: str, model: str) -> int:
        """Of a file whose every byte of weights is read in a step of one row: its header counts as nothing."""
        return self.file("pelton", precision, model).stat().st_size

    def _made(self, model: str) -> Path:
        assert model == SMOLLM2, model
        folder = self.folder / model
        if not all((folder / name).exists() for name in ("bf16.gguf", "f16.gguf", "q8_0.gguf", "hf", "hf-flat")):
            source = self.source(model)
            install(self.place, TOOLS, RECIPES[TOOLS])
            print(f"making model files in {folder}", file=sys.stderr, flush=True)
            words = [str(self.place.python(TOOLS)), str(CONVERT), str(source), str(folder)]
            self.place.run(TOOLS, "making the model files", words)
        return folder
