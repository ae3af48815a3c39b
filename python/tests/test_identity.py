# SPDX-License-Identifier: Apache-2.0
"""
Changes of a model through each interface: the engine's named sequences and prefixes, transformers, and vLLM. If
nothing changed that K and V are computed from, the same sequences and prefixes are found. Otherwise they are computed
again, or the call is refused.
"""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
import transformers
from families import make
from safetensors.torch import load_file, save_file

import sparsekv
from sparsekv.private import find_daemon
from sparsekv.rope import rope_of
from sparsekv.transformers import model_of
from sparsekv.transformers.identity import WIDTH, checksum

sys.path.insert(0, str(Path(__file__).parent / "vllm"))
import fake_vllm  # noqa: E402, F401: before sparsekv.vllm

from sparsekv.vllm.identity import model_identity, request_key  # noqa: E402

IDS = [(37 * i) % 250 + 3 for i in range(300)]
ENGINE = find_daemon().parents[1] / "engine/sparsekv-generate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose weights are exact in bf16, so that files of any dtype can hold them."""
    model = make("Llama", 1, "sparsekv", rope_parameters=dict(rope_type="default", rope_theta=10000.0)).to(torch.bfloat16).float()
    model.save_pretrained(to := tmp_path_factory.mktemp("models") / "original")
    return to


# ---- interfaces


def engine(client, folder, *options):
    """Returns the number of the prompt's tokens that were computed; None: the engine refused."""
    command = [ENGINE, "--socket", client.socket, "--model", folder, "--policy", "full", "--kv-dtype", "fp32", "--max-tokens", "3", *options]
    done = subprocess.run([*command, "--ids", ",".join(map(str, IDS))], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr)
        return None
    return int(re.search(r"prompt +300 tokens, (\d+) computed", done.stderr)[1])


def by_transformers(folder):
    return model_of(transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparsekv", dtype=torch.float32)).name


def by_vllm(folder, dtype="float32"):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = SimpleNamespace(model=str(folder), hf_config=config, dtype=dtype, quantization=None, revision=None, seed=0, max_model_len=512)
    shape = sparsekv.Model("x", config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, 16, 512, dtype)
    return model_identity(SimpleNamespace(model_config=model, load_config=SimpleNamespace(load_format="auto")), shape)


# ---- changes


def configuration(**values):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def weight(name):
    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors[name].view(-1)[-1] += 1
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def half(folder):
    tensors = {name: t.to(torch.bfloat16) for name, t in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shards(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1


def tokenizer(folder):
    """K and V depend only on the ids, not on the text that they represent."""
    byte = tokenizers.pre_tokenizers.ByteLevel
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(sorted(byte.alphabet()))}, []))
    made.pre_tokenizer, made.decoder = byte(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))


