# SPDX-License-Identifier: Apache-2.0
"""
Profiles: measurements compared with plain loops over transformers' own attention weights and, on SmolLM2, with those
of the C tool; the search, the file, the charts.
"""
import io
import itertools
import json
import os
import signal
import subprocess
import time
import types
import xml.etree.ElementTree
from pathlib import Path

import families
import numpy
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import sparsekv
from sparsekv.calibrate import __main__ as program
from sparsekv.calibrate import quality, texts
from sparsekv.calibrate.correction import Correction
from sparsekv.calibrate.loss import Loss
from sparsekv.calibrate.measure import Measure
from sparsekv.calibrate.observe import Observer
from sparsekv.calibrate.profile import KINDS, Profile
from sparsekv.calibrate.progress import Interrupted, Progress, Stop
from sparsekv.calibrate.texts import Text
from sparsekv.calibrate.weights import Attention
from sparsekv.private import library_folder
from sparsekv.transformers import model_of

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "sparsekv/smollm2-135m-instruct")
PROSE = Path(__file__).resolve().parents[2] / "models/prose.txt"


def near(a, b, tolerance):
    a, b = numpy.array(a, float), numpy.array(b, float)
    assert (numpy.isnan(a) == numpy.isnan(b)).all()
    assert numpy.nanmax(numpy.abs(a - b)) < tolerance


# ---- measurements ----


def observe(model, read, full, top, correction):
    measure = Measure(len(full), model.config.num_key_value_heads, top)
    observer = Observer(model, full, measure, correction, Progress(1, quiet=True))
    for text in read:
        observer.read(text)
    return observer


