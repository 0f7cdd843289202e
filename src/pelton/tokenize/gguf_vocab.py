"""A tokenizer.json made from the vocabulary in a GGUF file's metadata, kept in the cache folder. It parses no GGUF.

Invariant: while the cached file is there, the large arrays of the metadata are not touched.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError, UnknownNameError
from pelton.tokenize import PRETOKENIZERS
from pelton.tokenize.pretokenizer import Pretokenizer

FORMAT = 1  # to be raised whenever the same metadata would give another file

BYTE_LEVEL = "gpt2"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_FIELD = "tokenizer.ggml."

_log = logging.getLogger("pelton")


def pretokenizer_of(metadata: Mapping[str, object]) -> Pretokenizer:
    """The pre-tokenizer a GGUF file names; CheckpointError where the kind of vocabulary or the name is unknown."""
    kind = metadata.get(_FIELD + "model")
    if kind != BYTE_LEVEL:
        raise CheckpointError(
            f"{_FIELD}model is {kind!r}, a kind of vocabulary that is not supported yet.",
            f"Supported: {BYTE_LEVEL!r} (byte-level BPE). The same model as a folder with a tokenizer.json works.",
        )
    name = metadata.get(_FIELD + "pre")
    try:
        return PRETOKENIZERS.get(str(name))
    except UnknownNameError as error:
        known = ", ".join(PRETOKENIZERS.names())
        raise CheckpointError(f"{_FIELD}pre is {name!r}, an unknown pre-tokenizer.", f"Known: {known}.") from error


def source_key(path: Path) -> str:
    """What identifies a file cheaply: its place, size and time of change."""
    state = path.stat()
    return f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"


def cached_tokenizer_json(metadata: Mapping[str, object], source: str, *, rebuild: bool = False) -> str:
    """The text of the tokenizer.json for `metadata`, made now if it is not in the cache folder or if `rebuild`.

    `source` identifies what the metadata came from (see source_key). A cache folder that cannot be used only costs the
    time. Raises CheckpointError for a vocabulary that is not supported or not consistent.
    """
    pretokenizer = pretokenizer_of(metadata)
    key = hashlib.blake2b(f"{FORMAT}\0{pretokenizer!r}\0{source}".encode(), digest_size=16).hexdigest()
    path = cache_folder() / "tokenizers" / f"{key}.json"
    if not rebuild:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:  # most often: it is not there yet
            _log.debug("%s: %s", path, error)
    text = json.dumps(tokenizer_json(metadata, pretokenizer), ensure_ascii=False)
    try:
        _write_whole(path, text)
    except OSError as error:
        _log.debug("%s cannot be written, so the tokenizer will be made again: %s", path, error)
    return text


def tokenizer_json(metadata: Mapping[str, object], pretokenizer: Pretokenizer) -> dict[str, object]:
    """The content of a tokenizer.json for a byte-level BPE vocabulary."""
    tokens = _strings(metadata, "tokens")
    types = metadata.get(_FIELD + "token_type")
    if not isinstance(types, (list, tuple)) or len(types) != len(tokens):
        raise CheckpointError(f"{_FIELD}token_type does not have one entry for each of the {len(tokens)} tokens.")
    vocabulary: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        # Of tokens written alike only the first can be reached by encoding; the others have no text.
        vocabulary.setdefault(token, token_id)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(token_id, token, special=kind != _USER_DEFINED)
            for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and vocabulary[token] == token_id
        ],
        "normalizer": pretokenizer.normalizer_section(),
        "pre_tokenizer": pretokenizer.pre_tokenizer(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pretokenizer.ignore_merges,
            "vocab": vocabulary,
            "merges": _merges(_strings(metadata, "merges")),
        },
    }


def _strings(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    value = metadata.get(_FIELD + name)
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{_FIELD}{name} is missing or not a list of text.", "The file may be incomplete.")
    return value


def _merges(lines: Sequence[str]) -> list[list[str]]:
    # The first part has at least one character, so a space at the very start belongs to it.
    cuts = [line.find(" ", 1) for line in lines]
    if -1 in cuts:
        raise CheckpointError(f"{_FIELD}merges: {lines[cuts.index(-1)]!r} is not a pair of tokens.")
    return [[line[:cut], line[cut + 1 :]] for line, cut in zip(lines, cuts, strict=True)]


def _added_token(token_id: int, text: str, *, special: bool) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": special}


def _write_whole(path: Path, text: str) -> None:
    """Write so that a reader at any time, also after a crash, sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
