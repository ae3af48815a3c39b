# SPDX-License-Identifier: Apache-2.0
"""
K and V belong to the model and the prompt of a call, or the call is refused: identity, prompts that differ from the
sequence, masks, copies, gradients. Small random models in fp32, compared with transformers' own cache.
"""
import copy
import gc
import pickle

import pytest
import torch
import transformers
from families import make
from transformers import DynamicCache

import sparsekv
from sparsekv.transformers import SparseCache, Unsupported, model_of

GREEDY = dict(do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=None)


@pytest.fixture(autouse=True)
def our_client(client):
    sparsekv.set_default(client)


@pytest.fixture
def model():
    return make("Llama", 1, "sparsekv")


@pytest.fixture(scope="module")
def stock():
    return make("Llama", 1, "sdpa")


def prompt(n=40, rows=1, seed=1):
    return torch.randint(3, 299, (rows, n), generator=torch.Generator().manual_seed(seed))


def drop(model, *names):
    for name in names:
        with SparseCache("full", name=name, model=model) as cache:
            for seq in cache.seqs:
                seq.drop()


# ---- identity of a model


def name_of(model):
    return model_of(model).name


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma3"])
def test_every_tensor_counts(family):
    model = make(family, 1, "sparsekv")
    was = name_of(model)
    assert name_of(make(family, 1, "sdpa")) == was
    for name, parameter in model.named_parameters():
        old = parameter.data.flatten()[-1].clone()
        parameter.data.view(-1)[-1] += 1  # as PEFT merges weights: the tensor's version does not change
        assert (name_of(model) != was) == (name != "lm_head.weight"), name
        parameter.data.view(-1)[-1] = old
    assert name_of(model) == was


