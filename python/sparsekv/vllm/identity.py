# SPDX-License-Identifier: Apache-2.0
"""What K and V depend on besides token ids: the model; and for a request its adapter, images, embeddings and salt."""
import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparsekv

from ..identity import Identity

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


def model_identity(vllm_config: "VllmConfig", shape: sparsekv.Model) -> str:
    """
    The name of the engine's model. It depends on the configuration, dtype, quantization and shape, and on all weights
    if the files are local; otherwise on the model's name and revision.
    """
    model, load = vllm_config.model_config, vllm_config.load_config
    identity = Identity()
    identity.text("engine", "vllm")  # its kernels round differently from those of others
    identity.text("dtype", str(model.dtype))
    identity.text("quantization", str(model.quantization))
    identity.text("architectures", repr(getattr(model.hf_config, "architectures", None)))
    identity.configuration(model.hf_config.to_dict())
    identity.shape(shape)
    folder = str(model.model)
    if str(load.load_format) == "dummy":
        identity.text("weights", f"dummy, seed {model.seed}")
    elif has_weights(folder):
        identity.files(folder)
    elif files := other_weights(Path(folder)):
        identity.text("weights", "\n".join(sorted(digest_of_file(file) for file in files)))
    else:
        # of a name in a hub; the revision may be a branch, which moves
        identity.text("weights", f"{folder} at {getattr(model.hf_config, '_commit_hash', None) or model.revision}")
    if shape.rope.type == "unknown":  # longrope, for instance, depends on the longest sequence
        identity.number("max_model_len", model.max_model_len)
    return identity.name(str(getattr(model.hf_config, "model_type", "model")))


def has_weights(folder: str) -> bool:
    return any((Path(folder) / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


def other_weights(path: Path) -> list[Path]:
    """Local weight files that the library cannot read: of other formats, or shards without an index."""
    if path.is_file():
        return [path]
    return [file for kind in ("safetensors", "bin", "pt", "pth", "gguf") for file in path.glob(f"*.{kind}")]


def digest_of_file(file: Path) -> str:
    st = os.stat(file)
    return digest_of(str(file), st.st_ino, st.st_size, st.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def digest_of(path: str, inode: int, size: int, changed_ns: int) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def adapter_key(lora: Any) -> str:
    """The key of a LoRA adapter: the content of its files if they are local, otherwise its name, path and number."""
    folder = Path(lora.lora_path)
    files = sorted(folder.glob("adapter_*")) if folder.is_dir() else []
    said = [str(lora.lora_name), str(lora.lora_path), str(lora.lora_int_id)]
    for file in files:
        said.append(f"{file.name} {digest_of_file(file)}")
    return "\n".join(said[3:] if files else said)


def loaded_adapter_key(lora: Any, adapters: dict[int, str]) -> str:
    number = lora.lora_int_id
    if number not in adapters or getattr(lora, "load_inplace", False):
        adapters[number] = adapter_key(lora)
    return adapters[number]


def request_key(request: "Request", adapters: dict[int, str] | None = None) -> str | None:
    """
    Requests with equal keys and equal first tokens have the same K and V. "": only token ids matter. None: unknown,
    because the prompt came as embeddings.

    adapters: the keys of the adapters that the engine has loaded, by number; it does not read their files again
    """
    if getattr(request, "prompt_embeds", None) is not None:
        return None
    parts = []
    if request.lora_request is not None:
        parts.append("adapter\n" + loaded_adapter_key(request.lora_request, {} if adapters is None else adapters))
    if request.cache_salt:
        parts.append("salt\n" + request.cache_salt)
    for feature in request.mm_features or []:
        parts.append(f"input\n{feature.identifier} {feature.mm_position.offset} {feature.mm_position.length}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() if parts else ""


def name_under(key: str, name: str) -> str:
    """
    The name of a request's sequence. It contains the key, so requests with different adapters never share a sequence.
    """
    return name if not key else f"{name[: 63 - 17]}.{key[:16]}"
