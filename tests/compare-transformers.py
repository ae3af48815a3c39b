#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine against transformers: the same folders, fp32, eager attention, on the host.

compare-transformers.py random BUILD        small random models of every family: logits of 200 tokens, 64 greedy ones
compare-transformers.py real BUILD MODEL    a checkpoint with its tokenizer: prompts of 39 to 7,000 tokens (as far as
                                            its context goes), and 10 greedy continuations of 64 tokens
compare-transformers.py golden FOLDER       write the models and logits of tests/unit/engine/golden

BUILD is the build directory, where `make tests/support/engine-logits daemon/sparsekvd` has been run. Needs torch and
transformers. The largest difference of a logit allowed is 1e-3; greedy tokens must be equal.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore", category=FutureWarning)  # newer names that older versions do not know

import numpy
import torch
import transformers
from safetensors.torch import save_file

LIMIT = 1e-3
SEED = 19

# ---- random models ---------------------------------------------------------------------------------------------------

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, rope_theta=10000.0)
LINEAR = dict(rope_type="linear", factor=4.0, rope_theta=10000.0)


def scaled(rope, original):
    return dict(rope, original_max_position_embeddings=original) if original else dict(rope)


# name: family, type of the weights, what the configuration has besides the shape; "old": rope_scaling and rope_theta
# instead of rope_parameters; "shard": bytes of a file; "original": context before scaling, for RoPE. The first eight
# are the golden ones.
CASES = {
    "llama3": dict(family="Llama", dtype="bfloat16", rope=LLAMA3, original=16, tie_word_embeddings=True),
    "yarn": dict(family="Llama", dtype="float16", rope=YARN, original=16, old=True),
    "linear": dict(family="Mistral", dtype="bfloat16", rope=LINEAR, old=True),
    "qwen2": dict(family="Qwen2", dtype="bfloat16", shard=12000),
    "qwen3": dict(family="Qwen3", dtype="bfloat16", tie_word_embeddings=True),
    "biases": dict(family="Llama", dtype="float32", attention_bias=True, mlp_bias=True),
    "window": dict(family="Mistral", dtype="bfloat16", sliding_window=9, tie_word_embeddings=True),
    "windows": dict(family="Qwen2", dtype="bfloat16", use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "llama-plain": dict(family="Llama", dtype="float32", old=True, tie_word_embeddings=True),
    "llama3-shards": dict(family="Llama", dtype="float32", rope=LLAMA3, original=64, old=True, shard=100000),
    "yarn-defaults": dict(family="Qwen2", dtype="bfloat16", rope=YARN),
    "yarn-factor": dict(family="Qwen3", dtype="float32", rope=dict(YARN, attention_factor=0.7, beta_fast=16.0),
                        original=64),
    "yarn-mscale": dict(family="Llama", dtype="bfloat16", rope=dict(YARN, mscale=1.0, mscale_all_dim=0.5),
                        original=64),
    "mistral-plain": dict(family="Mistral", dtype="bfloat16", tie_word_embeddings=True),
    "qwen3-bias": dict(family="Qwen3", dtype="float16", attention_bias=True, shard=100000),
    "qwen2-tied": dict(family="Qwen2", dtype="float32", tie_word_embeddings=True, rope=LINEAR, old=True),
}
GOLDEN = list(CASES)[:8]

# Heads of 64, which devices have.
TINY = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=64, vocab_size=64, max_position_embeddings=64)
SMALL = dict(hidden_size=192, intermediate_size=256, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, vocab_size=500, max_position_embeddings=512)


