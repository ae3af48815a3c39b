# SPDX-License-Identifier: Apache-2.0
"""SparseCache: a transformers cache whose K and V are in a daemon's pages."""
import errno
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ..client import Client
from ..errors import Error, Stale
from ..private import default
from ..session import STEP_ROWS, Item, Seq, Session, Stats, common
from .recording import NotRecorded, Recordings
from .shapes import attention_modules, model_of

log = logging.getLogger("sparsekv")

# Inputs of a model that are not token ids: K and V depend on them.
OTHER_INPUTS = ("pixel_", "image_", "video_", "audio_", "input_features", "input_values", "inputs_embeds")


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Reshapes [batch, heads, n, dim] to [batch * n, heads, dim]; copies only if a row's heads are not contiguous."""
    batch, heads, n, dim = x.shape
    rows = x.transpose(1, 2).reshape(batch * n, heads, dim)
    return rows if heads == 1 or rows.stride(1) == dim else rows.contiguous()


class Columns:
    """
    Which columns of a batch are tokens. transformers counts columns, including padding, equally many in each row of a
    batch; a sequence in pages has only its tokens.
    """

    def __init__(self) -> None:
        self.n = 0
        self.real: torch.Tensor | None = None  # [batch, n] bool in host memory; None: all columns are tokens

    def append(self, n: int, real: torch.Tensor | None, batch: int) -> None:
        if real is not None or self.real is not None:
            old = torch.ones((batch, self.n), dtype=torch.bool) if self.real is None else self.real
            new = torch.ones((batch, n), dtype=torch.bool) if real is None else real
            self.real = torch.cat([old, new], dim=1)
        self.n += n

    def tokens_in(self, last: int, row: int) -> int:
        """Number of tokens in the last `last` columns of a row."""
        return last if self.real is None else int(self.real[row, self.n - last :].sum())

    def remove(self, last: int) -> None:
        self.n -= last
        if self.real is not None:
            self.real = self.real[:, : self.n]

    def select(self, rows: Sequence[int]) -> None:
        if self.real is not None:
            self.real = self.real[list(rows)]

    def clear(self) -> None:
        self.n, self.real = 0, None


class Bound:
    """The model that a cache is used with: its attention layers, and the configurations that it creates masks with."""

    def __init__(self, model: PreTrainedModel | None = None):
        self.layers = set(map(id, attention_modules(model).values())) if model is not None else set()
        self.configs = [model.config, model.config.get_text_config(decoder=True)] if model is not None else []
        self.checked = {id(model)}

    def check(self, model: PreTrainedModel) -> None:
        """Accepts the model, a part of it, or a model that contains it: they have the same layers."""
        if id(model) in self.checked:
            return
        if not self.layers <= set(map(id, attention_modules(model).values())):
            raise ValueError(f"the cache was used with another model than this {type(model).__name__}: expected a SparseCache for each model")
        self.checked.add(id(model))
        self.configs.append(model.config)


