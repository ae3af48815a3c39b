# SPDX-License-Identifier: Apache-2.0
"""The shape of a model's KV cache, as the daemon and the library need it (sparsekv/types.h)."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ._native import ffi, lib
from .text import c_text

DTYPES = {"float32": lib.SKV_F32, "float16": lib.SKV_F16, "bfloat16": lib.SKV_BF16}
PAGE_DTYPES = {**DTYPES, "fp8": lib.SKV_FP8, "float8_e4m3fn": lib.SKV_FP8}
ROPE_TYPES = {
    "unknown": lib.SKV_ROPE_UNKNOWN,
    "none": lib.SKV_ROPE_NONE,
    "default": lib.SKV_ROPE_DEFAULT,
    "linear": lib.SKV_ROPE_LINEAR,
    "llama3": lib.SKV_ROPE_LLAMA3,
    "yarn": lib.SKV_ROPE_YARN,
}


def dtype_name(dtype: Any) -> str:
    """Returns "float32", "float16" or "bfloat16" for a name, a torch dtype or a numpy dtype."""
    name = str(dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise ValueError(f"dtype is {dtype}, expected float32, float16 or bfloat16")
    return name


def page_dtype(dtype: Any) -> int:
    """Returns the enum skv_dtype of a model's kv_dtype."""
    name = str(dtype).rpartition(".")[2]
    if name not in PAGE_DTYPES:
        raise ValueError(f"kv_dtype is {dtype}, expected float32, float16, bfloat16 or fp8")
    return PAGE_DTYPES[name]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, for policies that invert it: the fields of struct skv_rope."""

    type: str = "unknown"
    theta: float = 0.0
    dims: int = 0
    interleaved: bool = False
    factor: float = 0.0
    low: float = 0.0
    high: float = 0.0
    original: float = 0.0
    attention: float = 0.0


@dataclass(frozen=True)
class Layer:
    """
    Properties of one layer's attention that differ from the model's.

    window: sliding window in tokens, including the row's own; 0: none
    shares_kv: 1 + an earlier layer whose K and V it attends to; 0: its own
    scale: of the softmax; 0: the model's
    softcap: of the scores (Gemma 2); 0: none
    sinks: one logit for each q head, an additional term of its softmax (gpt-oss); None: none
    """

    window: int = 0
    shares_kv: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    sinks: Sequence[float] | None = None


@dataclass(frozen=True)
class Model:
    """
    The shape of a model's KV cache.

    name: 1 to 63 characters of printable ASCII without space; sequences belong to a model by its name
    head_dim: a multiple of 16, at most 256
    max_tokens: of the longest sequence
    kv_dtype: of the pages: "float32", "float16", "bfloat16" or "fp8" (e4m3, scaled row by row)
    io_dtype: of q, k, v and out; default: kv_dtype, or float32 for fp8
    device: "cpu", or "cuda:N"
    scale: of the softmax; 0: 1/sqrt(head_dim)
    layers: one Layer for each layer; empty if all are plain
    files: absolute directory of the model's files, where policies search for profiles
    rank, n_ranks: of a tensor-parallel group; numbers of heads are those of one rank
    """

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_tokens: int
    kv_dtype: str = "float32"
    io_dtype: str = ""
    device: str = "cpu"
    scale: float = 0.0
    layers: Sequence[Layer] = ()
    rope: Rope = field(default_factory=Rope)
    files: str = ""
    rank: int = 0
    n_ranks: int = 1

    @property
    def row_dtype(self) -> str:
        """The dtype of q, k, v and out."""
        return self.io_dtype or ("float32" if page_dtype(self.kv_dtype) == lib.SKV_FP8 else self.kv_dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: 16 tokens of one layer (skv_page_bytes in types.h)."""
        dtype, rows = page_dtype(self.kv_dtype), 2 * self.n_kv_heads * lib.SKV_PAGE_TOKENS
        element = 4 if dtype == lib.SKV_F32 else 1 if dtype == lib.SKV_FP8 else 2
        return rows * (self.head_dim * element + (dtype == lib.SKV_FP8))

    def to_c(self) -> tuple[Any, list[Any]]:
        """Returns struct skv_model *, and objects that must live as long as the call that reads it."""
        m = ffi.new("struct skv_model *")
        lib.skv_model_init(m, ffi.sizeof("struct skv_model"))
        m.n_layers, m.n_heads, m.n_kv_heads, m.head_dim = self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim
        m.max_tokens, m.scale, m.rank, m.n_ranks = self.max_tokens, self.scale, self.rank, self.n_ranks
        m.kv_dtype, m.io_dtype = page_dtype(self.kv_dtype), DTYPES[dtype_name(self.row_dtype)]
        m.device = device_number(self.device)
        m.name = text_of("name", self.name, lib.SKV_NAME_MAX)
        m.files = text_of("files", self.files, lib.SKV_PROFILE_PATH)
        rope_to_c(self.rope, m.rope)
        if not self.layers:
            return m, []
        if len(self.layers) != self.n_layers:
            raise ValueError(f"layers has {len(self.layers)} entries, expected one for each of n_layers = {self.n_layers}")
        layers, kept = layers_to_c(self.layers, self.n_heads)
        m.layers = layers
        return m, [layers, *kept]


def device_number(device: Any) -> int:
    """Returns 0 for "cpu", 1 + N for "cuda:N"."""
    name = str(device)
    if name == "cpu":
        return lib.SKV_DEVICE_HOST
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number.isdigit() or number == ""):
        raise ValueError(f"device is {name}, expected cpu or cuda:N")
    return 1 + int(number or 0)


def text_of(what: str, text: str, room: int) -> bytes:
    data = c_text(what, text)
    if len(data) >= room:
        raise ValueError(f"{what} is {len(data)} bytes long, expected at most {room - 1}: {text}")
    return data


def rope_to_c(rope: Rope, to: Any) -> None:
    if rope.type not in ROPE_TYPES:
        raise ValueError(f"rope.type is {rope.type}, expected one of {', '.join(ROPE_TYPES)}")
    to.type, to.dims, to.interleaved = ROPE_TYPES[rope.type], rope.dims, rope.interleaved
    to.theta, to.factor, to.low, to.high = rope.theta, rope.factor, rope.low, rope.high
    to.original, to.attention = rope.original, rope.attention


def layers_to_c(layers: Sequence[Layer], n_heads: int) -> tuple[Any, list[Any]]:
    to, kept = ffi.new("struct skv_model_layer[]", len(layers)), []
    for i, layer in enumerate(layers):
        lib.skv_model_layer_init(ffi.addressof(to, i), ffi.sizeof("struct skv_model_layer"))
        to[i].window, to[i].shares_kv = layer.window, layer.shares_kv
        to[i].scale, to[i].softcap = layer.scale, layer.softcap
        if layer.sinks is None:
            continue
        if len(layer.sinks) != n_heads:
            raise ValueError(f"layer {i}: sinks has {len(layer.sinks)} entries, expected one for each of {n_heads} q heads")
        kept.append(ffi.new("float[]", [float(x) for x in layer.sinks]))
        to[i].sinks = kept[-1]
    return to, kept
