# SPDX-License-Identifier: Apache-2.0
"""Sessions, sequences and steps."""
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._native import ffi, lib
from .errors import check
from .model import Model
from .tensors import RowsOf
from .text import c_text

if TYPE_CHECKING:
    from .client import Client

ALL = lib.SKV_ALL
BLOCK_TOKENS = lib.SKV_BLOCK_TOKENS
STEP_ROWS = lib.SKV_STEP_ROWS
PAGE_TOKENS = lib.SKV_PAGE_TOKENS


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix of two lists. A binary search: Python compares slices fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class Stats:
    """Counters of a session since it was opened: struct skv_stats."""

    n_seqs: int
    steps: int
    prompt_tokens: int
    decode_tokens: int
    attended_tokens: int
    causal_tokens: int
    evicted_pages: int
    stock_pages: int
    policy_swaps: int
    recall_layers: int
    recall_sum: float

    @property
    def attended_share(self) -> float:
        """Of the tokens that dense attention would have read in decode steps, the share that was read; 1 before any."""
        return self.attended_tokens / self.causal_tokens if self.causal_tokens else 1.0

    @property
    def recall(self) -> float | None:
        """Mean attention recall, or None where none was measured."""
        return self.recall_sum / self.recall_layers if self.recall_layers else None


@dataclass(frozen=True)
class Room:
    """Pages that steps of a session can take now (struct skv_room)."""

    pages: int
    stock_pages: int
    page_bytes: int


@dataclass(frozen=True)
class Selection:
    """What a layer attended to: ids are pages where attend is "dense" or "pages", else tokens."""

    attend: str
    rows: int
    len: int
    ids: list[int]


@dataclass
class Item:
    """
    What a step does with one sequence.

    n_tokens: its rows. prompt: they are a prompt's, or a chunk's of one. remaining: tokens of the same prompt that later
    steps append. tokens: their ids, recorded with the commit; None: the first is the last commit's `next`, others are -1.
    """

    seq: "Seq"
    n_tokens: int = 1
    prompt: bool = False
    remaining: int = 0
    tokens: Sequence[int] | None = None


class Seq:
    """
    A sequence attached to a session; len() is its committed length. Where the object is forgotten without detach() or
    drop(), the sequence is detached: a named one stays in the daemon, another is freed.
    """

    def __init__(self, session: "Session", c: Any, name: str | None):
        self.session = session
        self.name = name
        self._c: Any = c

    @property
    def closed(self) -> bool:
        return self._c is None

    def _live(self) -> Any:
        if self._c is None:
            raise ValueError(f"the sequence {self.name or ''} is detached or dropped")
        return self._c

    def __len__(self) -> int:
        return lib.skv_seq_len(self._live())

    def tokens(self) -> tuple[list[int], int]:
        """The committed token ids, and the id to go on from, or -1. Waits for the device."""
        n = ffi.new("uint32_t *")
        ids = lib.skv_seq_tokens(self._live(), n)
        return list(ids[0 : n[0]]), ids[n[0]]

    @property
    def policy(self) -> str:
        """The spec of the policy that the sequence runs, with every parameter's value."""
        return ffi.string(lib.skv_seq_policy_spec(self._live())).decode()

    @property
    def keeps_all(self) -> bool:
        """Does its policy leave K and V of all tokens as a dense prefill makes them, so that prompts that begin alike may fork it?"""
        return bool(lib.skv_seq_keeps_all(self._live()))

    def set_policy(self, spec: str | None) -> None:
        """A policy of its own from the next step on; None: the session's."""
        check(lib.skv_seq_policy(self._live(), c_text("policy", spec) if spec is not None else ffi.NULL))

    def fork(self, name: str | None = None, n_tokens: int | None = None) -> "Seq":
        """A copy-on-write copy of the first n_tokens, None: of all, as of the last commit."""
        ret = ffi.new("struct skv_seq **")
        c_name = c_text("name", name) if name is not None else ffi.NULL
        check(lib.skv_seq_fork(self._live(), c_name, ALL if n_tokens is None else n_tokens, ret))
        return self.session._own(ret[0], name)

    def seal(self, n_tokens: int | None = None) -> int:
        """
        Seal its first n_tokens, None: all, for prompts that begin alike (Session.new_from): whole blocks of BLOCK_TOKENS, of
        which the number of tokens is returned. Stale: the policy has evicted, compressed or moved some of them.
        """
        sealed = ffi.new("uint32_t *")
        check(lib.skv_seq_seal(self._live(), ALL if n_tokens is None else n_tokens, sealed))
        return sealed[0]

    def truncate(self, n: int, next: int = -1) -> None:
        """Back to the first n tokens; `next` is the id to go on from. With n = len() that alone changes."""
        check(lib.skv_seq_truncate(self._live(), n, next))

    def pages(self) -> tuple[int, int]:
        """Its KV pages in memory, and those that its length would take without eviction or compression."""
        resident, total = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.skv_seq_pages(self._live(), resident, total)
        return resident[0], total[0]

    def attended(self) -> tuple[int, int]:
        """Tokens that its decode rows attended to, over all layers, and what dense attention would have."""
        attended, causal = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.skv_seq_attended(self._live(), attended, causal)
        return attended[0], causal[0]

    def detach(self) -> None:
        """A named sequence stays in the daemon for any client of this user; another is dropped. Again: nothing."""
        if self._c is not None:
            c, self._c = self._c, None
            check(lib.skv_seq_detach(c))

    def drop(self) -> None:
        """Drop the sequence and its pages. Again: nothing."""
        if self._c is not None:
            c, self._c = self._c, None
            check(lib.skv_seq_drop(c))

    def __del__(self) -> None:
        c, self._c = self._c, None
        if c is not None:
            lib.skv_seq_detach(c)  # in an open step it is refused: the session's end frees it


