# SPDX-License-Identifier: Apache-2.0
"""Converts text for the C library."""


def c_text(what: str, text: str) -> bytes:
    """
    Encodes text for C. Bytes of a path that are not valid text are preserved. Raises ValueError for a NUL, which
    would end the C string early and name something else.
    """
    if "\0" in text:
        raise ValueError(f"{what} is {text!r}, expected no NUL")
    return text.encode(errors="surrogateescape")
