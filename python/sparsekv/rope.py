# SPDX-License-Identifier: Apache-2.0
"""Reads the RoPE from a transformers configuration, which vLLM uses, too."""
import math
from typing import Any

from .model import Rope

# Keys that rope_of() reads. A RoPE with another key is unknown, since that key may change the angles.
KEYS = frozenset(
    "rope_type type rope_theta partial_rotary_factor factor low_freq_factor high_freq_factor beta_slow beta_fast "
    "original_max_position_embeddings attention_factor mscale mscale_all_dim truncate".split()
)


def attention_of(given: dict[str, Any]) -> float:
    """Returns the factor of YaRN's cosines and sines; 0: it follows from the factor."""
    factor, by, by_all = (float(given.get(key) or 0.0) for key in ("factor", "mscale", "mscale_all_dim"))
    if given.get("attention_factor") or given.get("rope_type") != "yarn" or not (by and by_all):
        return float(given.get("attention_factor") or 0.0)
    grown = math.log(factor) if factor > 1 else 0.0
    return (0.1 * by * grown + 1) / (0.1 * by_all * grown + 1)


def rope_of(config: Any, head_dim: int) -> Rope:
    """
    Returns the RoPE in the library's terms; "unknown" for a type that the library does not know. Only some policies
    need it.
    """
    given = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in given and any(isinstance(value, dict) for value in given.values()):
        return Rope()  # each kind of layer has its own RoPE
    kind, theta = given.get("rope_type", "default"), given.get("rope_theta") or getattr(config, "rope_theta", None)
    if kind not in ("default", "linear", "llama3", "yarn") or not theta or given.keys() - KEYS or given.get("truncate") is False:
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
        attention=attention_of(given),
    )
