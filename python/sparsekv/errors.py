# SPDX-License-Identifier: Apache-2.0
"""Errors of the C library as exceptions with its texts."""
import errno
from typing import Any

from ._native import ffi, lib


class Error(OSError):
    """A call failed. `errno` is the C function's error, `strerror` says what was wrong and what was expected."""


class OutOfPages(Error):
    """The pool or the user's quota cannot hold the step (ENOSPC). Nothing has changed."""


class Stale(Error):
    """A sequence has changed since it had that length, or a step does not match its recording (ESTALE)."""


CLASSES = {errno.ENOSPC: OutOfPages, errno.ESTALE: Stale}


def check(result: int) -> int:
    """Returns the result of a call, 0 or a count; raises Error if it is negative."""
    if result >= 0:
        return result
    text = ffi.string(lib.skv_last_error()).decode()
    raise CLASSES.get(-result, Error)(-result, text)


def check_engine(result: int, error: Any) -> None:
    """Raises Error if the result of one of the engine's functions is negative; it has written a struct eng_error."""
    if result < 0:
        raise Error(-result, ffi.string(error.text).decode(errors="replace"))