class Session:
    """
    One model on a connection. A step is begin(), attend() for each layer in order, end(); or `with session.step(items)`,
    which aborts it where the block raises.
    """

    def __init__(self, client: "Client", model: Model, c: Any):
        self.client = client
        self.model = model
        self._c: Any = c
        self._seqs: weakref.WeakSet[Seq] = weakref.WeakSet()
        self._rows = RowsOf(model)
        self._items: Any = ffi.NULL
        self._n_items = 0
        self._attn = ffi.new("struct skv_attn *")
        lib.skv_attn_init(self._attn, ffi.sizeof("struct skv_attn"))

    @property
    def closed(self) -> bool:
        return self._c is None

    def _live(self) -> Any:
        if self._c is None:
            raise ValueError("the session is closed")
        return self._c

    def _own(self, c: Any, name: str | None) -> Seq:
        seq = Seq(self, c, name)
        self._seqs.add(seq)
        return seq

    # ---- sequences ----

    def new(self, name: str | None = None, max_tokens: int = 0) -> Seq:
        """A new, empty sequence of at most max_tokens (0: the model's). A name makes it outlive this process."""
        ret = ffi.new("struct skv_seq **")
        check(lib.skv_seq_new(self._live(), c_text("name", name) if name is not None else ffi.NULL, max_tokens, ret))
        return self._own(ret[0], name)

    def new_from(self, tokens: Sequence[int], name: str | None = None, max_tokens: int = 0) -> Seq:
        """
        A new sequence that begins with the longest sealed prefix that the prompt `tokens` begins with; len() says how many
        tokens that is, 0 if there is none. One at least is left. Waits for a prefix store as long as the daemon says.
        """
        ret = ffi.new("struct skv_seq **")
        c_name = c_text("name", name) if name is not None else ffi.NULL
        check(lib.skv_seq_new_from(self._live(), c_name, max_tokens, ffi.new("int32_t[]", list(tokens)), len(tokens), ret))
        return self._own(ret[0], name)

    def attach(self, name: str) -> Seq:
        """A named sequence that no client holds, at its last commit. FileNotFoundError's errno, ENOENT: there is none."""
        ret = ffi.new("struct skv_seq **")
        check(lib.skv_seq_attach(self._live(), c_text("name", name), ret))
        return self._own(ret[0], name)

    # ---- steps ----

    def _c_items(self, items: Sequence[Item]) -> tuple[Any, list[Any]]:
        kept = []
        if len(items) > self._n_items:
            self._n_items = len(items)
            self._items = ffi.new("struct skv_step_item[]", self._n_items)
            for i in range(self._n_items):
                lib.skv_step_item_init(ffi.addressof(self._items, i), ffi.sizeof("struct skv_step_item"))
        for to, item in zip(self._items, items):
            to.seq, to.n_tokens = item.seq._live(), item.n_tokens
            to.flags = lib.SKV_STEP_PROMPT if item.prompt else 0
            to.n_prompt_remaining = item.remaining
            to.tokens = ffi.NULL
            if item.tokens is not None:
                if len(item.tokens) != item.n_tokens:
                    raise ValueError(f"tokens has {len(item.tokens)} ids, expected n_tokens = {item.n_tokens}")
                kept.append(ffi.new("int32_t[]", item.tokens))
                to.tokens = kept[-1]
        return self._items, kept

    def begin(self, items: Sequence[Item], stream: int = 0) -> None:
        """
        Begin a step over the items' sequences: all of its pages, or OutOfPages and nothing has changed.

        stream: a cudaStream_t as a number (torch.cuda.current_stream().cuda_stream); 0: the default one, or host memory.
        """
        c_items, kept = self._c_items(items)
        check(lib.skv_step_begin(self._live(), c_items, len(items), ffi.cast("void *", stream)))
        del kept

    def attend(self, layer: int, q: Any, k: Any, v: Any, out: Any, lse: Any = None) -> None:
        """
        One layer's K and V in, attention out.

        q, out: [rows, n_heads, head_dim]; k, v: [rows, n_kv_heads, head_dim], or None of a layer that shares another's.
        Tensors of torch, or arrays of numpy, of the model's row_dtype in its memory; rows are the items' tokens in their
        order. A row is contiguous, rows may lie apart. q and out both None in a step of prompts: K and V are appended alone.
        lse: [rows, n_heads] float32, the logarithm of each softmax's denominator.
        """
        a, rows = self._attn, self._rows
        a.q, a.q_stride = rows.of("q", q)
        a.k, a.k_stride = rows.of("k", k)
        a.v, a.v_stride = rows.of("v", v)
        a.out, a.out_stride = rows.of("out", out)
        a.lse = rows.lse(lse)
        check(lib.skv_attend(self._live(), layer, a))

    def end(self, next: Sequence[int] | None = None, accepted: Sequence[int] | None = None, next_address: int = 0) -> None:
        """
        Commit the step. next: of each item the id to go on from (host memory); next_address: the same as the address of
        int32 in device memory, read when the step has run. accepted: how many rows of each item count; None: all.
        """
        c_next = ffi.cast("int32_t *", next_address) if next is None else ffi.new("int32_t[]", next)
        c_accepted = ffi.NULL if accepted is None else ffi.new("uint32_t[]", accepted)
        check(lib.skv_step_end(self._live(), c_next, c_accepted))

    def abort(self) -> None:
        """Abort the open step, if there is one: every sequence is as after its last commit."""
        lib.skv_step_abort(self._live())

    def step(self, items: Sequence[Item], stream: int = 0) -> "Step":
        """A step as a context manager: begun at once, ended with the block, aborted where the block raises."""
        self.begin(items, stream)
        return Step(self)

    def key(self) -> int:
        """What a recorded CUDA graph of the open step can be replayed for; 0: for nothing (skv_step_key)."""
        return lib.skv_step_key(self._live())

    def replayed(self, key: int) -> None:
        """A graph recorded in a step of this key was launched in place of attend()."""
        check(lib.skv_step_replayed(self._live(), key))

    # ---- what happened ----

    def stats(self) -> Stats:
        s = ffi.new("struct skv_stats *")
        lib.skv_stats_init(s, ffi.sizeof("struct skv_stats"))
        check(lib.skv_session_stats(self._live(), s))
        return Stats(**{name: getattr(s, name) for name in Stats.__dataclass_fields__})

    def room(self) -> Room:
        r = ffi.new("struct skv_room *", {"size": ffi.sizeof("struct skv_room")})
        check(lib.skv_session_room(self._live(), r))
        return Room(r.pages, r.stock_pages, r.page_bytes)

    def need(self, n_tokens: int, chunk: int = 0) -> int:
        """Pages that a new sequence takes for a prompt of n_tokens, read `chunk` tokens a step (0: in one)."""
        pages = ffi.new("uint64_t *")
        check(lib.skv_seq_need(self._live(), n_tokens, chunk, pages))
        return pages[0]

    def selection(self, layer: int, item: int = 0, row: int = 0) -> Selection:
        """What a layer attended to in the open step. For tests and displays: waits for the device."""
        info, modes = ffi.new("struct skv_selection_info *"), ("dense", "window", "pages", "tokens")
        lib.skv_selection_info_init(info, ffi.sizeof("struct skv_selection_info"))
        check(lib.skv_selection(self._live(), layer, item, row, info, ffi.NULL, 0))
        ids = ffi.new("uint32_t[]", max(info.n, 1))
        check(lib.skv_selection(self._live(), layer, item, row, info, ids, info.n))
        return Selection(modes[info.attend], info.rows, info.len, list(ids[0 : info.n]))

    def set_recall(self, every: int) -> None:
        """Measure attention recall in one step of `every`; 0: in none; -1: as the daemon says."""
        lib.skv_set_recall(self._live(), every)

    @property
    def policy(self) -> str:
        """The spec of the session's policy, with every parameter's value."""
        return ffi.string(lib.skv_policy_spec(self._live())).decode()

    @property
    def policy_error(self) -> str:
        """Why the last swap of the session's policy was refused; "" where it was not."""
        return ffi.string(lib.skv_policy_error(self._live())).decode()

    @property
    def policy_depends_on_prefill(self) -> bool:
        """Does the policy's result depend on how the prompt was read?"""
        return bool(lib.skv_policy_depends_on_prefill(self._live()))

    @property
    def backend(self) -> str:
        """The kernels in use: "cuda", "avx512", "avx2" or "generic"."""
        return ffi.string(lib.skv_backend(self._live())).decode()

    def close(self) -> None:
        """Abort an open step, detach all sequences, close. Again: nothing."""
        if self._c is None:
            return
        c, self._c = self._c, None
        for seq in list(self._seqs):
            seq._c = None
        lib.skv_close(c)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()


class Step:
    """An open step: `with session.step(items) as step:`, then step.attend(...). step.next, if set, goes with the commit."""

    def __init__(self, session: Session):
        self.session = session
        self.attend = session.attend
        self.next: Sequence[int] | None = None
        self.accepted: Sequence[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        if kind is not None:
            self.session.abort()
        else:
            self.session.end(self.next, self.accepted)