LAYER = "model.layers.1."
OTHERS = {
    "rms_norm_eps": configuration(rms_norm_eps=1e-3),
    "rope_theta": configuration(rope_parameters=dict(rope_type="default", rope_theta=20000.0)),
    "rope_type": configuration(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    "hidden_act": configuration(hidden_act="gelu"),
    "layers": configuration(num_hidden_layers=1),
    "heads": configuration(num_attention_heads=2, num_key_value_heads=1),
    "embedding": weight("model.embed_tokens.weight"),
    "q": weight(LAYER + "self_attn.q_proj.weight"),
    "k": weight(LAYER + "self_attn.k_proj.weight"),
    "v": weight(LAYER + "self_attn.v_proj.weight"),
    "o": weight(LAYER + "self_attn.o_proj.weight"),
    "gate": weight(LAYER + "mlp.gate_proj.weight"),
    "up": weight(LAYER + "mlp.up_proj.weight"),
    "down": weight(LAYER + "mlp.down_proj.weight"),
    "input norm": weight(LAYER + "input_layernorm.weight"),
    "attention's norm": weight(LAYER + "post_attention_layernorm.weight"),
}
SAME = {
    "path": lambda folder: None,
    "tokenizer": tokenizer,
    "dtype of the file": half,
    "shards": shards,
    "use_cache": configuration(use_cache=False),
}
ALL = [(name, change, False) for name, change in OTHERS.items()] + [(name, change, True) for name, change in SAME.items()]


@pytest.fixture(params=ALL, ids=lambda x: x[0])
def changed(request, folder, tmp_path):
    """The folders of the original and the changed model, and whether their K and V are the same."""
    _, change, same = request.param
    shutil.copytree(folder, to := tmp_path / "changed")
    change(to)
    return folder, to, same


def test_named_sequences(client, changed):
    original, other, same = changed
    first = engine(client, original, "--seq", "chat")
    assert first in (0, 299) and engine(client, original, "--seq", "chat") == 0
    assert engine(client, other, "--seq", "chat") in ((0,) if same else (299, None))


def test_prefixes(client, changed):
    original, other, same = changed
    engine(client, original, "--prefixes")
    assert engine(client, original, "--prefixes") < 100
    assert engine(client, other, "--prefixes") in (range(100) if same else (299, None))


def test_transformers(changed):
    original, other, same = changed
    try:
        name = by_transformers(other)
    except (RuntimeError, ValueError):  # weights do not fit the configuration
        assert not same
    else:
        assert (name == by_transformers(original)) == same


def test_vllm(changed):
    original, other, same = changed
    assert (by_vllm(other) == by_vllm(original)) == same


# ---- what is not in a model's folder


def test_dtype_of_pages(client, folder):
    engine(client, folder, "--seq", "pages")
    assert engine(client, folder, "--seq", "pages", "--kv-dtype", "fp16") in (299, None)
    assert by_vllm(folder, "float16") != by_vllm(folder)


def test_requests(tmp_path):
    """vLLM's requests: an adapter is identified by its content; images, salt, embeddings."""

    def key(**values):
        nothing = dict(prompt_embeds=None, lora_request=None, cache_salt=None, mm_features=[])
        return request_key(SimpleNamespace(**{**nothing, **values}))

    def adapter(folder, content):
        folder.mkdir(exist_ok=True)
        (folder / "adapter_model.safetensors").write_bytes(content)
        return SimpleNamespace(lora_name="a", lora_path=str(folder), lora_int_id=1)

    def image(name, offset=5):
        return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=9))

    a, b = adapter(tmp_path / "a", b"weights"), adapter(tmp_path / "b", b"others")
    keys = [
        key(), key(lora_request=a), key(lora_request=b), key(cache_salt="s"), key(cache_salt="t"), key(mm_features=[image("cat")]),
        key(mm_features=[image("dog")]), key(mm_features=[image("cat", 6)]), key(prompt_embeds=object()),
    ]  # fmt: skip
    assert keys[0] == "" and keys[-1] is None and len(set(keys)) == len(keys)
    assert key(lora_request=adapter(tmp_path / "c", b"weights")) == key(lora_request=a)
    loaded: dict[int, str] = {}
    assert request_key(SimpleNamespace(prompt_embeds=None, lora_request=a, cache_salt=None, mm_features=[]), loaded) == keys[1]
    assert key(lora_request=adapter(tmp_path / "a", b"retrained")) not in keys
    # an engine that has loaded the adapter goes on with the old weights
    assert request_key(SimpleNamespace(prompt_embeds=None, lora_request=a, cache_salt=None, mm_features=[]), loaded) == keys[1]
    a.load_inplace = True
    assert request_key(SimpleNamespace(prompt_embeds=None, lora_request=a, cache_salt=None, mm_features=[]), loaded) not in keys


def test_rounded_frequencies(folder):
    """A model that was converted as a whole has rounded inverse frequencies of RoPE, so its keys are turned in another way."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = load(folder, attn_implementation="sparsekv", dtype=torch.float32)
    name = model_of(plain).name
    assert model_of(load(folder, attn_implementation="sparsekv", dtype=torch.float32)).name == name
    rounded = load(folder, attn_implementation="sparsekv", dtype=torch.float32).to(torch.bfloat16)
    assert model_of(rounded).name != model_of(load(folder, attn_implementation="sparsekv", dtype=torch.bfloat16)).name
    assert model_of(rounded.float()).name != name


def test_checksums():
    """Of tensors on a device: a number that changes with each word, and with its place."""
    tensor = torch.arange(3 * WIDTH + 5, dtype=torch.float32)
    sums = {int(checksum(tensor))}
    for i, j in ((0, 1), (0, WIDTH), (5, 3 * WIDTH + 1), (3 * WIDTH, 3 * WIDTH + 4)):
        swapped = tensor.clone()
        swapped[i], swapped[j] = tensor[j], tensor[i]
        sums.add(int(checksum(swapped)))
    sums.add(int(checksum(tensor.view(-1)[:-1])))
    assert len(sums) == 6 and int(checksum(tensor.clone())) in sums


@pytest.mark.parametrize("more, unknown", [(dict(mscale=0.7, mscale_all_dim=0.4), False), (dict(truncate=False), True), (dict(other=1), True)])
def test_yarn(more, unknown):
    def rope(**values):
        given = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128)
        return rope_of(SimpleNamespace(rope_parameters={**given, **values}), 64)

    assert rope().type == "yarn" and rope(**more) != rope() and (rope(**more).type == "unknown") == unknown
    assert rope(mscale=0.7, mscale_all_dim=0.7).attention == 1.0
