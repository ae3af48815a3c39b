# SPDX-License-Identifier: Apache-2.0
"""The identity of a model: what its K and V are computed from, as the library defines it (sparsekv/client.h)."""
import os
from collections.abc import Mapping
from typing import Any

from ._native import ffi, lib
from .errors import check
from .model import Model, c_text


class Identity:
    """
    A sum of items in any order: text, numbers, bytes, tensors, each with a key of its own. name() makes of it the name of a
    model, under which sequences and prefixes serve the same model everywhere, and no other.
    """

    def __init__(self) -> None:
        self._c = ffi.new("struct skv_identity *")

    def text(self, key: str, text: str) -> None:
        lib.skv_identity_add_text(self._c, key.encode(), c_text(key, text))

    def number(self, key: str, number: float) -> None:
        lib.skv_identity_add_number(self._c, key.encode(), number)

    def bytes(self, key: str, data: Any) -> None:
        """data: bytes, or what has the buffer protocol."""
        view = ffi.from_buffer(data)
        lib.skv_identity_add(self._c, key.encode(), view, len(view))

    def memory(self, key: str, address: int, n: int) -> None:
        """n bytes of host memory."""
        lib.skv_identity_add(self._c, key.encode(), ffi.cast("void *", address), n)

    def tensor(self, name: str, dtype: int, n: int, address: int) -> None:
        """n elements of SKV_F32, SKV_F16 or SKV_BF16 in host memory, under the checkpoint's name."""
        check(lib.skv_identity_add_tensor(self._c, name.encode(), dtype, n, ffi.cast("void *", address)))

    def shape(self, model: Model) -> None:
        c, kept = model.to_c()
        lib.skv_identity_add_shape(self._c, c)
        del kept

    def files(self, folder: str) -> None:
        """The tensors of a checkpoint's folder. Raises Error."""
        check(lib.skv_identity_add_files(self._c, os.fsencode(folder)))

    def settings(self, key: str, values: Mapping[str, Any]) -> None:
        """All values of a configuration, with their keys."""
        for name, value in values.items():
            path = f"{key}.{name}"
            if isinstance(value, Mapping):
                self.settings(path, value)
            elif isinstance(value, bool | str) or value is None:
                self.text(path, repr(value))
            elif isinstance(value, int | float):
                self.number(path, float(value))
            else:
                self.text(path, repr(value))

    def add(self, other: "Identity") -> None:
        """All items of another identity."""
        low = self._c.low + other._c.low
        self._c.high = (self._c.high + other._c.high + (low >> 64)) & (1 << 64) - 1
        self._c.low = low & (1 << 64) - 1

    def name(self, family: str) -> str:
        """ "FAMILY-" and 32 hexadecimal digits."""
        to = ffi.new("char[]", lib.SKV_NAME_MAX)
        lib.skv_identity_name(self._c, family.encode("ascii", "replace"), to)
        return ffi.string(to).decode()
