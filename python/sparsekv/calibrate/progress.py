# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of work on stderr, as engine/progress.h does, and ends the work on a signal."""
import shutil
import signal
import sys
import time
from types import FrameType
from typing import TextIO

from .._native import ffi, lib


class Interrupted(Exception):
    """A signal was received; what was measured so far is written."""


class Stop:
    """
    The first SIGINT or SIGTERM raises Interrupted at the next step of the work. The second ends the program at once.
    """

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

    def check(self) -> None:
        if self.signal:
            raise Interrupted(signal.Signals(self.signal).name)


class Progress:
    """
    Draws the progress.

    total: units of work
    stop: checked by add(), which raises Interrupted
    quiet: draw nothing
    """

    def __init__(self, total: float, stop: Stop | None = None, quiet: bool = False, to: TextIO = sys.stderr):
        self._stop, self._to, now = stop, to, time.monotonic()
        self._c = ffi.new("struct eng_progress *", {"on": not quiet, "terminal": to.isatty(), "total": max(total, 1.0), "begun": now})
        self._c.drawn = 0.0 if self._c.terminal else now
        self._line = ffi.new("char[]", lib.ENG_PROGRESS_LINE)

    @property
    def done(self) -> float:
        return self._c.done

    def add(self, units: float, label: str) -> None:
        """Adds `units` to the work done; `label` names the work. Raises Interrupted."""
        self.show(self.done + units, label)
        if self._stop is not None:
            self._stop.check()

    def show(self, done: float, label: str) -> None:
        columns = shutil.get_terminal_size().columns
        if lib.eng_progress_line(self._c, time.monotonic(), done, label.encode(), columns, self._line):
            self._to.write(ffi.string(self._line).decode())
            self._to.flush()

    def end(self) -> None:
        if self._c.on and self._c.terminal and self._c.drawn > 0:
            self._to.write("\r\033[K")
            self._to.flush()
        self._c.on = False