def weights_of(model, ids):
    """
    Returns weights [layer][head][row][token] from transformers' eager attention, and the residual stream before and
    after attention.
    """
    before, after, hooks = [], [], []
    for layer in model.model.layers:
        norm = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
        hooks.append(norm.register_forward_pre_hook(lambda module, args: after.append(args[0][0])))
        hooks.append(layer.register_forward_pre_hook(lambda module, args: before.append(args[0][0])))
    with torch.inference_mode():
        weights = model(input_ids=torch.tensor([ids]), use_cache=False, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    streams = [[x.double().numpy() for x in stream] for stream in (before, after)]
    return [w[0, :, :, : len(ids)].double().numpy() for w in weights], streams


def cosine(x, y):
    return x @ y / numpy.sqrt((x @ x) * (y @ y))


def similarity_of(weights, rows, full, top):
    """Minimum over a text's rows: [a][b][kv head of b][kv head of a]."""
    least = numpy.full((len(full), len(full), 2, 2), numpy.inf)
    for a, b in itertools.combinations_with_replacement(range(len(full)), 2):
        for h, other, p in itertools.product(range(2), range(2), rows):
            own, theirs = (weights[full[i]][3 * head : 3 * head + 3, p].sum(0) for i, head in ((b, h), (a, other)))
            part = own[numpy.argsort(-theirs)[:top]].sum() / numpy.sort(own)[-top:].sum()
            least[a, b, h, other] = min(least[a, b, h, other], part)
    return least


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GptOss", "Qwen2"])
def test_measures(family, rng):
    """
    Compares with plain loops. Layers with a sliding window are skipped; softcap and learned sinks are part of the
    weights.
    """
    model = families.make(family, 3, "eager")
    full = tuple(i for i, layer in enumerate(model_of(model).layers or [sparsekv.Layer()] * 4) if not layer.window)
    read = [Text(rng.integers(2, 300, 40 + 8 * i).tolist(), 20, 7) for i in range(2)]
    observer = observe(model, read, full, 4, Correction(4, 4, 8, 4))
    shift, change, similarity = numpy.zeros(len(full)), numpy.zeros(4), []
    for text in read:
        weights, (before, after) = weights_of(model, text.ids)
        for p in text.measured():
            change += [1 - cosine(before[layer][p], after[layer][p]) for layer in range(4)]
            rows = [weights[layer][:, p].ravel() for layer in full]
            shift[1:] += [1 - cosine(x, y) for x, y in itertools.pairwise(rows)]
        similarity.append(similarity_of(weights, text.measured(), full, 4))
    near(observer.measure.shift, shift / 14, 1e-4)
    near(observer.weight, change / 14, 1e-4)
    seen = numpy.triu_indices(len(full))
    near(observer.measure.similarity[seen], numpy.mean(similarity, 0)[seen], 1e-4)


def test_correction(rng):
    """Compares with dense and sparse outputs of pairs of rows, one by one."""
    n, sinks, window, gamma = 70, 5, 11, 8
    q, k, v = (torch.tensor(rng.standard_normal((heads, n, 16)), dtype=torch.float32) for heads in (4, 2, 2))
    correction = Correction(1, sinks, window, gamma)
    pairs, sums = correction.pairs(n, 9), correction.begin()
    assert 0 < len(pairs.rows) <= 9 and (pairs.rows // gamma * gamma == pairs.first).all() and (pairs.rows > pairs.first).all()
    assert int(pairs.first.min()) >= sinks + window and int(pairs.rows.max()) < n // gamma * gamma
    assert len(correction.pairs(n, 0).rows) == (n // gamma - 2) * (gamma - 1) and not len(correction.pairs(16, 9).rows)
    correction.add(sums, pairs, 0, q, k, v, Attention(0.25))
    correction.end(sums)

    def outputs(head, p):
        scores = (k[head // 2] @ q[head, p]).double().numpy()[: p + 1] / 4
        seen = numpy.array([t < sinks or t + window > p for t in range(p + 1)])
        e, value = numpy.exp(scores - scores.max()), v[head // 2, : p + 1].double().numpy()
        return e @ value / e.sum(), (e * seen) @ value / (e * seen).sum()

    dense = whole = left = cosine = 0.0
    for p, head in itertools.product(pairs.rows.tolist(), range(4)):
        o, s = outputs(head, p)
        d, d0 = o - s, numpy.subtract(*outputs(head, p // gamma * gamma))
        dense, whole, left = dense + o @ o, whole + d @ d, left + (d - d0) @ (d - d0)
        cosine += d @ d0 / numpy.sqrt((d @ d) * (d0 @ d0))
    near(correction.missed, [whole / dense], 1e-5)
    near(correction.left, [left / whole], 1e-4)
    near(correction.cosine, [cosine / (4 * len(pairs.rows))], 1e-4)


def c_tool():
    """sparsekv-calibrate in the build directory that the package is linked to, or None."""
    library = library_folder()
    tool = library.parents[1] / "engine/sparsekv-calibrate" if library else None
    return tool if tool and os.access(tool, os.X_OK) else None


@pytest.mark.skipif(c_tool() is None, reason="the C tool is not built")
def test_equals_the_c_tool(tmp_path):
    """On SmolLM2: the same texts, figures and layers."""
    shared = ["--context", "384", "--rows", "24", "--sinks", "32", "--window", "128", "--gamma", "16"]
    c = [c_tool(), "--private", "--model", FOLDER, "--text", PROSE, "--texts", "2", "--kv-dtype", "fp32", "-o", tmp_path / "c"]
    subprocess.run([*c, *shared, "--quiet"], check=True, stdout=subprocess.DEVNULL, timeout=120)
    ours = [str(FOLDER), "--pieces", "2", "-o", str(tmp_path / "ours")]  # the default text is the same prose
    assert program.main([*ours, *shared, "--quiet"]) == 0
    c, ours = (json.loads((tmp_path / name).read_text()) for name in ("c", "ours"))
    assert ours.keys() == c.keys() and ours["made"] == c["made"] and ours["chosen"] == c["chosen"]
    assert ours["model"] | {"name": ""} == c["model"] | {"name": ""}
    for name in ("shift", "weight", "similarity"):
        near(ours["measured"][name], c["measured"][name], 1e-4)
    # cosines of nearly equal outputs are less precise
    for name, tolerance in (("missed", 1e-4), ("left", 1e-3), ("cosine", 1e-2)):
        near(ours["measured"]["correction"][name], c["measured"]["correction"][name], tolerance)
    assert ours["measured"]["correction"]["helps"] == c["measured"]["correction"]["helps"]


# ---- choosing ----


def profile_of(rng, full, counts, similarity=None, n_ranks=1):
    """A profile of 9 layers from random figures, of which those of `full` were measured; layers before 2 are dense."""
    heads = 1 if similarity is None else len(similarity)
    measure = Measure(len(full), heads, 4)
    measure.n_rows = measure.n_texts = 1
    measure.similarity[:] = rng.random(measure.similarity.shape) if similarity is None else similarity
    measure._shift[:] = numpy.array([9, 9, 0.1, 0, 0.3, 0.3, 0, 0.2, 0.2])[list(full)]
    weight = rng.random(9)
    observed = types.SimpleNamespace(measure=measure, correction=Correction(9, 4, 8, 4), full=full, n_tokens=0, weight=weight)
    model = sparsekv.Model("chosen", n_layers=9, n_heads=heads, n_kv_heads=heads, head_dim=64, max_tokens=64)
    return Profile(model, observed, "text", 0, 1, dict(zip(KINDS, counts)), 2, n_ranks=n_ranks), observed


def best_of_all(worth, layers, n):
    """The best of all sets of n layers with the first one: each layer has the worth of the last chosen one up to it."""
    sets = [(layers[0], *rest) for rest in itertools.combinations(layers[1:], n - 1)]
    return list(max(sets, key=lambda chosen: sum(worth[max(c for c in chosen if c <= b)][b] for b in layers)))


def test_chooses(rng):
    """Compares the dynamic program with all sets; checks that shifts are chosen in equal parts of the depth."""
    full = (1, 2, 4, 5, 7, 8)
    profile, observed = profile_of(rng, full, (2, 3, 2))
    similarity = numpy.zeros((9, 9))
    similarity[numpy.ix_(full, full)] = observed.measure.similarity[:, :, 0, 0]
    chosen = profile.as_json()["chosen"]
    assert chosen["anchors"] == best_of_all(similarity * observed.weight, full, 3)
    assert chosen["filters"] == best_of_all(similarity, full[1:], 2)
    assert chosen["delta"] == [2, 4] and chosen["head_map"] == [[0]] * 9
    # the map of a layer that was not measured leads to its own heads
    profile, _ = profile_of(rng, full, (3, 1, 1), [[0.2, 0.2], [0.4, 0.3]])
    assert profile.as_json()["chosen"]["head_map"] == [[0, 0] if layer in full else [0, 1] for layer in range(9)]
    assert profile.as_json()["chosen"]["delta"] == [2, 4, 7]
    of_ranks = [[0.1, 0.2, 1, 1], [0.2, 0.2, 1, 1], [1, 1, 0.3, 0.4], [1, 1, 0.4, 0.3]]
    profile, _ = profile_of(rng, full, (1, 1, 1), of_ranks, 2)
    assert profile.as_json()["chosen"]["head_map"][8] == [1, 0, 3, 2]


class Losses:
    """Random losses of specs, which end after `limit` of them; loss.Loss for a search."""

    def __init__(self, rng, limit):
        self.rows, self.progress, self.lost, self._rng, self._limit = 1, Progress(1, quiet=True), {}, rng, limit

    def of(self, specs, label):
        if len(self.lost) > self._limit:
            raise Interrupted("SIGINT")
        assert not self.lost.keys() & set(specs)
        self.lost |= {spec: self._rng.random() for spec in specs}
        return [types.SimpleNamespace(loss=self.lost[spec]) for spec in specs]


def test_searches(rng):
    """No exchange of a layer improves the result; after an interruption the result is the best set so far."""
    full = (0, 2, 3, 4, 6, 7, 8)
    profile, _ = profile_of(rng, full, (3, 3, 2))
    losses = Losses(rng, 1000)
    profile.search(losses)
    found = profile.as_json()
    for kind, prefix in zip(KINDS, ("delta?dense=2&", "kascade:dense-anchors?", "omnikv?more=0&dense=2&")):
        prefix += "budget=0.125&layers="
        of_kind = {spec: lost for spec, lost in losses.lost.items() if spec.startswith(prefix)}
        best = found["chosen"][kind]
        exchanges = [sorted({*best, new} - {old}) for old in best[1:] for new in full if new > best[0] and new not in best]
        assert losses.lost[prefix + ",".join(map(str, best))] == min(of_kind.values())
        assert exchanges and all(prefix + ",".join(map(str, e)) in of_kind for e in exchanges)
        assert found["search"][kind]["sets"] == len(of_kind)
        assert prefix + ",".join(map(str, found["papers"][kind])) in of_kind
    profile, _ = profile_of(rng, full, (3, 3, 2))
    losses = Losses(rng, 3)
    with pytest.raises(Interrupted):
        profile.search(losses)
    found = profile.as_json()
    best = "delta?dense=2&budget=0.125&layers=" + ",".join(map(str, found["chosen"]["delta"]))
    assert found["search"]["delta"]["sets"] == len(losses.lost) and losses.lost[best] == min(losses.lost.values())


def test_texts():
    ids = list(range(100, 200))
    cut = texts.cut([1], ids, 31, 3, 10)
    assert [text.ids[:2] for text in cut] == [[1, 100], [1, 135], [1, 170]] and {len(text.ids) for text in cut} == {31}
    assert cut[0].start == 15 and cut[0].measured() == [15 + i * 16 // 10 for i in range(10)] and Text(ids, 90).n_rows == 10
    recalled = texts.recalling(cut[0], 12)
    assert recalled.ids[:25] == cut[0].ids[:25] and recalled.start == 19 and recalled.n_rows == 12
    assert recalled.ids[25:] == cut[0].ids[1:7] or recalled.ids[25:] == cut[0].ids[9:15]
    with pytest.raises(ValueError, match="--context from 32 on"):
        texts.recalling(Text(ids[:20], 10), 12)


def test_progress(monkeypatch):
    """
    Several lines if the stream is no terminal, one line on a terminal, none if quiet; adding work after a signal
    raises Interrupted.
    """

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    now, plain, terminal, quiet, stop = [0.0], io.StringIO(), Terminal(), io.StringIO(), Stop()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bars = [Progress(100, stop, to=plain), Progress(100, to=terminal), Progress(100, quiet=True, to=quiet)]
    for now[0] in range(1, 21):
        for bar in bars:
            bar.add(5, "reading")
    for bar in bars:
        bar.end()
    assert len(plain.getvalue().splitlines()) == 4 and "[######..................]  25 %  0:15 left  reading" in plain.getvalue()
    assert terminal.getvalue().count("\r") == 21 and "\n" not in terminal.getvalue() and not quiet.getvalue()
    stop.signal = signal.SIGTERM
    with pytest.raises(Interrupted, match="SIGTERM"):
        bars[0].add(1, "reading")


# ---- program ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random model with a tokenizer of bytes, and a text."""
    to = tmp_path_factory.mktemp("model")
    families.make("Qwen3", 5, "sdpa", num_hidden_layers=6).save_pretrained(to)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: 2 + i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(to)
    (to / "text").write_text(PROSE.read_text(encoding="utf-8")[5000:9000], encoding="utf-8")
    return to


@pytest.fixture
def run(folder, tmp_path, client, monkeypatch, capsys):
    """Runs the program on the small model; returns its status, its profile, and its output."""
    monkeypatch.setattr(Stop, "install", lambda self: None)  # pytest has its own handler

    def call(*arguments):
        out = tmp_path / "profile"
        given = "--context 320 --pieces 2 --rows 8 --sinks 16 --window 64 --gamma 16 --quiet".split()
        files = ["--texts", str(folder / "text"), "-o", str(out), "--socket", client.socket]
        status = program.main([str(folder), *given, *files, *arguments])
        return status, json.loads(out.read_text()) if out.exists() else None, capsys.readouterr()

    return call


SEARCH = ("--by", "loss", "--delta-layers", "2", "--anchors", "2", "--filters", "2", "--dense", "1")


def test_searches_by_loss(run, client, folder, tmp_path):
    """The found layers lose no more than the papers' layers; policies accept the profile; charts are drawn."""
    policies = "--policy kascade --policy omnikv?layers=2 --policy snapkv --budgets 0.5,0.75".split()
    status, profile, said = run(*SEARCH, *policies, "--svg", str(tmp_path / "chart"))
    assert status == 0 and not said.err and "kascade anchors:" in said.out
    for kind in ("delta", "anchors", "filters"):
        found = profile["search"][kind]
        assert 0 <= found["loss"] <= found["papers_loss"] and len(profile["chosen"][kind]) == 2 and found["sets"] >= 4
    assert profile["search"]["rows"] == 16 and set(profile["papers"]) == set(profile["chosen"])
    assert [(p["policy"], p["budget"]) for p in profile["quality"]] == [
        (name, b) for name in ("kascade", "omnikv?layers=2", "snapkv") for b in (0.5, 0.75)
    ]
    assert all(p["loss"] > 0 and 0 < p["read_share"] < 1 and p["read_bytes"] < 321 * 6 * 512 for p in profile["quality"])
    assert all((p["memory_share"] < 1) == (p["policy"] == "snapkv") for p in profile["quality"])
    for name in ("shift", "similarity", "alike", "quality"):
        assert xml.etree.ElementTree.parse(f"{tmp_path}/chart-{name}.svg").getroot().tag.endswith("svg")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparsekv")
    for policy in ("delta", "kascade", "omnikv", "tidal"):
        client.open(model_of(model), f"{policy}?profile={tmp_path}/profile").close()
    other = sparsekv.Model("other", n_layers=2, n_heads=8, n_kv_heads=2, head_dim=64, max_tokens=64)
    with pytest.raises(sparsekv.Error, match="of another model"):
        client.open(other, f"delta?profile={tmp_path}/profile")


def test_loss(client, folder):
    """No loss under `full`, for texts of several lengths; attended tokens are counted."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparsekv")
    read = [Text(list(range(2, 2 + n)), n - 6) for n in (180, 190, 180)]
    loss = Loss(model, client, read, Progress(1, quiet=True))
    full, streaming = loss.of(["full", "streaming?budget=32"], "")
    assert loss.rows == 18 and len(loss.groups) == 2 and abs(full.loss) < 1e-5 and full.share == 1.0 and full.memory == 1.0
    assert full.dense_tokens == 6 * sum(n - 5 + i for n in (180, 190, 180) for i in range(6)) / 18
    assert streaming.loss > 1e-3 and 0.1 < streaming.share < 0.3 and streaming.memory < 0.5
    assert abs(loss.of_reading("streaming?budget=32", "").loss - streaming.loss) < 1e-5
    loss.close()


def test_bytes(client):
    """Bytes include the data read for selection, as in bench/reads.py."""
    model = sparsekv.Model("counted", n_layers=10, n_heads=4, n_kv_heads=2, head_dim=64, max_tokens=64, kv_dtype="float16")
    policies = ("quest", "sketch", "kascade", "kascade:dense-anchors", "streaming")
    found = quality.specs(client, model, policies, [0.125])
    assert [round(quality.read_share(spec, 0.2, model, 3), 4) for spec in found] == [0.25, 0.2703, 0.2889, 0.2, 0.2]


def interrupt(monkeypatch, what, name, after):
    """Makes the call of a method raise Interrupted after `after` calls."""
    calls, original = itertools.count(), getattr(what, name)

    def method(*args, **kwargs):
        if next(calls) >= after:
            raise Interrupted("SIGINT")
        return original(*args, **kwargs)

    monkeypatch.setattr(what, name, method)


def test_interrupted(run, monkeypatch):
    """What was measured or found so far is written, and the exit status is 3."""
    with monkeypatch.context() as patch:
        interrupt(patch, Observer, "read", 1)
        status, profile, said = run(*SEARCH)
    assert status == 3 and profile["made"]["texts"] == 1 and profile["partial"]["of_texts"] == 2 and "search" not in profile
    assert "interrupted: this profile rests on 1 of 2 texts, 8 rows" in said.err
    interrupt(monkeypatch, Loss, "of", 1)
    status, profile, said = run(*SEARCH)
    assert status == 3
    assert profile["partial"]["interrupted"].endswith("delta searched in part, anchors not searched, filters not searched")
    assert profile["search"].keys() == {"budget", "rows", "delta"}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--anchors", "7"), "the model has 6 layers without a sliding window"),
        (("--context", "513"), "--context: 513 tokens, expected at most the model's 512"),
        (("--texts", "/nowhere"), "/nowhere"),
        (("--svg", "x", "--policy", "quest?bugdet=1"), "bugdet"),
        (("--svg", "x", "--context", "16"), "pieces of 16 tokens, expected a --context from 32 on"),
        (("--socket", "/nowhere/socket", "--by", "loss"), "/nowhere/socket"),
    ],
)
def test_refuses(run, arguments, said):
    status, profile, printed = run(*arguments)
    assert status == 1 and profile is None and said in printed.err and printed.err.count("\n") == 1
