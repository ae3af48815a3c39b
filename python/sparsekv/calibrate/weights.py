# SPDX-License-Identifier: Apache-2.0
"""
Softmax weights of some rows of a text, and attention in blocks of rows, with the features of transformers' attention
functions.
"""
from dataclasses import dataclass

import torch

BLOCK = 128  # rows whose weights, for all heads, are in memory at once


@dataclass(frozen=True)
class Attention:
    """
    How a layer attends.

    scale: factor of q·k
    softcap, window: 0: none; the window is in tokens
    sinks: learned sinks [n_heads]; None: none
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
    sinks: torch.Tensor | None = None


@dataclass(frozen=True)
class Visible:
    """What a row of a sparse prompt attends to: the first tokens, and the last ones including its own."""

    sinks: int
    window: int


def blocks(rows: torch.Tensor) -> list[torch.Tensor]:
    """Divides the rows into blocks whose weights are computed at once."""
    return [rows[at : at + BLOCK] for at in range(0, len(rows), BLOCK)]


def scores(query: torch.Tensor, key: torch.Tensor, how: Attention) -> torch.Tensor:
    """query [n_heads, rows, head_dim], key [n_kv_heads, n, head_dim]; returns [n_heads, rows, n] float32."""
    heads, rows, dim = query.shape
    grouped = query.float().reshape(key.shape[0], -1, dim)  # the q heads of a kv head are adjacent
    s = (grouped @ key.float().transpose(1, 2)).view(heads, rows, -1) * how.scale
    return how.softcap * torch.tanh(s / how.softcap) if how.softcap else s


def hidden(rows: torch.Tensor, n: int, how: Attention, visible: Visible | None) -> torch.Tensor:
    """Mask of the n tokens that these rows do not attend to: [rows, n] bool."""
    at, p = torch.arange(n, device=rows.device), rows[:, None]
    mask = at > p
    if how.window:
        mask |= at <= p - how.window
    if visible is not None:
        mask |= (at >= visible.sinks) & (at <= p - visible.window)
    return mask


def weights(
    query: torch.Tensor, key: torch.Tensor, rows: torch.Tensor, how: Attention, visible: Visible | None = None
) -> torch.Tensor:
    """
    Softmax weights of the rows at these positions: query [n_heads, rows, head_dim], key [n_kv_heads, n, head_dim];
    returns [n_heads, rows, n] float32.

    visible: attend only to these tokens; None: to all tokens up to the row's own
    """
    s = scores(query, key, how)
    s.masked_fill_(hidden(rows, key.shape[1], how, visible), -torch.inf)
    if how.sinks is None:
        return s.softmax(-1)
    sinks = how.sinks.float().view(-1, 1, 1).expand(-1, s.shape[1], 1)
    return torch.cat([s, sinks], -1).softmax(-1)[..., :-1]


def mix(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """weight [n_heads, rows, n], value [n_kv_heads, n, head_dim]; returns [n_heads, rows, head_dim] float32."""
    heads, rows, n = weight.shape
    return (weight.reshape(value.shape[0], -1, n) @ value.float()).view(heads, rows, -1)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, how: Attention) -> torch.Tensor:
    """
    Causal attention of all rows of one text, [heads, n, head_dim] each; returns [n, n_heads, head_dim] in query's
    dtype.
    """
    out = []
    for rows in blocks(torch.arange(query.shape[1], device=query.device)):
        end = int(rows[-1]) + 1
        out.append(mix(weights(query[:, rows], key[:, :end], rows, how), value[:, :end]))
    return torch.cat(out, 1).transpose(0, 1).to(query.dtype)
