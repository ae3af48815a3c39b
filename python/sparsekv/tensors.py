# SPDX-License-Identifier: Apache-2.0
"""Torch tensors and numpy arrays as rows in memory: an address and a stride. Nothing is copied."""
from typing import Any

from ._native import ffi
from .model import Model


def _layout(tensor: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str, str]:
    """Returns address, shape, strides in elements, dtype name, and device name."""
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:], tensor.device.type
    if hasattr(tensor, "__array_interface__"):
        strides = tuple(stride // tensor.itemsize for stride in tensor.strides)
        return tensor.__array_interface__["data"][0], tensor.shape, strides, str(tensor.dtype), "cpu"
    raise TypeError(f"expected a torch tensor or a numpy array, not {type(tensor).__name__}")


class RowsOf:
    """Checks and converts the arguments of attend() for a model."""

    def __init__(self, model: Model):
        self.heads = {"q": model.n_heads, "out": model.n_heads, "k": model.n_kv_heads, "v": model.n_kv_heads}
        self.dim = model.head_dim
        self.dtype = model.row_dtype
        self.device = model.device.partition(":")[0]

    def of(self, what: str, tensor: Any) -> tuple[Any, int]:
        """For a tensor [rows, heads, head_dim], returns a void pointer and the row stride in elements."""
        if tensor is None:
            return ffi.NULL, 0
        address, shape, strides, dtype, device = _layout(tensor)
        heads = self.heads[what]
        if len(shape) != 3 or shape[1] != heads or shape[2] != self.dim:
            raise ValueError(f"{what} has shape {list(shape)}, expected [rows, {heads}, {self.dim}]")
        if dtype != self.dtype:
            raise ValueError(f"{what} is {dtype}, expected the model's {self.dtype}")
        if device != self.device:
            raise ValueError(f"{what} is in memory of {device}, expected the model's {self.device}")
        if strides[2] != 1 or (strides[1] != self.dim and heads > 1):
            raise ValueError(f"{what} has strides {list(strides)}, expected contiguous rows: [any, {self.dim}, 1]")
        return ffi.cast("void *", address), strides[0] if shape[0] > 1 else 0

    def lse(self, tensor: Any) -> Any:
        """Returns a float pointer for a contiguous float32 tensor [rows, n_heads]; NULL for None."""
        if tensor is None:
            return ffi.NULL
        address, shape, strides, dtype, device = _layout(tensor)
        if len(shape) != 2 or shape[1] != self.heads["q"] or dtype != "float32" or strides != (shape[1], 1):
            raise ValueError(f"lse is {dtype} {list(shape)}, expected contiguous float32 [rows, {self.heads['q']}]")
        if device != self.device:
            raise ValueError(f"lse is in memory of {device}, expected the model's {self.device}")
        return ffi.cast("float *", address)
