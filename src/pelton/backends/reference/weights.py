"""Weight bytes as torch tensors, decoded at first use and kept. Holds fp32 copies: not for large models."""

import numpy as np
import torch

from pelton.backends.reference.integers import Codes
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.weights import MATRIX, VALUES, Storage

DENSE_MATRICES = ("F32", "F16", "BF16")


class Weights:
    """Tensors by view name. Not `exact`: dense matrices are rounded to bf16, and quantised ones in the form VALUES.

    Quantised ones in the form CODES keep the digits of scale times code: that is the mathematics of scaled sums.
    """

    def __init__(self, module: Module, exact: bool) -> None:
        self._module = module
        self._exact = exact
        self._decoded: dict[str, torch.Tensor] = {}
        self._codes: dict[str, Codes] = {}

    def get(self, view: str) -> torch.Tensor:
        """fp32 [rows, cols] of a table or matrix, [size] of a vector."""
        found = self._module.weights[view]
        storage = self._module.storages[found.storage]
        if storage.name not in self._decoded:
            self._decoded[storage.name] = self._decode(storage)
        if found.use != MATRIX or storage.form != VALUES or self._exact:
            return self._decoded[storage.name]
        if view not in self._decoded:
            self._decoded[view] = self._decoded[storage.name].bfloat16().float()
        return self._decoded[view]

    def codes(self, view: str) -> Codes:
        """A coded matrix as integers and scales."""
        storage = self._module.storages[self._module.weights[view].storage]
        if storage.name not in self._codes:
            self._codes[storage.name] = Codes.of(storage)
        return self._codes[storage.name]

    def _decode(self, storage: Storage) -> torch.Tensor:
        is_vector = len(storage.source.shape) == 1
        # Some formats decode to a view of the file, which must not be handed out.
        numbers = FORMATS[storage.format].decode(storage.source.read(), storage.rows, storage.cols).copy()
        storage.source.release()
        if storage.row_order is not None:
            order = np.asarray(storage.row_order)
            numbers = numbers[:, order] if is_vector else numbers[order]
        tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        if is_vector:
            return tensor[0] + storage.plus
        if not self._exact and storage.format in DENSE_MATRICES:
            return tensor.bfloat16().float()
        return tensor
