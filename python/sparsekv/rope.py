# SPDX-License-Identifier: Apache-2.0
"""Reads the RoPE from a transformers configuration, which vLLM uses, too."""
from typing import Any

from .model import Rope


def rope_of(config: Any, head_dim: int) -> Rope:
    """
    Returns the RoPE in the library's terms; "unknown" for a type that the library does not know. Only some policies
    need it.
    """
    given = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in given and any(isinstance(value, dict) for value in given.values()):
        return Rope()  # each kind of layer has its own RoPE
    kind, theta = given.get("rope_type", "default"), given.get("rope_theta") or getattr(config, "rope_theta", None)
    if kind not in ("default", "linear", "llama3", "yarn") or not theta:
        return Rope()
    part = given.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
    return Rope(
        type=kind,
        theta=float(theta),
        dims=0 if part == 1.0 else int(head_dim * part),
        factor=float(given.get("factor") or 0.0),
        low=float(given.get(low) or (1.0 if kind == "yarn" else 0.0)),
        high=float(given.get(high) or (32.0 if kind == "yarn" else 0.0)),
        original=float(given.get("original_max_position_embeddings") or 0.0),
        attention=float(given.get("attention_factor") or 0.0),
    )
