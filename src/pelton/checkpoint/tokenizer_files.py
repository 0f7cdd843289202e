"""Opens what a tokenizer is made of, without a model: a tokenizer.json, a folder that has one, or a GGUF's vocabulary.

Weights are neither fetched, where the Hub has them apart, nor read. Invariant: what close() has not seen is readable.
"""

import lzma
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pelton.checkpoint import gguf_translation, special_tokens
from pelton.checkpoint.fetch.pull import HERE, pull
from pelton.checkpoint.gguf import GgufFile, read_gguf
from pelton.checkpoint.json_files import MAX_BYTES, read_object
from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
CONFIG, GENERATION = "config.json", "generation_config.json"
PACKED = ".xz"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What build_tokenizer takes. `tokenizer_json` or `gguf_metadata` is there, valid until close()."""

    path: Path
    tokenizer_json: Path | None
    gguf_metadata: Mapping[str, object] | None
    special_tokens: SpecialTokens
    mapped: GgufFile | None = None
    unpacked: "tempfile.TemporaryDirectory[str] | None" = field(default=None, repr=False)

    def close(self) -> None:
        """Lets go of the files."""
        if self.mapped is not None:
            self.mapped.close()
        if self.unpacked is not None:
            self.unpacked.cleanup()


def open_tokenizer_files(
    reference: str | Path, fetch: FetchSection = HERE, *, progress: bool = False
) -> TokenizerFiles:
    """Those of any reference to a model, of a folder that has a tokenizer.json, or of such a file, packed (.xz) or not.

    CheckpointError naming the file and what is wrong with it.
    """
    path = pull(str(reference), fetch, progress=progress, weights=False)
    try:
        if path.is_dir():
            return _of_folder(path)
        return _of_json(path) if path.suffix in (".json", PACKED) else _of_gguf(path)
    except OSError as error:
        remedy = "Check that the file is there and may be read."
        raise CheckpointError(f"{path}: cannot be opened ({error}).", remedy) from error


def _of_folder(folder: Path) -> TokenizerFiles:
    file = folder / TOKENIZER
    if not file.is_file():
        raise CheckpointError(f"{folder}: has no {TOKENIZER}.", f"Give a folder with {TOKENIZER}, or that file.")
    config, generation, own = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in (CONFIG, GENERATION, TOKENIZER_CONFIG)
    )
    tokens = special_tokens.from_folder(folder, config, generation, own)
    return TokenizerFiles(folder, file, None, tokens)


def _of_json(path: Path) -> TokenizerFiles:
    if path.suffix != PACKED:
        return TokenizerFiles(path, path, None, SpecialTokens())
    try:
        with lzma.open(path) as packed:
            content = packed.read(MAX_BYTES + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise CheckpointError(f"{path}: is damaged, or no {PACKED} file ({error}).", "Fetch it again.") from error
    if len(content) > MAX_BYTES:
        raise CheckpointError(f"{path}: unpacks to more than {MAX_BYTES} bytes.", "This is no tokenizer.json.")
    # The library reads files; this one is wanted for a moment only.
    folder = tempfile.TemporaryDirectory(prefix="pelton-")
    file = Path(folder.name) / TOKENIZER
    file.write_bytes(content)
    return TokenizerFiles(path, file, None, SpecialTokens(), unpacked=folder)


def _of_gguf(path: Path) -> TokenizerFiles:
    gguf = read_gguf(path)
    try:
        tokens = special_tokens.from_gguf(gguf, gguf_translation.generation_config(gguf))
    except BaseException:
        gguf.close()
        raise
    return TokenizerFiles(path, None, gguf.metadata, tokens, mapped=gguf)
