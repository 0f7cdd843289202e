"""Which files of a repository make the model that a user names. Pure: from names to names; it fetches nothing.

A repository with config.json and safetensors weights is a folder; one with GGUF files holds a model in each of them, or
in each set of split ones. Invariant: pickles, copies in other formats and parts of a set are never chosen.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pelton.checkpoint.fetch.sources import shown_reference
from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# What of a folder's files is read, or must stay beside the weights.
SETTINGS = frozenset({
    CONFIG, INDEX, "generation_config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
})  # fmt: skip
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
# Of several GGUF files the first of these is taken where nobody chose: small for what it keeps of the model.
PREFERRED = (
    "Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q5_0", "Q5_1",
    "BF16", "F16", "F32", "Q3_K_M", "Q3_K_L", "Q3_K_S", "Q2_K",
)  # fmt: skip
NO_MODELS = ("mmproj", "imatrix")  # what such .gguf files hold
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHOWN = 20
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model in one GGUF file, or in several that it was split into; `missing`: how many of those are not there."""

    stem: str
    files: tuple[str, ...]
    missing: int = 0

    @property
    def shown(self) -> str:
        return self.files[0] if len(self.files) == 1 else f"{self.stem} ({len(self.files)} files)"


@dataclass(frozen=True, slots=True)
class Choice:
    """A model of a repository: a GGUF, or the folder (None). `note`: what the user should know of the choice."""

    gguf: GgufModel | None
    note: str = ""


def choose(repo: str, names: Iterable[str], wanted: str | None) -> Choice:
    """The model that `wanted` (a quantisation's name or a file's) means, or that an org/name alone does.

    CheckpointError that lists what is there, if it is none or not one.
    """
    names = sorted(names)
    models = gguf_models(names)
    if wanted is not None:
        found = _matching(models, wanted)
        if len(found) != 1:
            raise _no_choice(repo, wanted, found, models)
        return Choice(_whole(repo, found[0]))
    if CONFIG in names and (SINGLE in names or INDEX in names):
        return Choice(None)
    if not models:
        raise _nothing(repo, names)
    if len(models) == 1:
        return Choice(_whole(repo, models[0]))
    for label in PREFERRED:
        found = _matching(models, label, exact=True)
        if len(found) == 1:
            others = ", ".join(_label(model) for model in models if model is not found[0])
            note = (
                f"{repo} has {len(models)} GGUF models; {found[0].shown} is taken ({repo}:{label}). Others: {others}."
            )
            return Choice(_whole(repo, found[0]), note)
        if found:
            break
    raise _no_choice(repo, None, (), models)


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """The models in GGUF files, split ones together; without what goes beside a model."""
    found: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for name in sorted(names):
        base = PurePosixPath(name).name.lower()
        if not base.endswith(".gguf") or base.startswith(NO_MODELS):
            continue
        split = _SPLIT.fullmatch(name)
        stem = split["stem"] if split else name[: -len(".gguf")]
        key = f"{stem}/{split['count']}" if split else name
        found.setdefault(key, []).append(name)
        counts[key] = int(split["count"]) if split else 1
    return [
        GgufModel(_stem_of(files[0]), tuple(files), max(counts[key] - len(files), 0)) for key, files in found.items()
    ]


def folder_settings(names: Iterable[str]) -> list[str]:
    """The files of a folder that are read before its weights, and licences."""
    return [name for name in sorted(names) if name in SETTINGS or ("/" not in name and name.startswith(LICENCES))]


def folder_weights(repo: str, weight_map: Mapping[str, str] | None, names: Iterable[str]) -> list[str]:
    """The weight files of a folder: those that the index names, or the only one. CheckpointError if one is missing."""
    wanted = sorted(set(weight_map.values())) if weight_map is not None else [SINGLE]
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise CheckpointError(
            f"{repo}: {len(missing)} of {len(wanted)} weight files are missing: {', '.join(missing[:5])}.",
            "Choose another revision, or another repository of this model.",
        )
    return wanted


def _stem_of(name: str) -> str:
    split = _SPLIT.fullmatch(name)
    return split["stem"] if split else name[: -len(".gguf")]


def _matching(models: Sequence[GgufModel], wanted: str, *, exact: bool = False) -> list[GgufModel]:
    """Models that are meant: by a file's name, else by the end of one, else by a part or a folder of it."""
    word = re.escape(wanted.lower())
    rules: list[Callable[[GgufModel], object]] = [
        lambda model: any(wanted.lower() in (name.lower(), PurePosixPath(name).name.lower()) for name in model.files),
        lambda model: re.search(rf"(^|[-._/]){word}$", model.stem.lower()),
        lambda model: not exact and re.search(rf"(^|[-._/]){word}([-._/]|$)", model.stem.lower()),
    ]
    for rule in rules:
        if found := [model for model in models if rule(model)]:
            return found
    return []


def _label(model: GgufModel) -> str:
    """The name of its quantisation, if it is one that is known; else the file's."""
    base = PurePosixPath(model.stem).name
    known = re.search(r"(?:^|[-._])((?:UD-)?(?:IQ|Q)\d\w*|BF16|F16|F32|MXFP4\w*)$", base, re.IGNORECASE)
    return known[1] if known else base


def _whole(repo: str, model: GgufModel) -> GgufModel:
    if model.missing:
        raise CheckpointError(
            f"{repo}: {model.shown}: {model.missing} more of its files are missing.",
            "Choose another file, or another repository of this model.",
        )
    return model


def _no_choice(
    repo: str, wanted: str | None, found: Sequence[GgufModel], models: Sequence[GgufModel]
) -> CheckpointError:
    if not models:
        choice = shown_reference(wanted or "")
        remedy = f"Leave :{choice} out, or name a repository of GGUF files (they often end in -GGUF)."
        return CheckpointError(f"{repo} has no GGUF file to choose {quoted(wanted)} from.", remedy)
    listed = found or models
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    shown = ", ".join(model.shown for model in listed[:SHOWN]) + more
    example = f"Name one, such as {repo}:{PurePosixPath(listed[0].files[0]).name if found else _label(listed[0])}."
    if wanted is None:
        return CheckpointError(f"{repo} has {len(models)} GGUF models: {shown}.", example)
    if found:
        return CheckpointError(f"{repo}:{wanted} means {len(found)} GGUF models: {shown}.", example)
    return CheckpointError(f"{repo} has no GGUF model {quoted(wanted)}. There are: {shown}.", example)


def _nothing(repo: str, names: Sequence[str]) -> CheckpointError:
    remedy = "Name a repository with safetensors weights and config.json, or with a .gguf file."
    kinds = {PurePosixPath(name).suffix for name in names}
    if ".safetensors" in kinds:
        what = f"{CONFIG} is missing" if CONFIG not in names else f"there is neither {SINGLE} nor {INDEX}"
        return CheckpointError(f"{repo} has safetensors files, but {what}.", remedy)
    if kinds & set(PICKLES):
        cause = f"{repo} has its weights as Python pickles alone; reading one can run any code."
        return CheckpointError(cause, remedy)
    shown = ", ".join(names[:SHOWN]) or "nothing"
    return CheckpointError(f"{repo} has no model in a form that is read here. It has: {shown}.", remedy)
