# SPDX-License-Identifier: Apache-2.0
"""
Measures the loss that policies cause in a model's predictions, through SparseCache: the loss of engine/loss.c.

Texts are read densely up to a row. The rest is decoded, first densely, then under each policy. A policy's loss is the
Kullback-Leibler divergence of its predictions from the dense run's, in nats, averaged over the decoded rows.

The KV cache of the texts stays in the pool, and each policy decodes forks of it: several policies and texts are rows
of one batch.
"""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..client import Client
from ..transformers import SparseCache
from .progress import Progress
from .texts import Text

LANES = 64  # most sequences that are decoded together
CHUNK = 128  # rows of each text that are read in one call


@dataclass
class Judged:
    """
    The result of a policy over all decoded rows.

    loss: in nats
    share: tokens that were attended to, relative to dense attention
    dense_tokens: tokens that dense attention reads for a decoded token, over all layers
    memory: pages relative to dense sequences
    """

    loss: float
    share: float
    dense_tokens: float
    memory: float


@dataclass
class Sums:
    """Sums of one policy while it decodes."""

    loss: float = 0.0
    attended: int = 0
    causal: int = 0
    resident: int = 0
    pages: int = 0

    def count(self, cache: SparseCache, first: int, stride: int) -> None:
        """Adds the attended tokens and the pages of the cache's sequences first, first + stride, ..."""
        for seq in cache.seqs[first::stride]:
            attended, causal = seq.attended()
            resident, pages = seq.pages()
            self.attended, self.causal = self.attended + attended, self.causal + causal
            self.resident, self.pages = self.resident + resident, self.pages + pages

    def judged(self, rows: int) -> Judged:
        share = self.attended / self.causal if self.causal else 1.0
        return Judged(self.loss / rows, share, self.causal / rows, self.resident / max(self.pages, 1))


@dataclass
class Group:
    """
    Texts of one length, which form a batch.

    dense: [row][text, vocabulary] float32: log p of the dense run, in host memory
    """

    texts: list[Text]
    cache: SparseCache
    dense: list[torch.Tensor]

    def keep(self, logits: torch.Tensor) -> None:
        """Stores the next row of the dense run."""
        self.dense.append(logits.float().log_softmax(-1).cpu())


def groups_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Groups texts of equal length and equal first row, at most LANES in a group."""
    kinds: dict[tuple[int, int], list[Text]] = {}
    for text in texts:
        kinds.setdefault((len(text.ids), text.start), []).append(text)
    for same in kinds.values():
        for at in range(0, len(same), LANES):
            yield same[at : at + LANES]


class Loss:
    """
    Reads the texts and decodes them densely. Raises Interrupted.

    model: must have attn_implementation="sparsekv"
    texts: all rows from `start` on are decoded
    progress: its unit is a row that is read or decoded
    kv_dtype: of the pages; "": the model's
    """

    def __init__(self, model: PreTrainedModel, client: Client, texts: Sequence[Text], progress: Progress, kv_dtype: str = ""):
        self.model, self.progress = model, progress
        self.rows = sum(text.n_rows for text in texts)
        self.groups: list[Group] = []
        self._client, self._kv_dtype = client, kv_dtype
        try:
            for same in groups_of(texts):
                group = Group(same, self._cache("full"), [])
                self.groups.append(group)
                self._read(group.cache, same, "reading texts to decode")
                self._decode(group, ["full"], group.keep, "decoding densely")
        except BaseException:
            self.close()
            raise

    def _cache(self, policy: str) -> SparseCache:
        return SparseCache(policy, client=self._client, model=self.model, kv_dtype=self._kv_dtype)

    @torch.inference_mode()
    def _read(self, cache: SparseCache, texts: Sequence[Text], label: str) -> None:
        """
        Reads the rows before those that count, in chunks. No chunk has one row, because that would be a decode step.
        """
        end = texts[0].start
        ids = torch.tensor([text.ids[:end] for text in texts], device=self.model.device)
        cache.expect(ids, None)
        bounds = [*range(0, max(end - 1, 1), CHUNK), end]
        for at, to in zip(bounds, bounds[1:]):
            self.model(input_ids=ids[:, at:to], past_key_values=cache, logits_to_keep=1)
            self.progress.add((to - at) * len(texts), label)

    @torch.inference_mode()
    def _decode(
        self, group: Group, specs: Sequence[str], see: Callable[[torch.Tensor], None], label: str, read: SparseCache | None = None
    ) -> list[Sums]:
        """
        Decodes forks of `read` (None: the group's cache) under each policy.

        see() is called with each row's logits [texts * policies, vocabulary]; those of a text's policies are
        adjacent. The returned sums have the attended tokens and the pages.
        """
        n = len(specs)
        sums = [Sums() for _ in specs]
        first = group.texts[0]
        rows = torch.tensor([text.ids[first.start :] for text in group.texts], device=self.model.device).repeat_interleave(n, 0)
        with (read or group.cache).fork() as lanes:
            lanes.batch_repeat_interleave(n)
            for i, seq in enumerate(lanes.seqs):
                seq.set_policy(specs[i % n])
            for row in range(rows.shape[1]):
                logits = self.model(input_ids=rows[:, row : row + 1], past_key_values=lanes, logits_to_keep=1).logits
                see(logits[:, -1])
                self.progress.add(len(rows), label)
            for i, each in enumerate(sums):
                each.count(lanes, i, n)
        return sums

    def _judge(self, group: Group, specs: Sequence[str], label: str, read: SparseCache | None = None) -> list[Sums]:
        loss = torch.zeros(len(specs), dtype=torch.float64)
        rows = iter(group.dense)

        def see(logits: torch.Tensor) -> None:
            dense = next(rows).to(logits.device)[:, None]  # [text][policy][vocabulary]
            got = logits.float().log_softmax(-1).view(len(group.texts), len(specs), -1)
            loss.add_((dense.exp() * (dense - got)).sum(-1, dtype=torch.float64).sum(0).cpu())

        sums = self._decode(group, specs, see, label, read)
        for each, lost in zip(sums, loss.tolist()):
            each.loss = lost
        return sums

    def of(self, specs: Sequence[str], label: str) -> list[Judged]:
        """
        Measures policies whose result does not depend on the prefill: each decodes forks of the densely read texts.
        """
        total = [Sums() for _ in specs]
        for group in self.groups:
            at_once = max(1, LANES // len(group.texts))
            for at in range(0, len(specs), at_once):
                add(total[at : at + at_once], self._judge(group, specs[at : at + at_once], label))
        return [each.judged(self.rows) for each in total]

    def of_reading(self, spec: str, label: str) -> Judged:
        """Measures a policy whose prefill is special: the texts are read under it."""
        total = [Sums()]
        for group in self.groups:
            with self._cache(spec) as cache:
                self._read(cache, group.texts, label)
                add(total, self._judge(group, [spec], label, cache))
        return total[0].judged(self.rows)

    def close(self) -> None:
        """Frees the pages."""
        for group in self.groups:
            group.cache.close()


def add(total: Sequence[Sums], more: Sequence[Sums]) -> None:
    for to, each in zip(total, more):
        for name in Sums.__dataclass_fields__:
            setattr(to, name, getattr(to, name) + getattr(each, name))