@pytest.mark.parametrize(
    "change",
    [
        dict(rms_norm_eps=1e-3), dict(rope_parameters=dict(rope_type="default", rope_theta=20000.0)), dict(attention_bias=True),
        dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
        dict(hidden_act="gelu"), dict(num_key_value_heads=3), dict(hidden_size=192, head_dim=16),
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_numbers_of_the_configuration_count(change):
    assert name_of(make("Llama", 1, "sparsekv", **change)) != name_of(make("Llama", 1, "sparsekv"))


def test_rope_that_the_library_does_not_know_counts():
    def dynamic(factor):
        return name_of(make("Llama", 1, "sparsekv", rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=factor)))

    assert dynamic(2.0) != dynamic(4.0)


@pytest.mark.parametrize("change", [dict(use_cache=False), dict(initializer_range=0.5), dict(max_position_embeddings=256)], ids=lambda c: next(iter(c)))
def test_others_do_not(change):
    assert name_of(make("Llama", 1, "sparsekv", **change)) == name_of(make("Llama", 1, "sparsekv"))


@pytest.mark.parametrize("family", ["Gemma2", "Granite", "GptOss"])
def test_multipliers_count(family):
    number = {"Gemma2": "query_pre_attn_scalar", "Granite": "residual_multiplier", "GptOss": "num_experts_per_tok"}[family]
    value = {"Gemma2": 32, "Granite": 0.5, "GptOss": 1}[family]
    assert name_of(make(family, 1, "sparsekv", **{number: value})) != name_of(make(family, 1, "sparsekv"))


def test_the_engine_calls_it_the_same(tmp_path):
    """The library's sum over the files equals that over the tensors in memory, wherever they are."""
    from sparsekv.identity import Identity

    model = make("Llama", 1, "sparsekv", rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    model.save_pretrained(tmp_path / "a", max_shard_size="200KB")
    shape = model_of(model)
    files = Identity()
    files.text("architecture", "LlamaForCausalLM")
    files.number("rms_norm_eps", torch.tensor(model.config.rms_norm_eps, dtype=torch.float32).item())
    files.shape(shape)
    files.files(str(tmp_path / "a"))
    assert files.name("llama") == shape.name
    half = model.to(torch.bfloat16)
    half.save_pretrained(tmp_path / "b")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b", attn_implementation="sparsekv", dtype=torch.float32)
    stored = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b", attn_implementation="sparsekv", dtype=torch.bfloat16)
    assert name_of(loaded) == name_of(stored) != shape.name  # the values count, not the dtype that stores them
    assert name_of(half) != name_of(stored)  # to() has rounded RoPE's frequencies as well


def test_offloaded_weights_are_refused():
    with torch.device("meta"):
        model = make("Llama", 1, "sparsekv")
    with pytest.raises(Unsupported, match="weights of layer 0 are not in memory"):
        model_of(model)


def test_a_model_retrained_in_place_is_another(model):
    with SparseCache("full", name="retrained") as cache:
        model.generate(prompt(), past_key_values=cache, **GREEDY)
    old = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    want = copy.deepcopy(model)
    want.set_attn_implementation("sdpa")
    with SparseCache("full", name="retrained") as cache:
        assert model.generate(prompt(), past_key_values=cache, **GREEDY).tolist() == want.generate(prompt(), **GREEDY).tolist()
    drop(model, "retrained")
    drop(old, "retrained")


def test_a_cache_is_one_models(model):
    with SparseCache("full", model=model) as cache, pytest.raises(ValueError, match="another model"):
        make("Llama", 2, "sparsekv")(prompt(), past_key_values=cache)


# ---- prompts that differ from the sequence


@pytest.mark.parametrize("other", [prompt(80, seed=2), prompt(20, seed=2), prompt()[:, :20], prompt(), torch.cat([prompt(), prompt(9, seed=3)], 1)],
                         ids=["longer", "shorter", "beginning", "same", "goes on"])  # fmt: skip
def test_a_named_sequence_of_another_prompt(model, stock, other, caplog):
    with SparseCache("full", name="chat") as cache:
        model.generate(prompt(), past_key_values=cache, **GREEDY)
    with SparseCache("full", name="chat") as cache:
        assert model.generate(other, past_key_values=cache, **GREEDY).tolist() == stock.generate(other, **GREEDY).tolist()
    assert "chat goes on from the first" in caplog.text
    drop(model, "chat")


def test_what_a_policy_evicted_is_not_gone_back_to(model):
    with SparseCache("streaming?budget=32&sinks=4", name="evicted") as cache:
        model.generate(prompt(80), past_key_values=cache, **(GREEDY | dict(max_new_tokens=60)))
    with SparseCache("streaming?budget=32&sinks=4", name="evicted") as cache:
        with pytest.raises(ValueError, match="evicted holds 139 tokens, of which the prompt begins with"):
            model.generate(torch.cat([prompt(80)[:, :20], prompt(20, seed=2)], 1), past_key_values=cache, **GREEDY)
        for seq in cache.seqs:
            seq.drop()


def test_a_padded_prompt_of_a_named_sequence(model, stock):
    ids = prompt()
    with SparseCache("full", name="padded") as cache:
        model.generate(ids, past_key_values=cache, **GREEDY)
    padded, mask = torch.nn.functional.pad(ids, (3, 0)), torch.nn.functional.pad(torch.ones_like(ids), (3, 0))
    with SparseCache("full", name="padded") as cache:
        got = model.generate(padded, attention_mask=mask, past_key_values=cache, **GREEDY)
    assert got[:, 3:].tolist() == stock.generate(ids, **GREEDY).tolist()
    drop(model, "padded")


def test_names_are_of_token_ids(model):
    embeds = model.get_input_embeddings()(prompt())
    with SparseCache("full", name="embeds") as cache, pytest.raises(ValueError, match="records token ids, and not inputs_embeds"):
        model(inputs_embeds=embeds, past_key_values=cache)
    with SparseCache("full", name="moved") as cache, pytest.raises(ValueError, match="position_ids of row 0"):
        model(prompt(), position_ids=torch.arange(40)[None] + 3, past_key_values=cache)


# ---- masks


def test_a_batched_dialogue(model, stock):
    """The row that ended first was padded, and the next turn's mask hides the padding."""
    a, b = prompt(20, 2, 9), prompt(6, 2, 10)
    free = stock.generate(a, **GREEDY)[:, 20:].tolist()
    end = next(t for t in free[0][2:8] if t not in free[1])

    def turns(model, cache):
        first = model.generate(a, attention_mask=torch.ones_like(a), past_key_values=cache, **(GREEDY | dict(eos_token_id=end)))
        mask = torch.ones_like(first)
        mask[0, 20 + first[0, 20:].tolist().index(end) + 1 :] = 0
        x, mask = torch.cat([first, b], 1), torch.cat([mask, torch.ones_like(b)], 1)
        return model.generate(x, attention_mask=mask, past_key_values=cache, **GREEDY)[:, x.shape[1] :].tolist()

    assert turns(model, SparseCache("full")) == turns(stock, DynamicCache())


def test_a_mask_that_hides_what_is_there(model):
    with torch.no_grad(), SparseCache("full") as cache:
        model(prompt(), past_key_values=cache)
        mask = torch.ones(1, 41, dtype=torch.long)
        mask[0, 7] = 0
        with pytest.raises(ValueError, match="attention_mask is 0 in column 7 of row 0, where the cache has a token"):
            model(prompt(1), attention_mask=mask, past_key_values=cache)
        with pytest.raises(ValueError, match="attention_mask has 5 columns, expected 41"):
            model(prompt(1), attention_mask=mask[:, :5], past_key_values=cache)


def test_a_column_that_one_row_masks(model, stock):
    mask = torch.ones(2, 42, dtype=torch.long)
    mask[1, 40] = 0
    x, t, logits = prompt().repeat(2, 1), prompt(1, 2, 3), []
    with torch.no_grad():
        for m, cache in ((model, SparseCache("full")), (stock, DynamicCache())):
            m(x, past_key_values=cache)
            m(t, attention_mask=mask[:, :41], position_ids=torch.full((2, 1), 40), past_key_values=cache)
            logits.append(m(t, attention_mask=mask, position_ids=torch.tensor([[41], [40]]), past_key_values=cache).logits)
    assert (logits[0] - logits[1]).abs().max() < 1e-3


@pytest.mark.parametrize("family, change", [("Gemma3", dict(use_bidirectional_attention=True)), ("Llama", dict(is_causal=False))])
def test_bidirectional_attention_is_refused(family, change):
    model = make(family, 1, "sparsekv")
    for key, value in change.items():
        setattr(model.config, key, value)
    with SparseCache("full") as cache, pytest.raises(ValueError, match="not causal"):
        model(prompt(), past_key_values=cache)


def test_a_vision_tower_attends_by_itself():
    text = dict(model_type="llama", vocab_size=300, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=32, max_position_embeddings=512)  # fmt: skip
    vision = dict(model_type="clip_vision_model", hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                  image_size=32, patch_size=8, projection_dim=64)  # fmt: skip
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=299, vision_feature_layer=-1)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    x = prompt(48) % 240 + 10
    x[0, :16] = 299
    inputs = dict(input_ids=x, pixel_values=torch.randn(1, 3, 32, 32))
    with torch.no_grad():
        model.set_attn_implementation("eager")
        want = model(**inputs, past_key_values=DynamicCache()).logits
        model.set_attn_implementation("sparsekv")
        assert (model(**inputs, past_key_values=SparseCache("full")).logits - want).abs().max() < 1e-3
        with SparseCache("full", name="image") as cache, pytest.raises(ValueError, match="not pixel_values"):
            model(**inputs, past_key_values=cache)


# ---- gradients, copies


def test_a_backward_pass_raises(model):
    loss = model.train()(prompt(), labels=prompt(), past_key_values=SparseCache("full")).loss
    with pytest.raises(RuntimeError, match="no gradients"):
        loss.backward()


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_fork(model, stock, how, recwarn):
    want = stock.generate(prompt(), **GREEDY).tolist()
    with SparseCache("full") as cache:
        with torch.no_grad():
            model(prompt()[:, :30], past_key_values=cache)
        other = how(cache)
        assert model.generate(prompt(), past_key_values=other, **GREEDY).tolist() == want
        del other
        gc.collect()
        assert model.generate(prompt(), past_key_values=cache, **GREEDY).tolist() == want
    assert not recwarn.list


def test_pickles_are_refused(model):
    with SparseCache("full", model=model) as cache, pytest.raises(TypeError, match="cannot be pickled: expected SparseCache"):
        pickle.dumps(cache)


def test_crop_beyond_the_length(model):
    with torch.no_grad(), SparseCache("full") as cache:
        model(prompt(), past_key_values=cache)
        with pytest.raises(ValueError, match="the cache has 40 columns"):
            cache.crop(-41)


@pytest.mark.parametrize("call", ["name", "policy", "model_name", "fork", "socket"])
def test_a_nul_ends_no_name(model, call):
    """In C a NUL would end the name, which could then be that of another sequence."""
    with SparseCache("full", model=model) as cache, pytest.raises(ValueError, match=r"is 'a\\x00b', expected no NUL"):
        with torch.no_grad():
            model(prompt(), past_key_values=cache)
        if call == "fork":
            cache.fork(name="a\0b")
        elif call == "socket":
            sparsekv.Client("a\0b")
        elif call == "policy":
            cache.seqs[0].set_policy("a\0b")
        else:
            model.generate(prompt(), past_key_values=SparseCache(**{call: "a\0b"}), **GREEDY)
