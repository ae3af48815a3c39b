# SPDX-License-Identifier: Apache-2.0
"""Errors of the C library as exceptions, with its text."""
import errno

from ._native import ffi, lib


class Error(OSError):
    """A call failed: `errno` is what the C function returned, `strerror` what was wrong and what was expected."""


class OutOfPages(Error):
    """The pool, or the account's quota, cannot hold the step (ENOSPC). Nothing has changed."""


class Stale(Error):
    """A sequence is not what it was at that length, or a step is not the recorded one (ESTALE)."""


CLASSES = {errno.ENOSPC: OutOfPages, errno.ESTALE: Stale}


def check(result: int) -> int:
    """The result of a call, which is a count or 0; a negative one raises Error."""
    if result >= 0:
        return result
    text = ffi.string(lib.skv_last_error()).decode()
    raise CLASSES.get(-result, Error)(-result, text)
