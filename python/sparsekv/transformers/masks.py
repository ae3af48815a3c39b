# SPDX-License-Identifier: Apache-2.0
"""Checks that a model's mask is the one that the library attends with: causal, with the layer's sliding window."""
from collections.abc import Callable, Collection
from typing import Any

import torch
from transformers.masking_utils import causal_mask_function, sdpa_mask

ELEMENTS = 1 << 24  # elements of a mask that are compared at a time


def plain_window(function: Any) -> int | None:
    """
    Recognizes transformers' own causal masks by their functions, and returns the window, 0 without one; None: another
    mask.
    """
    if function is causal_mask_function:
        return 0
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    name = getattr(function, "__qualname__", "")
    if name.startswith("sliding_window_overlay.") and len(inside) == 1 and isinstance(inside[0], int):
        return inside[0]
    if not name.startswith("and_masks.") or len(inside) != 1:
        return None
    windows = [plain_window(part) for part in inside[0]]
    if causal_mask_function not in inside[0] or None in windows:
        return None
    return min((w for w in windows if w), default=0)


def check_mask(
    windows: Collection[int],
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> None:
    """
    Raises ValueError if a row attends to other columns than causally, with or without one of the layers' windows.
    Padding is ignored. SparseCache.check_layer() checks that each layer has the window that the session was opened
    with.
    """
    if plain_window(mask_function) is not None:
        return
    rows = max(1, ELEMENTS // max(1, batch_size * kv_length))
    columns = torch.arange(kv_length, device=device) + kv_offset
    fits = dict.fromkeys([0, *windows], True)
    for first in range(0, q_length, rows):
        n = min(rows, q_length - first)
        asked = sdpa_mask(
            batch_size, n, kv_length, q_offset + first, kv_offset, mask_function, allow_is_causal_skip=False, use_vmap=use_vmap, device=device
        )
        assert asked is not None
        back = (torch.arange(n, device=device) + q_offset + first)[:, None] - columns[None]
        for window in [w for w in fits if fits[w]]:
            computed = (back >= 0) & (back < window) if window else back >= 0
            fits[window] = bool((asked == computed).all())
    if not any(fits.values()):
        raise ValueError(
            "the model attends with a mask that is not causal (bidirectional tokens, spans of an image, packed sequences): a SparseCache knows causal "
            "attention, sliding windows and padding alone"
        )
