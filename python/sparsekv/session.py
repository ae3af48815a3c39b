# SPDX-License-Identifier: Apache-2.0
"""Sessions, sequences and steps."""
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._native import ffi, lib
from .errors import check
from .handle import Handle
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
    """
    Returns the length of the longest common prefix of two lists. It is a binary search, because Python compares
    slices fast.
    """
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
        """Tokens read in decode steps, relative to dense attention; 1 before any."""
        return self.attended_tokens / self.causal_tokens if self.causal_tokens else 1.0

    @property
    def recall(self) -> float | None:
        """Mean attention recall; None if it was not measured."""
        return self.recall_sum / self.recall_layers if self.recall_layers else None


@dataclass(frozen=True)
class Room:
    """Pages that steps of a session can get now (struct skv_room)."""

    pages: int
    stock_pages: int
    page_bytes: int


@dataclass(frozen=True)
class Selection:
    """What a layer attended to. `ids` are pages if `attend` is "dense" or "pages", otherwise tokens."""

    attend: str
    rows: int
    len: int
    ids: list[int]


@dataclass
class Item:
    """
    The part of a step for one sequence.

    n_tokens: number of rows
    prompt: the rows belong to a prompt, or to a chunk of one
    remaining: tokens of the same prompt that later steps append
    tokens: their ids, recorded with the commit; None: the first is the last commit's `next`, the others are -1
    """

    seq: "Seq"
    n_tokens: int = 1
    prompt: bool = False
    remaining: int = 0
    tokens: Sequence[int] | None = None


class Seq:
    """
    A sequence attached to a session; len() is its committed length. If the object is garbage-collected without
    detach() or drop(), the sequence is detached: a named one stays in the daemon, an unnamed one is freed.
    """

    def __init__(self, session: "Session", handle: Handle, name: str | None):
        self.session = session
        self.name = name
        self._handle = handle

    @property
    def closed(self) -> bool:
        return self._handle.c is None

    def _live(self) -> Any:
        if self._handle.c is None:
            raise ValueError(f"the sequence {self.name or ''} is detached or dropped")
        return self._handle.c

    def __len__(self) -> int:
        return lib.skv_seq_len(self._live())

    def tokens(self) -> tuple[list[int], int]:
        """Returns the committed token ids, and the next token's id, or -1. Waits for the device."""
        n = ffi.new("uint32_t *")
        ids = lib.skv_seq_tokens(self._live(), n)
        return list(ids[0 : n[0]]), ids[n[0]]

    @property
    def policy(self) -> str:
        """The spec of the sequence's policy, with the values of all parameters."""
        return ffi.string(lib.skv_seq_policy_spec(self._live())).decode()

    @property
    def keeps_all(self) -> bool:
        """
        Whether the policy leaves K and V of all tokens as dense prefill computes them, so that other prompts with the
        same beginning may fork the sequence.
        """
        return bool(lib.skv_seq_keeps_all(self._live()))

    def set_policy(self, spec: str | None) -> None:
        """Sets the sequence's policy from the next step on; None: the session's."""
        check(lib.skv_seq_policy(self._live(), c_text("policy", spec) if spec is not None else ffi.NULL))

    def fork(self, name: str | None = None, n_tokens: int | None = None) -> "Seq":
        """Returns a copy-on-write copy of the first n_tokens (None: all) as of the last commit."""
        ret = ffi.new("struct skv_seq **")
        c_name = c_text("name", name) if name is not None else ffi.NULL
        check(lib.skv_seq_fork(self._live(), c_name, ALL if n_tokens is None else n_tokens, ret))
        return self.session._own(ret[0], name)

    def seal(self, n_tokens: int | None = None) -> int:
        """
        Seals the first n_tokens (None: all) for prompts with the same beginning (Session.new_from). Only whole blocks
        of BLOCK_TOKENS are sealed; returns their number of tokens. Raises Stale if the policy has evicted, compressed
        or moved some of them.
        """
        sealed = ffi.new("uint32_t *")
        check(lib.skv_seq_seal(self._live(), ALL if n_tokens is None else n_tokens, sealed))
        return sealed[0]

    def truncate(self, n: int, next: int = -1) -> None:
        """Truncates to the first n tokens; `next` is the next token's id. With n = len() only `next` changes."""
        check(lib.skv_seq_truncate(self._live(), n, next))

    def pages(self) -> tuple[int, int]:
        """Returns its KV pages in memory, and the pages that it would need without eviction and compression."""
        resident, total = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.skv_seq_pages(self._live(), resident, total)
        return resident[0], total[0]

    def attended(self) -> tuple[int, int]:
        """
        Returns the number of tokens that its decode rows attended to, over all layers, and the number for dense
        attention.
        """
        attended, causal = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.skv_seq_attended(self._live(), attended, causal)
        return attended[0], causal[0]

    def detach(self) -> None:
        """
        Detaches the sequence. A named one stays in the daemon for any client of this user; an unnamed one is dropped.
        A second call does nothing.
        """
        self._free(lib.skv_seq_detach)

    def drop(self) -> None:
        """Drops the sequence and its pages. A second call does nothing."""
        self._free(lib.skv_seq_drop)

    def _free(self, free: Any) -> None:
        if self._handle.c is None:
            return
        ret = free(self._handle.c)
        if ret not in (-errno.EBUSY, -errno.ENOMEM):  # with these errors the sequence is as it was
            self._handle.close()
        check(ret)

    def __del__(self) -> None:
        c = self._handle.close()
        if c is not None:
            lib.skv_seq_detach(c)  # during an open step this is refused; the end of the session frees the sequence


