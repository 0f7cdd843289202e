"""Weight bytes as torch tensors, decoded at first use and kept. Holds fp32 copies: not for large models."""

import numpy as np
import torch

from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.weights import Storage

DENSE_MATRICES = ("F32", "F16", "BF16")


class Weights:
    """Tensors by view name. Not `exact`: dense matrices are rounded to bf16 (codes of quantised ones fit in it)."""

    def __init__(self, module: Module, exact: bool) -> None:
        self._module = module
        self._exact = exact
        self._decoded: dict[str, torch.Tensor] = {}

    def get(self, view: str) -> torch.Tensor:
        """fp32 [rows, cols] of a table or matrix, [size] of a vector."""
        storage = self._module.storages[self._module.weights[view].storage]
        if storage.name not in self._decoded:
            self._decoded[storage.name] = self._decode(storage)
        return self._decoded[storage.name]

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
