# SPDX-License-Identifier: Apache-2.0
"""Small random models of the families that the table in doc/python.md names."""
import torch
import transformers

SHAPE = dict(
    hidden_size=96, intermediate_size=128, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, vocab_size=300,
    max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=10000.0,
              original_max_position_embeddings=64)  # fmt: skip

# class of the configuration; its values besides SHAPE
FAMILIES = {
    "Llama": ("Llama", dict(rope_parameters=LLAMA3)),
    "Qwen2": ("Qwen2", dict(use_sliding_window=True, sliding_window=20, max_window_layers=2)),
    "Qwen3": ("Qwen3", dict(head_dim=32)),
    "Mistral": ("Mistral", dict(sliding_window=24, head_dim=16)),
    "Gemma2": ("Gemma2", dict(head_dim=32, sliding_window=20, query_pre_attn_scalar=24, attn_logit_softcapping=8.0)),
    "Gemma3": ("Gemma3Text", dict(head_dim=32, sliding_window=20, query_pre_attn_scalar=24)),
    "Phi3": ("Phi3", dict(sliding_window=28)),
    "GptOss": ("GptOss", dict(head_dim=32, sliding_window=20, num_local_experts=4, num_experts_per_tok=2)),
    "Granite": ("Granite", dict(attention_multiplier=0.2)),
    "SmolLM3": ("SmolLM3", dict(no_rope_layer_interval=2)),
}


def make(family: str, seed: int, implementation: str, **more):
    """Makes a random model of the family. The weights are large enough for each part to affect the logits."""
    name, given = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**(SHAPE | given | more))
    config._attn_implementation = implementation
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")._from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=generator)
            norm = p.dim() == 1 and "norm" in parameter_name
            p.copy_(p + 0.1 * r if norm else r * (0.5 if p.dim() == 1 else 1.5 / p.shape[-1] ** 0.5))
    return model
