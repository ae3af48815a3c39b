# SPDX-License-Identifier: Apache-2.0
"""python -m sparsekv.calibrate: a profile of a model that transformers runs. sparsekv-calibrate(1) says what the figures are."""
import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from .. import private
from ..client import Client
from ..model import Model
from ..transformers import model_of
from . import quality, texts
from .correction import Correction
from .loss import Loss
from .measure import Measure
from .observe import Observer
from .profile import KINDS, Profile
from .progress import Interrupted, Progress, Stop
from .texts import Text

PROGRAM = "python -m sparsekv.calibrate"
DECODED = 64  # most tokens of each piece that are decoded if only quality is measured
PARTIAL = 3  # exit status: interrupted; what was measured so far is written


def whole(low: int, high: int = 1 << 24) -> Any:
    """Returns an argument type: a whole number in this range."""

    def parse(given: str) -> int:
        if not given.isdecimal() or not low <= int(given) <= high:
            raise argparse.ArgumentTypeError(f"{given}: expected a whole number from {low} to {high}")
        return int(given)

    return parse


def power(given: str) -> int:
    n: int = whole(2, 4096)(given)
    if n & (n - 1):
        raise argparse.ArgumentTypeError(f"{given}: expected a power of two from 2 to 4096")
    return n


def share(given: str) -> float:
    try:
        x = float(given)
    except ValueError:
        x = 0.0
    if not 0 < x < 1:
        raise argparse.ArgumentTypeError(f"{given}: expected a share between 0 and 1")
    return x


def shares(given: str) -> list[float]:
    return [share(part) for part in given.split(",")]


COUNTS: list[tuple[str, Any, int, str]] = [
    ("context", whole(16), 4096, "tokens of a piece"),
    ("pieces", whole(1, 1 << 20), 8, "of each file, evenly spread"),
    ("delta-layers", whole(1, 255), 3, "how many layers to choose for delta"),
    ("anchors", whole(1, 255), 5, "for kascade"),
    ("filters", whole(1, 255), 3, "for omnikv"),
    ("ranks", whole(1, 256), 1, "kascade's head map leads to heads of the same tensor-parallel rank, of so many"),
    ("dense", whole(0, 255), 2, "first layers that stay dense before delta's and filter layers"),
    ("top", whole(1, 65536), 64, "tokens that Kascade's similarity compares"),
    ("gamma", power, 64, "rows that share a correction of sparse prompts"),
    ("sinks", whole(0), 1024, "first tokens that every row of such a prompt attends to"),
    ("window", whole(1), 2048, "and so many before it"),
]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(PROGRAM, description=__doc__)
    add = p.add_argument
    add("model", metavar="MODEL", help="a folder or a hub's name: what transformers' from_pretrained takes")
    add("--texts", metavar="FILE", nargs="+", type=Path,
        help="any texts like those that the model will work on (default: the prose that comes with the C library)")
    add("-o", "--output", metavar="FILE", type=Path, help="write the profile, which policies take as profile=FILE")
    add("--svg", metavar="PREFIX", help="draw PREFIX-shift.svg, -similarity.svg, -alike.svg and -quality.svg")
    add("--by", choices=("papers", "loss"), default="papers",
        help="papers (default): by what the layers attend to; loss: from there on a search for layers under which the model "
        "predicts best")
    for name, kind, default, said in COUNTS:
        add(f"--{name}", metavar="N", type=kind, default=default, help=f"{said} (default {default})")
    add("--rows", metavar="N", type=whole(0), help="tokens measured in each piece (default 128, with --by loss 64; 0: all)")
    add("--budget", metavar="SHARE", type=share, default=0.125, help="of the tokens, that the search uses (default 0.125)")
    add("--policy", metavar="SPEC", action="append",
        help=f"in the chart of quality against bytes; once or more (default: {', '.join(quality.POLICIES)})")
    add("--budgets", metavar="SHARES", type=shares, default=list(quality.BUDGETS),
        help=f"of these (default: {','.join(map(str, quality.BUDGETS))})")
    add("--no-quality", action="store_true", help="do not measure how policies do with the profile, and leave this chart out")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"),
        help="of the model; auto: its file's (default: float32 on the CPU, else auto)")
    add("--kv-dtype", choices=("float32", "bfloat16", "float16", "fp8"), default="", help="of the pages (default: the model's)")
    add("--device", default="cpu", help="that the model runs on, such as cuda:0 (default: cpu)")
    add("--socket", metavar="PATH", help="the daemon's (default: $SPARSEKV_SOCKET, or the system's)")
    add("--private", action="store_true", help="start a daemon for this run")
    add("--quiet", action="store_true", help="show no progress")
    return p


