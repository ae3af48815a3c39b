# SPDX-License-Identifier: Apache-2.0
"""
Sparse attention over KV caches that a daemon owns: the Python binding of libsparsekv-client.

    import sparsekv
    with sparsekv.private() as client:                       # or sparsekv.Client(), the system's daemon
        session = client.open(sparsekv.Model("toy", n_layers=2, n_heads=8, n_kv_heads=2, head_dim=64, max_tokens=4096))
        seq = session.new("chat-17")
        with session.step([sparsekv.Item(seq, n_tokens=5, prompt=True)]) as step:
            for layer in range(2):
                step.attend(layer, q, k, v, out)             # [rows, heads, head_dim], torch or numpy

sparsekv.transformers has a cache for transformers' generate(), sparsekv.vllm a backend for vLLM. K and V are never
copied to Python: tensors are passed by address.
"""
from .client import Client, version
from .errors import Error, OutOfPages, Stale
from .model import Layer, Model, Rope
from .private import PrivateClient, default, private, set_default
from .session import ALL, BLOCK_TOKENS, PAGE_TOKENS, STEP_ROWS, Item, Room, Selection, Seq, Session, Stats, Step

__version__ = version()
__all__ = [
    "ALL",
    "BLOCK_TOKENS",
    "Client",
    "Error",
    "Item",
    "Layer",
    "Model",
    "OutOfPages",
    "PAGE_TOKENS",
    "PrivateClient",
    "Room",
    "Rope",
    "STEP_ROWS",
    "Selection",
    "Seq",
    "Session",
    "Stale",
    "Stats",
    "Step",
    "default",
    "private",
    "set_default",
    "version",
]
