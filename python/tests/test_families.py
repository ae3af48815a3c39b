# SPDX-License-Identifier: Apache-2.0
"""Every family of the table: logits of prompts and decode steps under `full` compared with eager attention in fp32."""
from types import SimpleNamespace

import families
import pytest
import torch
import transformers

from sparsekv.transformers import SparseCache, Unsupported, model_of

LIMIT = 1e-3
HYBRID = dict(num_hidden_layers=2, mamba_n_heads=8)  # each layer has attention and Mamba


@pytest.mark.parametrize("rows", [[0, 1, 2], [1]], ids=["batch", "one"])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_logits(family, rows, client, rng):
    seed = int(rng.integers(1 << 31))
    ours, stock = families.make(family, seed, "sparsekv"), families.make(family, seed, "eager")
    assert ours.config._attn_implementation == "sparsekv"
    ids = torch.tensor(rng.integers(3, 300, (3, 90)))
    mask = torch.ones_like(ids)
    mask[0, :17] = 0  # padding on the left
    mask[2, :40] = 0
    ids, mask = ids[rows], mask[rows]
    with SparseCache("full", client=client) as cache, torch.no_grad():
        theirs, worst = None, 0.0
        for start, end in [(0, 64), (64, 65), (65, 80), *((i, i + 1) for i in range(80, 90))]:
            position = (mask.cumsum(1) - 1).clamp(min=0)[:, start:end]
            given = dict(input_ids=ids[:, start:end], attention_mask=mask[:, :end], position_ids=position)
            a = ours(**given, past_key_values=cache).logits
            b = stock(**given, past_key_values=theirs)
            theirs = b.past_key_values
            real = mask[:, start:end].bool()
            worst = max(worst, float((a - b.logits)[real].abs().max()))
        print(f"{family}: largest difference of a logit {worst:.2g}")
        assert worst <= LIMIT
        assert cache.stats().decode_tokens == 11 * len(rows)


@pytest.mark.parametrize(
    "config, text",
    [
        (transformers.T5Config(d_model=32, num_layers=1, num_heads=2, d_kv=16, d_ff=32, vocab_size=50), "encoder-decoder"),
        (transformers.DeepseekV3Config(num_hidden_layers=1, hidden_size=32, intermediate_size=32, num_attention_heads=2,
                                       num_key_value_heads=2, vocab_size=50, moe_intermediate_size=16, n_routed_experts=4,
                                       n_group=1, topk_group=1, num_experts_per_tok=2, kv_lora_rank=16, q_lora_rank=16,
                                       qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16), r"\(MLA\)"),
        (transformers.LlamaConfig(**(families.SHAPE | dict(head_dim=24))), "head_dim is 24"),
        (transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50), "MambaForCausalLM is a hybrid or recurrent model"),
        (transformers.FalconH1Config(**(families.SHAPE | HYBRID), mamba_d_ssm=64, mamba_d_head=8), r"FalconH1ForCausalLM is a hybrid .* keep a state"),
        (transformers.Lfm2Config(**(families.SHAPE | dict(num_hidden_layers=2)), layer_types=["conv", "full_attention"]), r"hybrid .*\(conv\) keep a state"),
        (transformers.GPTNeoXConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=50),
         "attention in 0 of 1 layers .* as the families Llama, .* have"),
    ],
)  # fmt: skip
def test_refused(config, text, client):
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = kind.from_config(config)
    model.config._attn_implementation = "sparsekv"
    with pytest.raises(Unsupported, match=text):
        SparseCache(client=client, model=model)


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_compiled(family, client, rng, caplog):
    """Decode steps with torch.compile and the eager backend give the same logits; unsupported arguments are logged."""
    model = families.make(family, int(rng.integers(1 << 31)), "sparsekv")
    ids = torch.tensor(rng.integers(3, 300, (2, 40)))
    with SparseCache("full", client=client, compile=dict(backend="eager", fullgraph=True)) as cache, torch.no_grad():
        model(ids[:, :30], past_key_values=cache)
        with cache.fork() as other:
            other._compile = False  # no compilation
            for i in range(30, 38):
                compiled, plain = (model(ids[:, i : i + 1], past_key_values=c) for c in (cache, other))
                assert (compiled.logits - plain.logits).abs().max() < 1e-5
                assert compiled.past_key_values is cache
        assert cache.tokens() == ids[0, :38].tolist() and "not recorded" not in caplog.text
        model(ids[:, 38:39], past_key_values=cache, labels_of_mine=[1])
        assert "labels_of_mine is of list" in caplog.text
        assert cache.tokens() == ids[0, :39].tolist()


class Packed(torch.nn.Module):
    """
    A linear layer with packed weights, as in quantized models: in buffers of another dtype without a parameter, or in
    a parameter of bytes.
    """

    def __init__(self, linear: torch.nn.Linear, parameter: bool):
        super().__init__()
        assert linear.bias is None
        self.scale = float(linear.weight.abs().max()) / 127
        packed = (linear.weight / self.scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(packed, requires_grad=False) if parameter else None
        self.register_buffer("qweight", None if parameter else packed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.qweight if self.weight is None else self.weight
        return torch.nn.functional.linear(x, packed.to(x.dtype) * self.scale)


@pytest.mark.parametrize("parameter", [False, True], ids=["buffers", "parameters"])
def test_quantized(parameter, client, rng):
    """Logits of a model with packed layers; a model with other weights has another identity."""
    ours, stock = (families.make("Llama", 1, implementation) for implementation in ("sparsekv", "eager"))
    for model in (ours, stock):
        for layer in model.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(layer.self_attn, name, Packed(getattr(layer.self_attn, name), parameter))
    ids = torch.tensor(rng.integers(3, 300, (1, 40)))
    with SparseCache(client=client) as cache, torch.no_grad():
        assert (ours(ids, past_key_values=cache).logits - stock(ids).logits).abs().max() < LIMIT
        assert cache.session.model.row_dtype == "float32"
        was = cache.session.model.name
    packed = ours.model.layers[1].self_attn.k_proj
    (packed.weight if parameter else packed.qweight).data[0, 0] ^= 1
    assert model_of(ours).name != was


def test_offloaded(client):
    """
    Weights that are loaded when a layer runs: the device is the one that accelerate's hook names; without a hook the
    model is refused.
    """
    model = families.make("Llama", 1, "sparsekv")
    for layer in model.model.layers:
        layer.self_attn.to("meta")
    with pytest.raises(Unsupported, match=r"weights of layer 0 are not in memory \(device meta\)"):
        model_of(model, name="offloaded")
    for layer in model.model.layers:
        layer.self_attn.q_proj._hf_hook = SimpleNamespace(execution_device="cpu")
    assert model_of(model, name="offloaded").device == "cpu"
    with pytest.raises(Unsupported, match=r"[qkvo]_proj.weight is not in memory \(offloaded weights\).* model_name="):
        model_of(model)
    model.model.layers[2].self_attn.q_proj._hf_hook.execution_device = 1  # a number means a GPU
    with pytest.raises(Unsupported, match="layers are on several devices \\(cpu, cuda:1\\), expected one"):
        model_of(model, name="offloaded")