def check(p: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Checks option conflicts, and folders of output files."""
    if a.private and a.socket:
        p.error("one of --private and --socket expected")
    for name, path in (("--output", a.output), ("--svg", a.svg)):
        if path is not None and not Path(path).parent.is_dir():
            p.error(f"{name} {path}: no folder {Path(path).parent}")


# ---- model and daemon ----


def load(a: argparse.Namespace) -> tuple[PreTrainedModel, Any]:
    """Loads the model and its tokenizer. Raises OSError and ValueError."""
    if a.quiet or not sys.stderr.isatty():
        untyped: Any = logging
        untyped.disable_progress_bar()
    dtype = a.dtype or ("float32" if a.device == "cpu" else "auto")
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sparsekv").to(a.device).eval()
    return model, AutoTokenizer.from_pretrained(a.model)


@contextlib.contextmanager
def connected(a: argparse.Namespace) -> Iterator[Client | None]:
    """Connects to the daemon; None if nothing is decoded."""
    if a.by != "loss" and not a.quality:
        yield None
        return
    with private() if a.private else Client(a.socket) as client:
        yield client


def candidates(a: argparse.Namespace, shape: Model) -> tuple[tuple[int, ...], dict[str, int]]:
    """Returns the layers without a sliding window, and how many to choose among them, by kind. Raises ValueError."""
    full = tuple(i for i in range(shape.n_layers) if not (shape.layers and shape.layers[i].window))
    behind = tuple(i for i in full if i >= a.dense)
    if a.delta_layers > len(behind) or a.filters > len(behind) or a.anchors > len(full):
        raise ValueError(
            f"the model has {len(full)} layers without a sliding window, {len(behind)} behind the dense ones: --delta-layers and "
            f"--filters up to that expected, --anchors up to {len(full)}"
        )
    if shape.n_kv_heads % a.ranks:
        raise ValueError(f"--ranks: {a.ranks}, expected a number that divides the model's {shape.n_kv_heads} kv heads")
    if a.context > shape.max_tokens:
        raise ValueError(f"--context: {a.context} tokens, expected at most the model's {shape.max_tokens}")
    return full, dict(zip(KINDS, (a.delta_layers, a.anchors, a.filters)))


# ---- work ----


@dataclass
class Work:
    """
    One run.

    read: the texts
    recalled: the same texts, for decoding
    """

    args: argparse.Namespace
    model: PreTrainedModel
    shape: Model
    client: Client | None
    read: Sequence[Text]
    stop: Stop
    recalled: list[Text] = field(default_factory=list)

    def measure(self, full: tuple[int, ...]) -> tuple[Observer, bool]:
        """Returns the observer, and whether all texts were read. Raises Interrupted if none was."""
        a = self.args
        progress = Progress(sum(len(text.ids) for text in self.read), self.stop, a.quiet)
        measure = Measure(len(full), self.shape.n_kv_heads, a.top)
        correction = Correction(self.shape.n_layers, a.sinks, a.window, a.gamma)
        observer = Observer(self.model, full, measure, correction, progress)
        try:
            for text in self.read:
                observer.read(text)
        except Interrupted:
            if not measure.n_texts:
                raise
            return observer, False
        finally:
            progress.end()
        return observer, True

    def _specs(self, profile: str = "") -> list[quality.Spec]:
        assert self.client is not None
        policies = self.args.policy or quality.POLICIES
        return quality.specs(self.client, self.shape, policies, self.args.budgets, profile) if self.args.quality else []

    def check(self) -> None:
        """
        Finds errors before the texts are read that would otherwise appear only afterwards. Raises Error and
        ValueError.
        """
        if self.client is not None:
            rows = self.args.rows if self.args.by == "loss" else min(self.args.rows or DECODED, DECODED)
            self.recalled = [texts.recalling(text, rows) for text in self.read]
            self._specs()

    def decode(self, profile: Profile) -> None:
        """Runs the search, and measures quality against bytes. Raises Interrupted."""
        assert self.client is not None
        tokens, rows = sum(len(t.ids) for t in self.recalled), sum(t.n_rows for t in self.recalled)
        sets = profile.search_sets() if self.args.by == "loss" else 0
        total = tokens + rows * sets + quality.n_rows(self._specs(), rows, tokens)
        progress = Progress(total, self.stop, self.args.quiet)
        try:
            with contextlib.closing(Loss(self.model, self.client, self.recalled, progress, self.args.kv_dtype)) as loss:
                if self.args.by == "loss":
                    profile.search(loss)
                with tempfile.TemporaryDirectory(prefix="sparsekv-") as folder:
                    file = Path(folder).resolve() / "profile.json"
                    profile.write(file)
                    quality.judge(self._specs(str(file)), loss, self.shape, self.args.anchors, profile.points)
        finally:
            progress.end()


def put_out(a: argparse.Namespace, profile: Profile) -> None:
    if profile.partial:
        print(f"{PROGRAM}: interrupted: this profile rests on {profile.rests_on()}", file=sys.stderr)
    print(profile.text(), flush=True)
    if a.output:
        profile.write(a.output)
    if a.svg:
        profile.draw(a.svg)


def calibrate(a: argparse.Namespace, stop: Stop) -> int:
    """Returns the exit status. Raises Interrupted if nothing was measured."""
    files = a.texts or [texts.installed()]
    model, tokenizer = load(a)
    shape = model_of(model, kv_dtype=a.kv_dtype)
    full, counts = candidates(a, shape)
    read = texts.read(files, tokenizer, a.context, a.pieces, a.rows)
    with connected(a) as client:
        work = Work(a, model, shape, client, read, stop)
        work.check()
        stop.install()
        observer, complete = work.measure(full)
        names = ", ".join(file.name for file in files)
        profile = Profile(
            shape, observer, names, texts.fnv1a(read), len(read), counts, a.dense, a.budget, partial=not complete, n_ranks=a.ranks
        )
        try:
            if complete and client is not None:
                work.decode(profile)
        except Interrupted:
            profile.partial = True
        put_out(a, profile)
    return PARTIAL if profile.partial else 0


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser()
    a = p.parse_args(arguments)
    check(p, a)
    a.rows = a.rows if a.rows is not None else 64 if a.by == "loss" else 128
    a.quality = bool(a.svg) and not a.no_quality
    stop = Stop()
    try:
        return calibrate(a, stop)
    except Interrupted:
        signal.raise_signal(stop.signal)  # terminate by the signal, now that the daemon has its sequences back
        return PARTIAL
    except KeyboardInterrupt:  # before the work began
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        return PARTIAL
    except (OSError, ValueError, ImportError) as e:
        print(f"{PROGRAM}: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
