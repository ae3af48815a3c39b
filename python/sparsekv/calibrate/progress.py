# SPDX-License-Identifier: Apache-2.0
"""
How far the work is, on stderr, and its end by a signal.

On a terminal it is one line, drawn at most ten times a second and wiped when the work ends. Elsewhere it is a line now and
then, so that a log says how far a long run is; a run of a few seconds prints none.
"""
import shutil
import signal
import sys
import time
from types import FrameType
from typing import TextIO

BAR = 24

# Where nothing can be wiped: seconds from line to line, at least; until one comes in any case; and the share between.
LINE_SECONDS = 5.0
LINE_AT_LEAST = 60.0
LINE_SHARE = 0.05


class Interrupted(Exception):
    """A signal came: what has been measured by now is put out."""


class Stop:
    """The first SIGINT or SIGTERM raises Interrupted at the next step of the work, the second ends the program at once."""

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
    total: units of work, whatever they are. stop: looked up whenever work is added, which then raises Interrupted. quiet:
    nothing is drawn.
    """

    def __init__(self, total: float, stop: Stop | None = None, quiet: bool = False, to: TextIO = sys.stderr):
        self.total, self.done = max(total, 1.0), 0.0
        self._stop, self._on, self._to = stop, not quiet, to
        self._terminal = to.isatty()
        self._begun = time.monotonic()
        self._drawn = 0.0 if self._terminal else self._begun
        self._shown = 0.0  # the share that was last drawn

    def add(self, units: float, label: str) -> None:
        """So many units more are done, of the kind that the label names. Raises Interrupted."""
        self.show(self.done + units, label)
        if self._stop is not None:
            self._stop.check()

    def show(self, done: float, label: str) -> None:
        self.done = done
        now, share = time.monotonic(), min(max(done / self.total, 0.0), 1.0)
        if not self._on or not self._due(now, share):
            return
        self._drawn, self._shown = now, share
        left = (now - self._begun) * (1 - share) / share if share > 0.01 else None
        time_left = "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left  "
        full = int(share * BAR)
        line = f"[{'#' * full}{'.' * (BAR - full)}] {100 * share:3.0f} %  {time_left}{label}"
        if self._terminal:  # what a longer line before left behind is wiped; a line that wraps could not be
            self._to.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\033[K")
        else:
            self._to.write(line + "\n")
        self._to.flush()

    def _due(self, now: float, share: float) -> bool:
        since = now - self._drawn
        if self._terminal:
            return since >= 0.1
        return since >= LINE_AT_LEAST or (since >= LINE_SECONDS and share - self._shown >= LINE_SHARE)

    def end(self) -> None:
        if self._on and self._terminal and self._drawn > 0:
            self._to.write("\r\033[K")
            self._to.flush()
        self._on = False
