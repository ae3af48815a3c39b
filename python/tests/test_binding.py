# SPDX-License-Identifier: Apache-2.0
"""The binding: steps compared with attention in double precision, lifetimes, and texts of errors."""
import errno
import gc
import os
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from processes import daemon_of

import sparsekv
from sparsekv import Item, Layer, Model, Rope
from sparsekv.identity import Identity
from sparsekv.rope import rope_of

L, H, KV, D = 2, 4, 2, 32
MODEL = Model("toy", n_layers=L, n_heads=H, n_kv_heads=KV, head_dim=D, max_tokens=512)


def reference(q, k, v):
    """Causal attention of the last rows in double precision: q [rows, H, D] of tokens len - rows ... len - 1."""
    rows, n = len(q), len(k)
    k, v = (np.repeat(x.astype(np.float64), H // KV, axis=1) for x in (k, v))
    score = np.einsum("rhd,nhd->hrn", q.astype(np.float64), k) / np.sqrt(D)
    score = np.where(np.arange(n)[None] <= (n - rows + np.arange(rows))[:, None], score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("hrn,nhd->rhd", weight / weight.sum(-1, keepdims=True), v)


class Kept:
    """A sequence, and its K and V for each layer."""

    def __init__(self, seq):
        self.seq, self.k, self.v = seq, [np.zeros((0, KV, D), np.float32)] * L, [np.zeros((0, KV, D), np.float32)] * L

    def copy(self, seq, n):
        to = Kept(seq)
        to.k, to.v = [k[:n] for k in self.k], [v[:n] for v in self.v]
        return to


def run(session, rng, items, check=True, gap=0):
    """Runs a step of (kept, rows, prompt), and compares all rows."""
    rows = sum(n for _, n, _ in items)
    with session.step([Item(x.seq, n, prompt=p, tokens=list(range(len(x.seq), len(x.seq) + n))) for x, n, p in items]) as step:
        for layer in range(L):
            fused = rng.standard_normal((rows, H + 2 * KV + gap, D), dtype=np.float32)
            q, k, v = fused[:, :H], fused[:, H : H + KV], fused[:, H + KV : H + 2 * KV]
            out, lse = np.empty((rows, H, D), np.float32), np.empty((rows, H), np.float32)
            step.attend(layer, q, k, v, out, lse)
            at = 0
            for x, n, _ in items:
                x.k[layer] = np.concatenate([x.k[layer], k[at : at + n]])
                x.v[layer] = np.concatenate([x.v[layer], v[at : at + n]])
                if check:
                    np.testing.assert_allclose(out[at : at + n], reference(q[at : at + n], x.k[layer], x.v[layer]), atol=2e-5)
                at += n


def test_steps(client, rng):
    with client.open(MODEL) as session:
        a, b = Kept(session.new()), Kept(session.new())
        run(session, rng, [(a, 70, True), (b, 5, True)], gap=1)
        for i in range(20):
            run(session, rng, [(a, 1, False), (b, 1 + i % 4, i % 3 == 0)])
        assert len(a.seq) == 90
        stats = session.stats()
        assert stats.steps == 21 and stats.n_seqs == 2 and stats.attended_share == 1.0
        assert session.room().pages > 1000 and session.need(100) == L * 7
        assert a.seq.tokens() == (list(range(90)), -1)


def test_fork_truncate_policy(client, rng):
    with client.open(MODEL) as session:
        a = Kept(session.new())
        run(session, rng, [(a, 64, True)])
        b = a.copy(a.seq.fork(n_tokens=33), 33)
        run(session, rng, [(a, 1, False), (b, 1, False)])
        a.seq.truncate(40, next=7)
        a = a.copy(a.seq, 40)
        assert a.seq.tokens() == (list(range(40)), 7)
        run(session, rng, [(a, 3, False), (b, 1, False)])
        b.seq.set_policy("streaming?budget=16&sinks=2&dense=0")
        assert b.seq.policy.startswith("streaming?") and a.seq.policy.startswith("full")
        run(session, rng, [(b, 1, False)], check=False)
        assert b.seq.attended() == (L * (34 + 35 + 16), L * (34 + 35 + 36))


def test_sealed_prefixes(client, rng):
    """
    A prompt that begins like a sealed one need not be read from its beginning; attention of the rest is as if it
    were.
    """
    with client.open(MODEL) as session:
        a = Kept(session.new())
        run(session, rng, [(a, 400, True)])
        assert len(session.new_from(range(400))) == 0
        assert a.seq.seal(255) == 0 and a.seq.seal() == sparsekv.BLOCK_TOKENS == 256
        b = a.copy(session.new_from(range(400), name="sealed"), 256)
        assert len(b.seq) == 256 and b.seq.tokens() == (list(range(256)), -1)
        run(session, rng, [(b, 144, True), (a, 1, False)])
        assert len(session.new_from(range(256))) == 0  # at least one token is left to be read
        assert len(session.new_from([7, *range(400)])) == 0
        with pytest.raises(sparsekv.Error, match="prompt") as e:
            session.new_from([])
        assert e.value.errno == errno.EINVAL
        b.seq.drop()


def test_selection(client, rng):
    with client.open(MODEL, "quest?budget=2&dense=0") as session:
        a = Kept(session.new())
        run(session, rng, [(a, 100, True)])
        q, kv, out = np.ones((1, H, D), np.float32), np.ones((1, KV, D), np.float32), np.empty((1, H, D), np.float32)
        session.begin([Item(a.seq)])
        session.attend(0, q, kv, kv, out)
        selection = session.selection(0)
        assert selection.attend == "pages" and len(selection.ids) == 2 and selection.len == 101
        session.abort()
        assert len(a.seq) == 100


def test_names(client, rng):
    """A named sequence outlives its session; a garbage-collected one is detached."""
    with client.open(MODEL) as session:
        a = Kept(session.new("kept"))
        run(session, rng, [(a, 20, True)])
        with pytest.raises(sparsekv.Error, match="kept") as e:
            session.new("kept")
        assert e.value.errno == errno.EEXIST
    with client.open(MODEL) as session:
        a.seq = session.attach("kept")
        run(session, rng, [(a, 1, False)])
        del a.seq
        gc.collect()
        a.seq = session.attach("kept")
        assert len(a.seq) == 21
        a.seq.drop()
        with pytest.raises(sparsekv.Error) as e:
            session.attach("kept")
        assert e.value.errno == errno.ENOENT
        with pytest.raises(ValueError, match="detached or dropped"):
            len(a.seq)


def test_collected_at_once(client):
    """The garbage collector takes a client, its session and its sequence together, and finalizes them in any order."""
    for _ in range(8):
        own = sparsekv.Client(client.socket)
        session = own.open(MODEL)
        seq = session.new()
        seq.cycle = session.cycle = own.cycle = [own, session, seq]
        del own, session, seq
        gc.collect()


def test_a_sequence_in_a_step_stays(client):
    """Detaching it is refused, and the object remains what it was."""
    with client.open(MODEL) as session:
        seq = session.new()
        session.begin([Item(seq)])
        for free in (seq.detach, seq.drop):
            with pytest.raises(sparsekv.Error, match="step") as e:
                free()
            assert e.value.errno == errno.EBUSY
        session.abort()
        assert not seq.closed and len(seq) == 0
        seq.drop()
        assert seq.closed


def test_no_text_ends_early(client):
    """C would read only up to the NUL, and use something else: another existing sequence, or another model."""
    identity = Identity()
    with client.open(MODEL) as session:
        seq = session.new("kept")
        calls = [
            lambda: session.new("new\0"),
            lambda: session.attach("kept\0b"),
            lambda: session.new_from([1, 2], "kept\0b"),
            lambda: seq.fork("kept\0b"),
            lambda: seq.set_policy("full\0"),
            lambda: client.open(MODEL, "full\0?x"),
            lambda: client.open(Model("toy\0b", n_layers=L, n_heads=H, n_kv_heads=KV, head_dim=D, max_tokens=512)),
            lambda: sparsekv.Client("/run\0/socket"),
            lambda: identity.text("key", "a\0b"),
            lambda: identity.number("key\0b", 1),
            lambda: identity.files("/folder\0"),
        ]
        for i, call in enumerate(calls):
            with pytest.raises(ValueError, match="expected no NUL"):
                print(i, call())
        seq.drop()


def test_a_block_that_raises_aborts(client, rng):
    with client.open(MODEL) as session:
        a = Kept(session.new())
        with pytest.raises(ZeroDivisionError):
            with session.step([Item(a.seq, 5, prompt=True)]):
                1 / 0
        assert len(a.seq) == 0
        run(session, rng, [(a, 5, True)])


def test_out_of_pages(rng):
    with sparsekv.private(64 << 20) as small, small.open(MODEL) as session:
        seqs = []
        with pytest.raises(sparsekv.OutOfPages):
            for _ in range(1000):
                seqs.append(Kept(session.new()))
                run(session, rng, [(seqs[-1], 500, True)], check=False)
        seqs.pop()
        before = len(seqs[0].seq)
        seqs.pop().seq.drop()
        run(session, rng, [(seqs[0], 1, False)])
        assert len(seqs[0].seq) == before + 1


BAD = [
    (dict(q=np.zeros((1, H + 1, D), np.float32)), r"q has shape \[1, 5, 32\], expected \[rows, 4, 32\]"),
    (dict(k=np.zeros((1, KV, D), np.float16)), "k is float16, expected the model's float32"),
    (dict(v=np.zeros((1, KV, 2 * D), np.float32)[:, :, ::2]), "v has strides .*, expected contiguous rows"),
    (dict(out=[0.0]), "expected a torch tensor or a numpy array, not list"),
    (dict(lse=np.zeros((1, H), np.float64)), "lse is float64"),
]


@pytest.mark.parametrize("change, text", BAD)
def test_bad_tensors(client, change, text):
    good = dict(q=np.zeros((1, H, D), np.float32), k=np.zeros((1, KV, D), np.float32), v=np.zeros((1, KV, D), np.float32))
    with client.open(MODEL) as session:
        with session.step([Item(session.new(), prompt=True)]) as step:
            out = np.zeros((1, H, D), np.float32)
            with pytest.raises((ValueError, TypeError), match=text):
                step.attend(0, **({**good, "out": out} | change))
            for layer in range(L):
                step.attend(layer, **good, out=out)


def test_bad_models(client):
    for change, text in [
        (dict(head_dim=33), "head_dim"),
        (dict(kv_dtype="int8"), "kv_dtype is int8, expected float32, float16, bfloat16 or fp8"),
        (dict(io_dtype="fp8"), "dtype is fp8, expected float32, float16 or bfloat16"),
        (dict(device="tpu"), "expected cpu or cuda:N"),
        (dict(layers=[Layer()]), "layers has 1 entries"),
        (dict(layers=[Layer(sinks=[1.0]), Layer()]), "expected one for each of 4 q heads"),
        (dict(name="x" * 64), "name is 64 bytes long"),
    ]:
        with pytest.raises((sparsekv.Error, ValueError), match=text):
            client.open(Model(**({**MODEL.__dict__} | change)))
    with pytest.raises(sparsekv.Error, match="nosuch") as e:
        client.open(MODEL, "nosuch")
    assert e.value.errno == errno.ENOENT


def test_nobody_listens(tmp_path):
    with pytest.raises(sparsekv.Error, match="sparsekv.private") as e:
        sparsekv.Client(str(tmp_path / "none"))
    assert e.value.errno == errno.ENOENT


def test_a_daemon_that_cannot_start():
    with pytest.raises(sparsekv.Error, match="ended at once: .*no-such-option"):
        sparsekv.private(1 << 30, "--no-such-option")


def test_a_private_daemon_ends_with_its_program():
    """The daemon and its directory are removed, however the program ends."""
    text = "import sparsekv, time; c = sparsekv.private(1 << 30); print(c.directory, flush=True); time.sleep(60)"
    program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    directory = program.stdout.readline().strip()
    assert os.path.exists(directory + "/socket")
    program.send_signal(signal.SIGKILL)
    program.wait()
    for _ in range(500):
        if not os.path.exists(directory):
            break
        time.sleep(0.01)
    assert not os.path.exists(directory)


def state_of(pid):
    """Returns the state of a process, as /proc has it, and its parent; "X" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except FileNotFoundError:
        return "X", 0
    return words[0], int(words[1])


def test_a_private_daemon_ends_beside_a_fork():
    """close() does not wait for forks of the program, which have copies of its descriptors."""
    client = sparsekv.private(64 << 20)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 20 and not os.path.exists(client.directory)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_private_daemon_ends_with_nothing_else():
    """
    It outlives the thread that started it, and a fork of the program that closes it. If its guardian is killed, it ends.
    """
    with ThreadPoolExecutor() as threads:
        client = threads.submit(sparsekv.private, 64 << 20).result()
    pid = os.fork()
    if pid == 0:
        client.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    sparsekv.Client(client.socket).close()
    daemon = daemon_of(client)
    os.kill(state_of(daemon)[1], signal.SIGKILL)
    for _ in range(500):
        if state_of(daemon)[0] in "XZ":
            break
        time.sleep(0.01)
    assert state_of(daemon)[0] in "XZ"
    client.close()
    assert not os.path.exists(client.directory)


@pytest.mark.parametrize(
    "config, want",
    [
        (dict(rope_theta=1e4), Rope("default", 1e4)),
        (dict(rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5)), Rope("default", 1e6, dims=32)),
        (dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)), Rope("linear", 1e4, factor=4.0)),
        (
            dict(rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
            Rope("llama3", 5e5, factor=8.0, low=1.0, high=4.0, original=8192.0),
        ),
        (
            dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=4096)),
            Rope("yarn", 1e4, factor=4.0, low=1.0, high=32.0, original=4096.0),
        ),
        (dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4)), Rope()),
        (dict(rope_parameters=dict(full_attention=dict(rope_theta=1e6), sliding_attention=dict(rope_theta=1e4))), Rope()),
        (dict(), Rope()),
    ],
)
def test_rope_of_a_configuration(config, want):
    assert rope_of(types.SimpleNamespace(**config), 64) == want