def random_weights(model, seed):
    """Of a size at which each part of the model has a say in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=generator)
        if p.dim() == 2:
            p.data = 0.2 * r if "embed" in name else r * (1.5 / p.shape[1] ** 0.5)
        else:
            p.data = 0.5 * r if name.endswith("bias") else 1 + 0.3 * r


def write_model(name, shape, folder):
    case = dict(CASES[name])
    family, dtype, rope = case.pop("family"), getattr(torch, case.pop("dtype")), case.pop("rope", None)
    old, shard, original = case.pop("old", False), case.pop("shard", None), case.pop("original", None)
    if family == "Qwen3" and "head_dim" not in shape:  # which has a default of its own
        case["head_dim"] = 48
    if family == "Mistral" and "sliding_window" not in case:
        case["sliding_window"] = shape["max_position_embeddings"]
    config = getattr(transformers, family + "Config")(
        **shape, **case, bos_token_id=0, eos_token_id=[1, 2], rms_norm_eps=1e-5,
        rope_parameters=scaled(rope, original) if rope else dict(rope_type="default", rope_theta=10000.0))
    model = getattr(transformers, family + "ForCausalLM")(config)
    random_weights(model, SEED)
    model.tie_weights()
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shard) if shard else {}))
    path = pathlib.Path(folder, "config.json")
    text = json.loads(path.read_text())
    if rope and not original:  # as many files have it: then it is max_position_embeddings
        text["rope_parameters"].pop("original_max_position_embeddings", None)
    if old:
        rope = text.pop("rope_parameters")
        text["rope_theta"] = rope.pop("rope_theta")
        text["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    text.pop("transformers_version", None)
    path.write_text(json.dumps(text, indent=1) + "\n")
    pathlib.Path(folder, "generation_config.json").unlink(missing_ok=True)


# ---- both sides ------------------------------------------------------------------------------------------------------


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()


def theirs(model, ids, decoded, greedy):
    """Logits of the last tokens, and what follows; prompts in chunks, so that scores of long ones fit in memory."""
    cache, rows, chosen = transformers.DynamicCache(config=model.config), [], []
    with torch.inference_mode():
        for at in range(0, len(ids), 1024):
            chunk = torch.tensor([ids[at:at + 1024]])
            keep = max(0, min(chunk.shape[1], at + chunk.shape[1] - (len(ids) - decoded)))
            logits = model(chunk, past_key_values=cache, logits_to_keep=max(keep, 1)).logits[0]
            if keep:
                rows.append(logits)
        for _ in range(greedy):
            chosen.append(int(logits[-1].argmax()))
            logits = model(torch.tensor([[chosen[-1]]]), past_key_values=cache).logits[0]
    return torch.cat(rows).numpy(), chosen


def ours(build, folder, sequences):
    """The same of engine-logits, for sequences of (ids, decoded, greedy), each as soon as it is there."""
    vocab = json.loads(pathlib.Path(folder, "config.json").read_text())["vocab_size"]
    environment = dict(os.environ, SPARSEKVD=str(build.resolve() / "daemon/sparsekvd"), OMP_WAIT_POLICY="passive")
    with tempfile.TemporaryFile("w+") as lines:
        for ids, decoded, greedy in sequences:
            print(decoded, greedy, *ids, file=lines)
        lines.seek(0)
        with subprocess.Popen([build.resolve() / "tests/support/engine-logits", folder], stdin=lines,
                              stdout=subprocess.PIPE, env=environment) as run:
            for _, decoded, greedy in sequences:
                logits = numpy.frombuffer(run.stdout.read(decoded * vocab * 4), numpy.float32)
                chosen = numpy.frombuffer(run.stdout.read(greedy * 4), numpy.int32)
                if logits.size < decoded * vocab or chosen.size < greedy:
                    sys.exit(f"{folder}: engine-logits has not answered")
                yield logits.reshape(decoded, vocab), chosen.tolist()


def compare(build, folder, names, sequences):
    """A line for each sequence. How many differ."""
    model, wrong = load(folder), 0
    for name, sequence, (logits, chosen) in zip(names, sequences, ours(build, folder, sequences)):
        want, wanted = theirs(model, *sequence)
        difference = float(numpy.abs(logits - want).max())
        same = int((logits.argmax(1) == want.argmax(1)).sum())
        ok = difference <= LIMIT and chosen == wanted
        wrong += not ok
        print(f"{name:16} {len(sequence[0]):6} tokens  largest difference {difference:.2e} of logits to "
              f"{numpy.abs(want).max():.1f}  argmax {same}/{len(want)}  "
              f"greedy {sum(a == b for a, b in zip(chosen, wanted))}/{len(wanted)}  {'ok' if ok else 'WRONG'}",
              flush=True)
    return wrong


# ---- commands --------------------------------------------------------------------------------------------------------


def random_ids(n, vocab):
    return torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(SEED)).tolist()


def random_models(build):
    wrong = 0
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            write_model(name, SMALL, folder)
            wrong += compare(build, folder, [name], [(random_ids(300, SMALL["vocab_size"]), 200, 64)])
    return wrong


def real_model(build, folder):
    root = pathlib.Path(__file__).resolve().parent.parent
    text = "".join(p.read_text() for p in sorted(root.glob("**/*.md")) if "build" not in p.parts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    context = json.loads(pathlib.Path(folder, "config.json").read_text())["max_position_embeddings"]
    lengths = [n for n in (39, 128, 517, 1024, 2049, 4000, 7000) if n <= min(context, len(ids))]
    sequences = [(ids[:n], min(n, 16), 0) for n in lengths]
    sequences += [(ids[i * 700:i * 700 + 40 + 25 * i], 1, 64) for i in range(10)]
    return compare(build, folder, ["prompt"] * len(lengths) + ["greedy"] * 10, sequences)


def write_golden(folder):
    for name in GOLDEN:
        to = folder / name
        to.mkdir(parents=True, exist_ok=True)
        for old in to.iterdir():
            old.unlink()
        write_model(name, TINY, to)
        ids = random_ids(40, TINY["vocab_size"])
        logits, _ = theirs(load(to), ids, len(ids), 0)
        save_file({"ids": torch.tensor(ids, dtype=torch.float32), "logits": torch.from_numpy(logits)},
                  to / "golden.safetensors")
        for file in to.iterdir():
            file.chmod(0o644)
        print(name, sum(p.stat().st_size for p in to.iterdir()), "bytes")
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("command", choices=("random", "real", "golden"))
    p.add_argument("path", nargs="+", type=pathlib.Path)
    args = p.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if len(args.path) != (2 if args.command == "real" else 1):
        p.error("BUILD, BUILD and MODEL, or FOLDER expected")
    return {"random": random_models, "real": real_model, "golden": write_golden}[args.command](*args.path)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
