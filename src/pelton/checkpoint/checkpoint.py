"""Opens a model wherever it lies: a folder or a file, given by path or by a name that is fetched first.

The result has one shape for all layouts: configs and tensor names in the Hugging Face spelling, tensors as mapped bytes
at file precision. Knows no model family: what a config means is models/' business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pelton.checkpoint import gguf_translation, special_tokens
from pelton.checkpoint.checksum import file_digest, joint_digest
from pelton.checkpoint.compressed.settings import Settings
from pelton.checkpoint.compressed.tensors import composed
from pelton.checkpoint.fetch.pull import HERE, pull
from pelton.checkpoint.gguf import MAGIC, GgufFile, GgufMetadata, read_gguf
from pelton.checkpoint.json_files import read_object, read_text
from pelton.checkpoint.mapped import MappedFile, quoted
from pelton.checkpoint.quantised import ENTRIES, refuse_quantised
from pelton.checkpoint.safetensors import PICKLES, read_weights
from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.config import FetchSection
from pelton.core.errors import CheckpointError
from pelton.program.weights import TensorSource

HF, GGUF = "hf", "gguf"
CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
TOKENIZER, TEMPLATE_FILE, TEMPLATE_JSON = "tokenizer.json", "chat_template.jinja", "chat_template.json"
ADAPTER = "adapter_config.json"  # of a folder that changes another model
DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model. `config` and `generation_config` have the keys of the JSON files, also for a GGUF.

    `tensors` are by Hugging Face names; `layout` "gguf" says that rows of q and k may stand in that format's order.
    `notes`: what the user should know of the files although they are read, as sentences.
    `tokenizer_json` is the folder's file, `gguf_metadata` all of a GGUF's metadata (arrays decoded when asked for).
    Tensors and metadata are valid until close().
    """

    path: Path
    layout: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: Mapping[str, TensorSource]
    chat_template: str | None
    special_tokens: SpecialTokens
    tokenizer_json: Path | None
    gguf_metadata: GgufMetadata | None
    files: tuple[MappedFile, ...]
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the content: of the GGUF file, or of its parts or a folder's config and weights together.

        Takes a pass over the bytes; remembered in the cache folder for files of the same path, size and time.
        """
        if self.layout == GGUF:
            return file_digest(self.path) if len(self.files) == 1 else joint_digest(file.path for file in self.files)
        return joint_digest([self.path / CONFIG, *sorted(file.path for file in self.files)])

    def close(self) -> None:
        """Unmaps the files. Bytes that are still held stay valid until they are let go."""
        for file in self.files:
            file.close()


def open_checkpoint(reference: str | Path, fetch: FetchSection = HERE, *, progress: bool = False) -> Checkpoint:
    """Opens a local folder, a .gguf file, or what `pull` fetches for any other reference, by the settings `fetch`.

    Raises CheckpointError naming the file and what is wrong with it. `progress`: shown while something is fetched.
    """
    path = pull(str(reference), fetch, progress=progress)
    try:
        return _open_folder(path) if path.is_dir() else _open_file(path)
    except OSError as error:
        remedy = "Check that the model's files are there and may be read."
        raise CheckpointError(f"{path}: cannot be opened ({error}).", remedy) from error


def _open_file(path: Path) -> Checkpoint:
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: weights alone are no model.", f"Give its folder: {path.parent}")
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path}: a Python pickle; reading one can run any code, so it is not supported.",
            f"Give a folder with safetensors weights or a file that starts with {MAGIC.decode()}.",
        )
    gguf = read_gguf(path)
    try:
        return _from_gguf(gguf)
    except BaseException:
        gguf.close()
        raise


def _from_gguf(gguf: GgufFile) -> Checkpoint:
    tensors: dict[str, TensorSource] = {}
    for name, tensor in gguf.mapped_tensors().items():
        translated = gguf_translation.tensor_name(name)
        if translated in tensors:
            raise gguf.file.error(f"tensors {quoted(name)} and {quoted(tensors[translated].name)} are the same one")
        tensors[translated] = tensor
    generation = gguf_translation.generation_config(gguf)
    template = gguf.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        path=gguf.file.path,
        layout=GGUF,
        config=gguf_translation.config(gguf),
        generation_config=generation,
        tensors=MappingProxyType(tensors),
        chat_template=template if isinstance(template, str) else None,
        special_tokens=special_tokens.from_gguf(gguf, generation),
        tokenizer_json=None,
        gguf_metadata=gguf.metadata,
        files=gguf.files,
    )


def _open_folder(folder: Path) -> Checkpoint:
    if not (folder / CONFIG).exists():
        if (folder / ADAPTER).exists():
            raise _adapter(folder)
        ggufs = sorted(folder.glob("*.gguf"))
        wanted = "Give a folder with config.json and safetensors weights."
        remedy = f"Give the file itself: {ggufs[0]}" if ggufs else wanted
        raise CheckpointError(f"{folder}: not a model folder, {CONFIG} is missing.", remedy)
    config = read_object(folder / CONFIG)
    settings = refuse_quantised(folder)
    generation = _optional(folder / GENERATION)
    tokenizer = _optional(folder / TOKENIZER_CONFIG)
    template = _chat_template(folder, tokenizer)
    tokens = special_tokens.from_folder(folder, config, generation, tokenizer)
    files, tensors, notes = _weights(folder, settings)
    return Checkpoint(
        path=folder,
        layout=HF,
        config={key: value for key, value in config.items() if settings is None or key not in ENTRIES},
        generation_config=generation,
        tensors=MappingProxyType(tensors),
        chat_template=template,
        special_tokens=tokens,
        tokenizer_json=folder / TOKENIZER if (folder / TOKENIZER).is_file() else None,
        gguf_metadata=None,
        files=files,
        notes=notes,
    )


def _weights(
    folder: Path, settings: Settings | None
) -> tuple[tuple[MappedFile, ...], Mapping[str, TensorSource], tuple[str, ...]]:
    """The folder's files, its tensors, put together where they are quantised, and notes."""
    files, tensors = read_weights(folder, integers=settings is not None)
    if settings is None:
        return files, tensors, ()
    try:
        return files, *composed(tensors, settings)
    except BaseException:
        for file in files:
            file.close()
        raise


def _adapter(folder: Path) -> CheckpointError:
    base = read_object(folder / ADAPTER).get("base_model_name_or_path")
    named = isinstance(base, str) and base
    remedy = f"Its base model is {quoted(base)}." if named else f"{ADAPTER} does not name its base model."
    return CheckpointError(f"{folder}: a LoRA adapter and no model; adapters are not supported yet.", remedy)


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _chat_template(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """chat_template.jinja wins; else the text in JSON, or of several named ones the default."""
    if (folder / TEMPLATE_FILE).exists():
        return read_text(folder / TEMPLATE_FILE)
    found = tokenizer.get("chat_template") or _optional(folder / TEMPLATE_JSON).get("chat_template")
    if isinstance(found, list):
        named = [entry.get("template") for entry in found
                 if isinstance(entry, dict) and entry.get("name") == DEFAULT_TEMPLATE]  # fmt: skip
        found = named[-1] if named else None
    if found is not None and not isinstance(found, str):
        raise CheckpointError(f"{folder / TOKENIZER_CONFIG}: chat_template is no text.", "Correct it or remove it.")
    return found or None
