# SPDX-License-Identifier: Apache-2.0
"""
transformers with its KV cache in a daemon's pages.

    import sparsekv, sparsekv.transformers
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("...", attn_implementation="sparsekv")
    cache = sparsekv.transformers.SparseCache(policy="sketch", name="chat-17")
    model.generate(**inputs, past_key_values=cache)

Importing this module registers the attention implementation "sparsekv". With a SparseCache as past_key_values, K and
V are in the daemon's pages, and the client library computes attention under the cache's policy. Without one the model
attends as with "sdpa".
"""
from .attention import NAME, install
from .cache import SparseCache
from .shapes import Unsupported, model_of

install()
__all__ = ["NAME", "SparseCache", "Unsupported", "model_of"]
