"""The interface of a model family: from a config in Hugging Face's spelling and named tensors to a Module."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from pelton.program.module import Module
from pelton.program.weights import TensorSource


class ModelSource(Protocol):
    """What a family needs of a checkpoint. `layout`: "hf", or "gguf" where files order rows as that format does."""

    @property
    def layout(self) -> str: ...
    @property
    def config(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, TensorSource]: ...


class Config(Protocol):
    """What all families' configs tell. `notes`: config keys that were not understood, as sentences for the user."""

    @property
    def notes(self) -> tuple[str, ...]: ...


C = TypeVar("C", bound=Config)


class Arch(Protocol[C]):
    """One family. `names`: its spellings in `architectures` and `model_type`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def config(self, raw: Mapping[str, object]) -> C:
        """Checks and reads the config; raises UnsupportedModelError for what would need other mathematics."""
        ...

    def build(self, config: C, source: ModelSource, length: int | None = None) -> Module:
        """The Module, for requests of at most `length` tokens (None: of as many as the config's context).

        Position encodings that depend on how long a text is are made for that length and stay so. Raises
        CheckpointError or UnsupportedModelError where tensors and config do not fit.
        """
        ...