class Session:
    """
    One model on a connection. A step is begin(), attend() for each layer in order, and end(); or `with
    session.step(items)`, which aborts the step if the block raises an exception.
    """

    def __init__(self, client: "Client", model: Model, handle: Handle):
        self.client = client
        self.model = model
        self._handle = handle
        self._rows = RowsOf(model)
        self._items: Any = ffi.NULL
        self._n_items = 0
        self._attn = ffi.new("struct skv_attn *")
        lib.skv_attn_init(self._attn, ffi.sizeof("struct skv_attn"))

    @property
    def closed(self) -> bool:
        return self._handle.c is None

    def _live(self) -> Any:
        if self._handle.c is None:
            raise ValueError("the session is closed")
        return self._handle.c

    def _own(self, c: Any, name: str | None) -> Seq:
        return Seq(self, Handle(c, self._handle), name)

    # ---- sequences ----

    def new(self, name: str | None = None, max_tokens: int = 0) -> Seq:
        """
        Creates an empty sequence of at most max_tokens (0: the model's). A sequence with a name outlives this
        process.
        """
        ret = ffi.new("struct skv_seq **")
        check(lib.skv_seq_new(self._live(), c_text("name", name) if name is not None else ffi.NULL, max_tokens, ret))
        return self._own(ret[0], name)

    def new_from(self, tokens: Sequence[int], name: str | None = None, max_tokens: int = 0) -> Seq:
        """
        Creates a sequence that begins with the longest sealed prefix of the prompt `tokens`. len() returns its
        length, 0 if there is none; at least one token of the prompt is left. Waits for a prefix store as long as the
        daemon is configured to.
        """
        ret = ffi.new("struct skv_seq **")
        c_name = c_text("name", name) if name is not None else ffi.NULL
        check(lib.skv_seq_new_from(self._live(), c_name, max_tokens, ffi.new("int32_t[]", list(tokens)), len(tokens), ret))
        return self._own(ret[0], name)

    def attach(self, name: str) -> Seq:
        """
        Attaches a named sequence that no client has attached, at its last commit. Raises Error with ENOENT: there is
        none.
        """
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
        Begins a step over the items' sequences. Allocates all of its pages, or raises OutOfPages and changes nothing.

        stream: a cudaStream_t as a number (torch.cuda.current_stream().cuda_stream); 0: the default one, or host
            memory
        """
        c_items, kept = self._c_items(items)
        check(lib.skv_step_begin(self._live(), c_items, len(items), ffi.cast("void *", stream)))
        del kept

    def attend(self, layer: int, q: Any, k: Any, v: Any, out: Any, lse: Any = None) -> None:
        """
        Runs one layer: appends K and V, and computes attention.

        q, out: [rows, n_heads, head_dim]
        k, v: [rows, n_kv_heads, head_dim]; None for a layer that shares another's K and V
        lse: [rows, n_heads] float32: receives the logarithm of each softmax's denominator

        They are torch tensors or numpy arrays in the model's row_dtype and memory; rows are the items' tokens in
        order. A row must be contiguous; rows may be strided. If q and out are None in a step of prompts, only K and V
        are appended.
        """
        a, rows = self._attn, self._rows
        a.q, a.q_stride = rows.of("q", q)
        a.k, a.k_stride = rows.of("k", k)
        a.v, a.v_stride = rows.of("v", v)
        a.out, a.out_stride = rows.of("out", out)
        a.lse = rows.lse(lse)
        check(lib.skv_attend(self._live(), layer, a))

    def set_tokens(self, item: int, tokens: Sequence[int]) -> None:
        """
        Replaces the token ids of an item of the open step, except the first: those of drafts that were made on a
        device. tokens: as many as the item has
        """
        check(lib.skv_step_tokens(self._live(), item, ffi.new("int32_t[]", tokens)))

    def end(self, next: Sequence[int] | None = None, accepted: Sequence[int] | None = None, next_address: int = 0) -> None:
        """
        Commits the step.

        next: the next token's id for each item (host memory)
        next_address: the same as the address of int32 in device memory, which is read when the step has run
        accepted: number of rows of each item that count; None: all
        """
        c_next = ffi.cast("int32_t *", next_address) if next is None else ffi.new("int32_t[]", next)
        c_accepted = ffi.NULL if accepted is None else ffi.new("uint32_t[]", accepted)
        check(lib.skv_step_end(self._live(), c_next, c_accepted))

    def abort(self) -> None:
        """Aborts the open step, if there is one: every sequence returns to its last commit."""
        lib.skv_step_abort(self._live())

    def step(self, items: Sequence[Item], stream: int = 0) -> "Step":
        """
        Returns a step as a context manager. The step begins at once, and ends with the block; it is aborted if the
        block raises an exception.
        """
        self.begin(items, stream)
        return Step(self)

    def key(self) -> int:
        """The key of the open step, for which a recorded CUDA graph can be replayed; 0: no replay (skv_step_key)."""
        return lib.skv_step_key(self._live())

    def pad_steps(self, n_seqs: int, max_tokens: int = 0) -> None:
        """
        Pads decode steps, so that one CUDA graph serves all in which up to n_seqs sequences of up to max_tokens tokens
        (0: the model's) decode one row each (skv_pad_steps). n_seqs 0: no padding.
        """
        check(lib.skv_pad_steps(self._live(), n_seqs, max_tokens))

    def replayed(self, key: int) -> None:
        """Tells the library that a graph recorded with this key was launched in place of attend()."""
        check(lib.skv_step_replayed(self._live(), key))

    # ---- statistics ----

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
        """
        Pages that a new sequence needs for a prompt of n_tokens that is read `chunk` tokens a step (0: in one step).
        """
        pages = ffi.new("uint64_t *")
        check(lib.skv_seq_need(self._live(), n_tokens, chunk, pages))
        return pages[0]

    def selection(self, layer: int, item: int = 0, row: int = 0) -> Selection:
        """Returns what a layer attended to in the open step. For tests and displays: waits for the device."""
        info, modes = ffi.new("struct skv_selection_info *"), ("dense", "window", "pages", "tokens")
        lib.skv_selection_info_init(info, ffi.sizeof("struct skv_selection_info"))
        check(lib.skv_selection(self._live(), layer, item, row, info, ffi.NULL, 0))
        ids = ffi.new("uint32_t[]", max(info.n, 1))
        check(lib.skv_selection(self._live(), layer, item, row, info, ids, info.n))
        return Selection(modes[info.attend], info.rows, info.len, list(ids[0 : info.n]))

    def set_recall(self, every: int) -> None:
        """Measures attention recall in one step of `every`; 0: never; -1: as the daemon is configured."""
        lib.skv_set_recall(self._live(), every)

    @property
    def policy(self) -> str:
        """The spec of the session's policy, with the values of all parameters."""
        return ffi.string(lib.skv_policy_spec(self._live())).decode()

    @property
    def policy_error(self) -> str:
        """Why the last swap of the session's policy was refused; "" if it was not."""
        return ffi.string(lib.skv_policy_error(self._live())).decode()

    @property
    def policy_depends_on_prefill(self) -> bool:
        """Whether the policy's result depends on the prefill."""
        return bool(lib.skv_policy_depends_on_prefill(self._live()))

    @property
    def backend(self) -> str:
        """The kernels in use: "cuda", "avx512", "avx2" or "generic"."""
        return ffi.string(lib.skv_backend(self._live())).decode()

    def close(self) -> None:
        """Aborts an open step, detaches all sequences, and closes the session. A second call does nothing."""
        c = self._handle.close()
        if c is not None:
            lib.skv_close(c)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()


class Step:
    """
    An open step: `with session.step(items) as step:`, then step.attend(...). step.next and step.accepted, if set, are
    passed to the commit.
    """

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
