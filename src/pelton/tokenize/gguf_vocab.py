"""A tokenizer.json made from the vocabulary in a GGUF file's metadata, kept in the cache folder. It parses no GGUF.

Invariant: while the cached file is there, the large arrays of the metadata are not touched.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pelton.checkpoint.mapped import quoted
from pelton.core.cache import kept_file
from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError
from pelton.tokenize.gguf_kinds.arrays import FIELD
from pelton.tokenize.gguf_kinds.byte_level import byte_level
from pelton.tokenize.gguf_kinds.space_marked import listed, scored
from pelton.tokenize.pretokenizer import Json

FORMAT = 2  # to be raised whenever the same metadata would give another file


class GgufVocabulary(Protocol):
    """A vocabulary as its file describes it; its repr tells two apart that would give another tokenizer.json."""

    @property
    def add_bos(self) -> bool:
        """Whether a prompt starts with the BOS token if the file does not say."""

    def tokenizer_json(self, metadata: Mapping[str, object]) -> Json:
        """The content of a tokenizer.json; CheckpointError for arrays that do not belong together."""


KINDS: Mapping[str, Callable[[Mapping[str, object]], GgufVocabulary]] = {
    "gpt2": byte_level,
    "llama": scored,
    "gemma4": listed,
}
REFUSED = {
    "bert": "WordPiece vocabularies belong to encoders, which give no text",
    "t5": "vocabularies that choose the likeliest of all ways to cut a text (Unigram) are not supported",
    "rwkv": "vocabularies of longest matches are not supported",
    "plamo2": "vocabularies of PLaMo 2 are not supported",
}

_log = logging.getLogger("pelton")


def vocabulary_of(metadata: Mapping[str, object]) -> GgufVocabulary:
    """What kind of vocabulary the metadata holds; CheckpointError where the kind or its pre-tokenizer is unknown.

    Reads no array.
    """
    kind = metadata.get(FIELD + "model")
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind](metadata)
    why = REFUSED.get(str(kind), "a kind of vocabulary that is not known")
    raise CheckpointError(
        f"{FIELD}model is {quoted(kind)}: {why}.",
        f"Supported: {', '.join(KINDS)}. The same model as a folder with a tokenizer.json may work.",
    )


def source_key(path: Path) -> str:
    """What identifies a file cheaply: its place, size and time of change."""
    state = path.stat()
    return f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"


def cached_tokenizer_json(metadata: Mapping[str, object], source: str, *, rebuild: bool = False) -> str:
    """The text of the tokenizer.json for `metadata`, made now if it is not in the cache folder or if `rebuild`.

    `source` identifies what the metadata came from (see source_key). A cache folder that cannot be used only costs the
    time. Raises CheckpointError for a vocabulary that is not supported or not consistent.
    """
    vocabulary = vocabulary_of(metadata)
    key = hashlib.blake2b(f"{FORMAT}\0{vocabulary!r}\0{source}".encode(), digest_size=16).hexdigest()
    path = cache_folder() / "tokenizers" / f"{key}.json"
    if not rebuild:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:  # most often: it is not there yet
            _log.debug("%s: %s", path, error)
    _log.info("building the tokenizer, once")
    text = json.dumps(vocabulary.tokenizer_json(metadata), ensure_ascii=False)
    try:
        kept_file.write_whole(path, text.encode())
    except OSError as error:
        _log.debug("%s cannot be written, so the tokenizer will be made again: %s", path, error)
    return text
