# SPDX-License-Identifier: Apache-2.0
"""Text that goes to the C library."""


def c_text(what: str, text: str) -> bytes:
    """
    As C has it; of a path whose bytes are no text, those. A NUL would end it there, and something else would be named:
    ValueError.
    """
    if "\0" in text:
        raise ValueError(f"{what} is {text!r}, expected no NUL")
    return text.encode(errors="surrogateescape")
