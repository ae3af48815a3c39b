# SPDX-License-Identifier: Apache-2.0
"""
Computes a model's identity from the model in memory: everything that its K and V are computed from. The daemon knows
the model by this name.
"""
import struct
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .._native import lib
from ..identity import Identity
from ..model import Model

DTYPES = {torch.float32: lib.SKV_F32, torch.float16: lib.SKV_F16, torch.bfloat16: lib.SKV_BF16}
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
WIDTH = 4096  # words in a row of a checksum

# Models that the C engine supports, too. With silu, shape, tensors and rms_norm_eps identify them completely, and the
# engine computes the same identity.
OF_THE_ENGINE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Unhashable(ValueError):
    """The model's weights cannot be read; the text says why."""


class Copy:
    """
    State of a tensor on a device when it was hashed: copying it again is slow, checking whether it has changed is
    fast.
    """

    def __init__(self, tensor: torch.Tensor, checksum: int, identity: Identity):
        self.state = (tensor.data_ptr(), tensor._version, tensor.dtype, tuple(tensor.shape), checksum)
        self.identity = identity


copies: "WeakKeyDictionary[PreTrainedModel, dict[str, Copy]]" = WeakKeyDictionary()


def add_host_tensor(to: Identity, name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype in DTYPES:
        to.tensor(name, DTYPES[tensor.dtype], tensor.numel(), tensor.data_ptr())
    else:
        to.memory(f"{name}:{tensor.dtype}", tensor.data_ptr(), tensor.numel() * tensor.element_size())


def weighed(sums: torch.Tensor) -> torch.Tensor:
    """The sum of these sums, each times an odd number of its own, modulo 2^64."""
    return (sums * (2 * torch.arange(len(sums), device=sums.device) + 1)).sum()


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a number that depends on each word and its place: a sum over rows of words, and one over columns."""
    words = tensor.reshape(-1).view(WORDS[tensor.element_size()])
    n = words.numel() // WIDTH * WIDTH
    grid, rest = words[:n].view(-1, WIDTH), words[n:].to(torch.int64)
    rows, columns = grid.sum(1, dtype=torch.int64), grid.sum(0, dtype=torch.int64)
    return weighed(rows) + 0x9E3779B1 * weighed(columns) + 0x85EBCA77 * weighed(rest)


def add_device_tensors(to: Identity, tensors: dict[str, torch.Tensor], known: dict[str, Copy]) -> None:
    """
    Copies changed tensors to the host and hashes them there. Writes through `.data` do not change the version, so
    each tensor has a checksum.
    """
    checksums = torch.stack([checksum(t).cpu() for t in tensors.values()]).tolist() if tensors else []
    for (name, tensor), now in zip(tensors.items(), checksums):
        copy = known.get(name)
        state = (tensor.data_ptr(), tensor._version, tensor.dtype, tuple(tensor.shape), now)
        if copy is None or copy.state != state:
            identity = Identity()
            add_host_tensor(identity, name, tensor.cpu())
            copy = known[name] = Copy(tensor, now, identity)
        to.add(copy.identity)


def add_weights(to: Identity, model: PreTrainedModel) -> None:
    on_device: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            to.text(name, repr(tensor))
        elif tensor.is_meta:
            raise Unhashable(
                f"{type(model).__name__}: {name} is not in memory (offloaded weights): expected all weights in memory, or model_name=, "
                "by which sequences belong to this model"
            )
        elif tensor.device.type == "cpu":
            add_host_tensor(to, name, tensor.contiguous())
        else:
            on_device[name] = tensor.contiguous()
    add_device_tensors(to, on_device, copies.setdefault(model, {}))


def add_frequencies(to: Identity, model: PreTrainedModel, shape: Model) -> None:
    """
    Adds RoPE's inverse frequencies if they are rounded. They are no weights and follow from the configuration, but
    model.half() and model.to(dtype) round them.
    """
    for name, module in model.named_modules():
        now = getattr(module, "inv_freq", None)
        if not isinstance(now, torch.Tensor) or now.is_meta:
            continue
        if now.dtype != torch.float32:
            to.text(f"{name}.inv_freq", str(now.dtype))
        elif shape.rope.type not in ("unknown", "none") and hasattr(module, "config"):
            exact = type(module)(module.config).inv_freq
            if exact.shape != now.shape or not torch.allclose(now.cpu(), exact.cpu().float(), rtol=1e-5, atol=0):
                to.bytes(f"{name}.inv_freq", now.cpu().numpy().tobytes())


def add_adapters(to: Identity, model: PreTrainedModel) -> None:
    """
    Adds PEFT's settings. The adapters' tensors are among the model's, but which adapters are active, and their
    scaling, are not.
    """
    for name, module in model.named_modules():
        for key in ("active_adapters", "disable_adapters", "scaling"):
            value = getattr(module, key, None) if hasattr(module, "base_layer") else None
            if value is not None:
                to.text(f"{name}.{key}", repr(value))


def add_settings(to: Identity, model: PreTrainedModel, shape: Model) -> None:
    config = model.config.get_text_config(decoder=True)
    architecture = type(model).__name__
    to.text("architecture", architecture)
    own = type(model).__module__.startswith("transformers.models.")
    if own and architecture in OF_THE_ENGINE and config.hidden_act == "silu" and shape.rope.type != "unknown":
        (eps,) = struct.unpack("f", struct.pack("f", config.rms_norm_eps))
        to.number("rms_norm_eps", eps)
    else:
        to.text("module", type(model).__module__)
        to.configuration(config.to_dict())
    quantization: Any = getattr(model.config, "quantization_config", None)
    if quantization is not None:
        to.text("quantization", repr(quantization if isinstance(quantization, dict) else quantization.to_dict()))


def identity_of(model: PreTrainedModel, shape: Model) -> str:
    """Returns a model name that is equal exactly for models that compute the same K and V. Raises Unhashable."""
    identity = Identity()
    add_settings(identity, model, shape)
    identity.shape(shape)
    add_weights(identity, model)
    add_frequencies(identity, model, shape)
    add_adapters(identity, model)
    return identity.name(type(model).__name__.partition("For")[0].lower())
