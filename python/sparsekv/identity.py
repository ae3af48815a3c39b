# SPDX-License-Identifier: Apache-2.0
"""
The identity of a model: everything that its K and V are computed from, as the library defines it (sparsekv/client.h).
"""
import os
from collections.abc import Mapping
from typing import Any

from ._native import ffi, lib
from .errors import check
from .model import Model
from .text import c_text

# Keys of a configuration that do not affect the forward pass. A missing key here only prevents sharing of prefixes.
NOT_COMPUTED = frozenset(
    "_name_or_path name_or_path transformers_version architectures dtype torch_dtype use_cache pad_token_id bos_token_id eos_token_id "
    "sep_token_id decoder_start_token_id id2label label2id problem_type return_dict output_attentions output_hidden_states chunk_size_feed_forward "
    "tie_word_embeddings tokenizer_class task_specific_params initializer_range attn_implementation max_length".split()
)


class Identity:
    """
    A sum of items in any order: text, numbers, bytes, tensors, each with its own key. name() converts it to the name
    of a model; sequences and prefixes with this name can be used by the same model everywhere, and by no other model.
    """

    def __init__(self) -> None:
        self._c = ffi.new("struct skv_identity *")

    def text(self, key: str, text: str) -> None:
        lib.skv_identity_add_text(self._c, c_text("key", key), c_text("text", text))

    def number(self, key: str, number: float) -> None:
        lib.skv_identity_add_number(self._c, c_text("key", key), number)

    def bytes(self, key: str, data: Any) -> None:
        """data: bytes, or an object with the buffer protocol."""
        view = ffi.from_buffer(data)
        lib.skv_identity_add(self._c, c_text("key", key), view, len(view))

    def memory(self, key: str, address: int, n: int) -> None:
        """Adds n bytes of host memory."""
        lib.skv_identity_add(self._c, c_text("key", key), ffi.cast("void *", address), n)

    def tensor(self, name: str, dtype: int, n: int, address: int) -> None:
        """Adds n elements of SKV_F32, SKV_F16 or SKV_BF16 in host memory, under the checkpoint's name."""
        check(lib.skv_identity_add_tensor(self._c, c_text("name", name), dtype, n, ffi.cast("void *", address)))

    def shape(self, model: Model) -> None:
        c, kept = model.to_c()
        lib.skv_identity_add_shape(self._c, c)
        del kept

    def files(self, folder: str) -> None:
        """Adds the tensors of a checkpoint's folder. Raises Error."""
        check(lib.skv_identity_add_files(self._c, c_text("folder", os.fspath(folder))))

    def settings(self, key: str, values: Mapping[str, Any]) -> None:
        """Adds all values of a configuration with their keys."""
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

    def configuration(self, config: Mapping[str, Any], key: str = "config") -> None:
        """Adds what the forward pass reads of a transformers configuration, including nested configurations."""
        for name, value in config.items():
            if isinstance(value, Mapping):
                self.configuration(value, f"{key}.{name}")
            elif name not in NOT_COMPUTED:
                self.settings(key, {name: value})

    def add(self, other: "Identity") -> None:
        """Adds all items of another identity."""
        low = self._c.low + other._c.low
        self._c.high = (self._c.high + other._c.high + (low >> 64)) & (1 << 64) - 1
        self._c.low = low & (1 << 64) - 1

    def name(self, family: str) -> str:
        """Returns "FAMILY-" and 32 hexadecimal digits."""
        to = ffi.new("char[]", lib.SKV_NAME_MAX)
        lib.skv_identity_name(self._c, family.replace("\0", "?").encode("ascii", "replace"), to)
        return ffi.string(to).decode()