class SparseCache(Cache):
    """
    past_key_values for a model with attn_implementation="sparsekv".

    policy: what decode attends to and what is retained, "name" or "name?key=value&..."; see sparsekv-policy(7)
    name: of the sequence, or a list of names, one for each row of the batch. A named sequence outlives the process; a
        SparseCache of the same name continues it in any process of this user
    client: the connection; None: sparsekv.default()
    model: the model; otherwise the first generate() or call sets it
    kv_dtype: of the pages, such as "fp8"; "": the model's
    max_tokens: of the longest sequence; 0: the model's
    model_name: sequences belong to a model by name; "": derived from everything that K and V are computed from
        (identity.py)
    graphs: on a GPU, record decode steps as CUDA graphs. Steps that cannot be recorded run normally, and the log has
        the reason
    compile: let torch.compile fuse the operations between the attention of decode steps, which takes a while in the
        first step; a dict: arguments for torch.compile

    Each call of the model is a step: when it returns, its tokens are committed. A call with one row decodes, and so
    does one with up to 16 rows that a speculative decoder verifies. Rows of other calls belong to a prompt; they
    attend densely unless the policy's prefill is sparse.

    Pages are freed by close(), at the end of a `with` block, or when the object is garbage-collected; named sequences
    stay.
    """

    def __init__(
        self,
        policy: str = "full",
        name: str | Sequence[str] | None = None,
        *,
        client: Client | None = None,
        model: PreTrainedModel | None = None,
        kv_dtype: str = "",
        max_tokens: int = 0,
        model_name: str = "",
        graphs: bool = True,
        compile: bool | dict[str, Any] = False,
    ):
        super().__init__(layers=[])
        self.policy = policy
        self.names = [name] if isinstance(name, str) else list(name or [])
        self.seqs: list[Seq] = []
        self.session: Session | None = None
        self._client = client
        self._bound = Bound()
        self._lent = False  # the session belongs to another cache
        self._options: dict[str, Any] = {"kv_dtype": kv_dtype, "max_tokens": max_tokens, "name": model_name}
        self._columns = Columns()
        # for the open step: indices of the rows of [batch * n] that are tokens; None: all
        self._index: torch.Tensor | None = None
        self.generates = False  # inside generate(), which creates the masks itself
        self._speculates = False  # steps of a few rows are candidates that a speculative decoder verifies
        self._prompt_end = 0  # columns of the prompt that generate() reads in chunks
        self._prompt_mask: torch.Tensor | None = None
        self._checked: set[int] = set()
        self._graphs, self._compile = graphs, compile
        self._recordings: list[Recordings] = []
        if model is not None:
            self.bind(model)

    # ---- the model and its sequences ----

    def bind(self, model: PreTrainedModel) -> None:
        """
        Opens the model in the daemon, and attaches existing named sequences. generate() and the model's call do this,
        too; calling it earlier makes tokens() and get_seq_length() of a resumed sequence available. Raises
        Unsupported.
        """
        if self.session is not None:
            self._bound.check(model)
            return
        implementation = model.config.get_text_config(decoder=True)._attn_implementation
        if implementation != "sparsekv":
            raise ValueError(f"the model's attn_implementation is {implementation}, expected sparsekv for a SparseCache")
        shape = model_of(model, **self._options)
        self._bound = Bound(model)
        self.session = (self._client or default()).open(shape, self.policy)
        found = [self._attach(name) for name in self.names]
        if all(seq is None for seq in found):
            return
        if any(seq is None for seq in found):
            missing = self.names[found.index(None)]
            raise Error(errno.ENOENT, f"{missing}: no such sequence, but others of the batch are there")
        self.seqs = [seq for seq in found if seq is not None]
        self._columns.n = max(map(len, self.seqs))
        if any(len(seq) < self._columns.n for seq in self.seqs):  # like a batch with padding on the left
            at = torch.arange(self._columns.n)
            self._columns.real = torch.stack([at >= self._columns.n - len(seq) for seq in self.seqs])

    def _attach(self, name: str) -> Seq | None:
        assert self.session is not None
        try:
            return self.session.attach(name)
        except Error as e:
            if e.errno != errno.ENOENT:
                raise
            return None

    def _make(self, batch: int) -> None:
        assert self.session is not None
        if not self.seqs:
            if self.names and len(self.names) != batch:
                raise ValueError(f"name has {len(self.names)} names, expected one for each of {batch} rows of the batch")
            self.seqs = [self.session.new(self.names[i] if self.names else None) for i in range(batch)]
        if len(self.seqs) != batch:
            raise ValueError(f"the batch has {batch} rows, expected {len(self.seqs)}, as many as the cache has sequences")

    def fork(self, policy: str | None = None, name: str | Sequence[str] | None = None) -> "SparseCache":
        """
        Returns a copy of all rows, which shares their pages until one of the two changes them. It uses this cache's
        session and ends with it.

        policy: of the copy; None: that of this cache's rows
        """
        if self.session is None or not self.seqs:
            raise ValueError("the cache has no sequences so far")
        to = SparseCache(policy or self.policy, name, graphs=self._graphs, compile=self._compile)
        if to.names and len(to.names) != len(self.seqs):
            raise ValueError(f"name has {len(to.names)} names, expected one for each of {len(self.seqs)} rows")
        to.session, to._recordings, to._lent, to._bound = self.session, self._recordings, True, self._bound
        to._columns.append(self._columns.n, self._columns.real, len(self.seqs))
        for i, seq in enumerate(self.seqs):
            to.seqs.append(seq.fork(to.names[i] if to.names else None))
            if policy is not None:
                to.seqs[i].set_policy(policy)
        return to

    def tokens(self, row: int = 0) -> list[int]:
        """
        Returns the token ids of a row's sequence, without padding: those with K and V, and the next token, if it is
        known.
        """
        ids, following = self.seqs[row].tokens()
        return ids if following < 0 else [*ids, following]

    def attended_share(self) -> float:
        """Tokens that these rows read in decode steps, relative to dense attention; 1 before any."""
        each = [seq.attended() for seq in self.seqs]
        causal = sum(x for _, x in each)
        return sum(x for x, _ in each) / causal if causal else 1.0

    def stats(self) -> Stats:
        """Counters of the cache's session: steps, tokens, pages evicted, recall."""
        if self.session is None:
            raise ValueError("the cache has not been used so far")
        return self.session.stats()

    # ---- a step ----

    def expect(self, ids: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """
        Announces a prompt that may come in several calls, so that policies know its end and chunks do not change
        results. Tokens of the sequences that match the prompt are kept; others are removed.
        """
        self._prompt_end = ids.shape[1] if ids is not None else 0
        self._prompt_mask, self._speculates = mask, False
        if ids is None or len(self.seqs) != ids.shape[0]:
            return
        rows = ids.tolist()
        real = None if mask is None or bool(mask.all()) else mask.to("cpu", torch.bool)
        each = [self._columns_held(seq, rows[i], None if real is None else real[i].tolist()) for i, seq in enumerate(self.seqs)]
        kept = min(*each, ids.shape[1] - 1)  # the logits of the last column are needed
        self._go_back(kept, None if real is None else real[:, :kept])

    @staticmethod
    def _columns_held(seq: Seq, ids: list[int], real: list[bool] | None) -> int:
        """Number of the prompt's first columns whose tokens the sequence begins with."""
        places = range(len(ids)) if real is None else [i for i, is_token in enumerate(real) if is_token]
        n = common([ids[i] for i in places], seq.tokens()[0])
        return len(ids) if n == len(places) else places[n]

    def _go_back(self, kept: int, real: torch.Tensor | None) -> None:
        """Truncates the sequences to the tokens in the prompt's first `kept` columns."""
        for i, seq in enumerate(self.seqs):
            n, held = kept if real is None else int(real[i].sum()), len(seq)
            if n == held:
                continue
            try:
                seq.truncate(n)
            except Stale as e:
                raise ValueError(
                    f"{self._called(i)} holds {held} tokens, of which the prompt begins with {n} alone, and the policy {seq.policy} cannot go back "
                    f"to these ({e.strerror}): expected a prompt that begins with all that it holds, or reset()"
                ) from None
            if held - n > 1:
                log.warning("sparsekv: %s goes on from the first %d of its %d tokens: the prompt is another one behind them", self._called(i), n, held)
        self._columns.clear()
        self._columns.append(kept, real, len(self.seqs))

    def _called(self, row: int) -> str:
        return f"the sequence {self.names[row]}" if self.names else f"row {row} of the cache"

    def _remaining(self, after: int, row: int) -> int:
        """Tokens of the expected prompt after this number of columns."""
        if after >= self._prompt_end:
            return 0
        mask = self._prompt_mask
        return self._prompt_end - after if mask is None else int(mask[row, after : self._prompt_end].sum())

    def call(self, model: PreTrainedModel, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a model's call as a step; forward() executes it. Returns its output."""
        self.bind(model)
        ids = kwargs.get("input_ids", args[0] if args else None)
        new = ids if ids is not None else kwargs["inputs_embeds"]
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        batch, n = new.shape[:2]
        self._make(batch)
        if self.names and (other := [key for key in kwargs if key.startswith(OTHER_INPUTS) and kwargs[key] is not None]):
            raise ValueError(f"name: a sequence records token ids, and not {other[0]}: expected a SparseCache without a name")
        real = self._real_of(mask, n)
        self._check_positions(kwargs.get("position_ids"), real, n)
        decodes = self._columns.n > 0 and (n == 1 or (real is None and n <= STEP_ROWS and self._speculates))
        items = self._items(ids, real, batch, n, decodes)
        recordings = self._recordings_of(model) if decodes and real is None else None
        if recordings is None:
            output = self._step(items, lambda: forward(*args, **kwargs))
        else:
            with recordings.on_stream():
                try:
                    output = self._step(items, lambda: recordings.call(forward, args, kwargs, self._columns.n))
                except NotRecorded:
                    output = self._step(items, lambda: forward(*args, **kwargs))
        self._columns.append(n, real, batch)
        return output

    def _step(self, items: list[Item], run: Callable[[], Any]) -> Any:
        assert self.session is not None
        self._begin(items)
        try:
            output = run()
            self.session.end()
        except BaseException:
            self.session.abort()
            raise
        return output

    def _recordings_of(self, model: PreTrainedModel) -> Recordings | None:
        """Returns the session's recordings, which forked caches share; None if steps run without recordings."""
        assert self.session is not None
        if not self._graphs or (self.session.model.device == "cpu" and not self._compile):
            return None
        if not self._recordings:
            self._recordings.append(Recordings(model, self.session, self._compile))
        return self._recordings[0]

    def _real_of(self, mask: torch.Tensor | None, n: int) -> torch.Tensor | None:
        """
        Which of the new columns are tokens: [batch, n] bool; None: all. In decode steps generate() passes only ones.
        """
        if mask is None or (self.generates and n == 1 and self._columns.n > 0):
            return None
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            raise ValueError("attention_mask is not [batch, columns]: a SparseCache knows causal attention and padding alone")
        if mask.shape[1] != self._columns.n + n:
            raise ValueError(f"attention_mask has {mask.shape[1]} columns, expected {self._columns.n + n}: those of the cache and the new ones")
        said = mask.to("cpu", torch.bool)
        held = torch.ones_like(said[:, :-n]) if self._columns.real is None else self._columns.real
        if not torch.equal(said[:, :-n], held):
            row, column = (said[:, :-n] != held).nonzero()[0].tolist()
            raise ValueError(
                f"attention_mask is {int(said[row, column])} in column {column} of row {row}, where the cache has {'a token' if held[row, column] else 'padding'}: "
                "expected the mask of the calls before; generate() with the whole prompt takes back what a later mask hides"
            )
        return None if bool(said[:, -n:].all()) else said[:, -n:]

    def _check_positions(self, positions: torch.Tensor | None, real: torch.Tensor | None, n: int) -> None:
        """
        Positions of a named sequence must be the indices of its tokens, because the rotary embedding of a
        continuation uses these.
        """
        if not self.names or n == 1 or (positions is None and real is None and self._columns.real is None):
            return
        if positions is None or positions.dim() != 2:
            raise ValueError("name: a padded prompt without position_ids: expected those that count tokens, as generate() passes them")
        given = positions.to("cpu").expand(len(self.seqs), -1)
        for i, seq in enumerate(self.seqs):
            at = given[i] if real is None else given[i][real[i]]
            if not torch.equal(at, torch.arange(len(seq), len(seq) + len(at))):
                raise ValueError(f"name: position_ids of row {i} do not count its tokens, from {len(seq)} on: a sequence that is gone on with would")

    def _items(self, ids: torch.Tensor | None, real: torch.Tensor | None, batch: int, n: int, decodes: bool) -> list[Item]:
        """Returns the step's items, and records the sampled tokens, which stay known even if the step fails."""
        assert self.session is not None
        rows: list[Any] = ids.tolist() if ids is not None else [None] * batch
        counts = [n] * batch
        self._index = None
        if real is not None:
            self._index = real.flatten().nonzero().flatten().to(self.session.model.device)
            counts = real.sum(1).tolist()
            rows = [r and [x for x, is_token in zip(r, real[i].tolist()) if is_token] for i, r in enumerate(rows)]
        if decodes and ids is not None:
            for seq, row in zip(self.seqs, rows):
                if row:
                    seq.truncate(len(seq), row[0])
        after = self._columns.n + n
        return [
            Item(seq, count, prompt=not decodes, remaining=0 if decodes else self._remaining(after, i), tokens=row)
            for i, (seq, count, row) in enumerate(zip(self.seqs, counts, rows))
            if count > 0
        ]

    def _begin(self, items: list[Item]) -> None:
        assert self.session is not None
        device = self.session.model.device
        stream = 0 if device == "cpu" else torch.cuda.current_stream(device).cuda_stream
        try:
            self.session.begin(items, stream)
        except Error as e:
            if e.errno != errno.ENOTSUP or items[0].n_tokens == 1:
                raise
            for item in items:  # a policy that decodes only one row a step reads several rows as a prompt
                item.prompt = True
            self.session.begin(items, stream)

    def has_layer(self, module: Any) -> bool:
        """Whether the module belongs to the decoder, and not to a vision tower."""
        return id(module) in self._bound.layers

    def is_decoder(self, config: Any) -> bool:
        return config is None or any(config is c for c in self._bound.configs)

    def windows(self) -> set[int]:
        """Sliding windows of the model's layers; 0: none."""
        assert self.session is not None
        return {layer.window for layer in self.session.model.layers}

    def check_layer(self, module: Any, scaling: float | None, window: int | None, softcap: float | None) -> None:
        """Checks once for each layer that it attends with the parameters that the session was opened with."""
        layer = module.layer_idx
        if layer in self._checked:
            return
        assert self.session is not None
        model = self.session.model
        told = model.layers[layer] if model.layers else None
        for what, given, expected in (
            ("scaling", scaling or model.scale, (told.scale if told else 0.0) or model.scale),
            ("sliding_window", window or 0, told.window if told else 0),
            ("softcap", softcap or 0.0, told.softcap if told else 0.0),
        ):
            if abs(given - expected) > 1e-6:
                raise ValueError(f"layer {layer}: {type(module).__name__} attends with {what} {given}, expected {expected}")
        self._checked.add(layer)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """query [batch, n_heads, n, head_dim], key, value [batch, n_kv_heads, n, head_dim]; returns [batch, n, n_heads, head_dim]."""
        assert self.session is not None
        batch, heads, n, dim = query.shape
        q, k, v = (rows_of(x) for x in (query, key, value))
        if self._index is None:
            out = torch.empty((batch, n, heads, dim), dtype=query.dtype, device=query.device)
            self.session.attend(layer, q, k, v, out.view(batch * n, heads, dim))
            return out
        rows = torch.empty((len(self._index), heads, dim), dtype=query.dtype, device=query.device)
        self.session.attend(layer, q[self._index], k[self._index], v[self._index], rows)
        out = torch.zeros((batch * n, heads, dim), dtype=query.dtype, device=query.device)
        out[self._index] = rows
        return out.view(batch, n, heads, dim)

    # ---- transformers' interface of a cache ----

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the new rows unchanged: attend() appends them."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of columns so far, including padding."""
        return self._columns.n

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.session.model.max_tokens if self.session is not None else -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._columns.n + query_length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._columns.n

    def __len__(self) -> int:
        return self.session.model.n_layers if self.session is not None else 0

    def __repr__(self) -> str:
        return f"SparseCache(policy={self.policy!r}, sequences={len(self.seqs)}, columns={self._columns.n})"

    @property
    def batch_size(self) -> int:
        return len(self.seqs) or -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return bool(self.seqs)

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self)

    def __copy__(self) -> "SparseCache":
        """Returns a fork; for an unused cache another one like it."""
        if self.seqs:
            return self.fork()
        to = SparseCache(self.policy, client=self._client, graphs=self._graphs, compile=self._compile)
        to._options = dict(self._options)
        return to

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseCache":
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError("a SparseCache cannot be pickled: expected SparseCache(name=...), which goes on in another process by its name")

    def crop(self, tokens_to_remove: int) -> None:
        """
        Removes columns from the end: crop(-n). Raises Stale if the policy has evicted tokens that would be needed
        again.
        """
        last = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self._columns.n - tokens_to_remove)
        if last > self._columns.n:
            raise ValueError(f"crop({tokens_to_remove}): the cache has {self._columns.n} columns, expected at most so many to remove")
        if last > 0:
            for i, seq in enumerate(self.seqs):
                seq.truncate(len(seq) - self._columns.tokens_in(last, i))
            self._columns.remove(last)

    def reset(self) -> None:
        """Removes all tokens; sequences and names stay."""
        for seq in self.seqs:
            seq.truncate(0)
        self._columns.clear()

    def _replace(self, rows: Sequence[int]) -> None:
        """
        Replaces row i with row rows[i]. The first use of a row takes its sequence, further uses fork it; unused
        sequences are dropped.
        """
        if self.names and list(rows) != list(range(len(self.seqs))):
            raise ValueError("name: rows of the batch replace one another, as beams do: expected no names")
        taken: set[int] = set()
        seqs = []
        for row in rows:
            seqs.append(self.seqs[row].fork() if row in taken else self.seqs[row])
            taken.add(row)
        for i, seq in enumerate(self.seqs):
            if i not in taken:
                seq.drop()
        self.seqs = seqs
        self._columns.select(rows)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._replace(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._replace([row for row in range(len(self.seqs)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        rows = torch.arange(len(self.seqs), device=indices.device)[indices]
        self._replace(rows.tolist())

    def activate_past_recording(self) -> None:
        """
        A speculative decoder calls this first: until the next generate(), calls of up to 16 rows are decode steps.
        """
        self._speculates = True

    # ---- closing ----

    def close(self) -> None:
        """Frees the pages; named sequences stay in the daemon. A second call does nothing."""
        seqs, self.seqs = self.seqs, []
        if self._lent:
            for seq in seqs:
                seq.detach()
        elif self.session is not None:
            self._recordings.clear()
            self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "session", None) is not None:
            self.close()
