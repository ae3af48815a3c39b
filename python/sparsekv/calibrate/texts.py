# SPDX-License-Identifier: Apache-2.0
"""The texts of a calibration: pieces of files, cut as by engine/texts.c, so that both measure the same tokens."""
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._native import ffi, lib
from ..private import library_folder

FILE_MAX = 256 << 20  # bytes
TOKENS_MIN = 16
RECALL_PIECE = lib.ENG_RECALL_TASK_PIECE  # tokens of a piece that a search's text recalls


@dataclass(frozen=True)
class Text:
    """Token ids. `rows` rows from `start` on count, evenly spread; 0: all."""

    ids: list[int]
    start: int
    rows: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows that count."""
        rest = len(self.ids) - self.start
        return min(self.rows, rest) if self.rows else rest

    def measured(self) -> list[int]:
        """The rows that count."""
        n, rest = self.n_rows, len(self.ids) - self.start
        return [self.start + i * rest // n for i in range(n)]


def installed() -> Path:
    """
    The prose that is installed with the C library, in its build directory or in the installed location. Raises
    FileNotFoundError.
    """
    library = library_folder()
    for folder in library.parents if library is not None else []:
        for name in ("engine/prose.txt", "share/sparsekvd/prose.txt"):
            if (folder / name).is_file():
                return folder / name
    raise FileNotFoundError("share/sparsekvd/prose.txt: not there; --texts expected")


def read_file(path: Path) -> str:
    size = path.stat().st_size
    if not path.is_file() or not TOKENS_MIN <= size <= FILE_MAX:
        raise ValueError(f"{path}: expected a file of {TOKENS_MIN} bytes to 256 MiB")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: byte {e.start} is not UTF-8, expected text") from None


def encode(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Returns the ids that every text begins with (such as bos), and the text's own ids."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    sample: list[int] = tokenizer("a", add_special_tokens=False).input_ids
    whole: list[int] = tokenizer("a").input_ids
    before = next((i for i in range(len(whole)) if whole[i : i + len(sample)] == sample), 0)
    return whole[:before], ids


def cut(begin: list[int], ids: list[int], context: int, pieces: int, rows: int) -> list[Text]:
    """
    Cuts pieces of `context` tokens (including `begin`), spread evenly and without overlap; the second half of each
    counts.
    """
    piece = min(context - len(begin), len(ids))
    n = min(len(ids) // piece, pieces)
    starts = [i * (len(ids) - piece) // (n - 1) if n > 1 else 0 for i in range(n)]
    return [Text([*begin, *ids[at : at + piece]], piece // 2, rows) for at in starts]


def read(files: Sequence[Path], tokenizer: Any, context: int, pieces: int, rows: int) -> list[Text]:
    """Reads `pieces` pieces of each file, fewer or shorter ones if the file is short. Raises OSError and ValueError."""
    texts: list[Text] = []
    for file in files:
        begin, ids = encode(tokenizer, read_file(file))
        if len(ids) < TOKENS_MIN:
            raise ValueError(f"{file}: {len(ids)} tokens, expected at least {TOKENS_MIN}")
        texts += cut(begin, ids, context, pieces, rows)
    return texts


def fnv1a(texts: Sequence[Text]) -> int:
    """FNV-1a of all token ids in order, 32 bits."""
    h = 2166136261
    for text in texts:
        for token in text.ids:
            h = ((h ^ token) * 16777619) & 0xFFFFFFFF
    return h


def recalling(text: Text, rows: int) -> Text:
    """
    Makes a text of the same length for a search by loss. Of the last `rows` tokens (0: of the last half), the first
    half continues the text; the second half consists of pieces of earlier text, each from elsewhere. Exactly these
    rows count. Raises ValueError.
    """
    n = len(text.ids)
    count = min(rows, n // 2) if rows else n // 2
    start, half = n - count, count - count // 2
    if start < 2 * RECALL_PIECE:
        raise ValueError(f"pieces of {n} tokens, expected a --context from {4 * RECALL_PIECE} on to decode, and a text as long")
    tail = ffi.new("int32_t[]", count - half)
    if lib.eng_recall_task(tail, len(tail), text.ids[1:start], start - 1, RECALL_PIECE):
        raise MemoryError
    return Text([*text.ids[: start + half], *tail], start)
