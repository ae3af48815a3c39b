/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/types.h>
#include "formats/json.h"

struct reader {
	const char *path;
	const json_t *root;
	struct eng_error *err;
};

static int bad(const struct reader *r, const char *key, const char *expected)
{
	const json_t *v = json_object_get(r->root, key);
	char *is = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

	eng_fail(r->err, -EINVAL, "%s: \"%s\" is %.80s, %s expected", r->path, key, is ? is : "missing",
	         expected);
	free(is);
	return -EINVAL;
}

/* ---- values by key --------------------------------------------------------------------------- */

/* Reads a whole number from 1 to `most`. If the key is missing or null, the value is `def`; 0: the key is required. */
static int get_count(const struct reader *r, const char *key, uint32_t def, uint32_t most, uint32_t *ret)
{
	const json_t *v = json_object_get(r->root, key);
	char expected[48];

	if ((!v || json_is_null(v)) && def) {
		*ret = def;
		return 0;
	}
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > (json_int_t)most) {
		snprintf(expected, sizeof(expected), "a whole number from 1 to %u", most);
		return bad(r, key, expected);
	}
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

/* Reads a number above 0. If the key is missing or null, the value is `def`; 0: the key is required. */
static int get_positive(const struct reader *r, const char *key, double def, double *ret)
{
	const json_t *v = json_object_get(r->root, key);

	if ((!v || json_is_null(v)) && def > 0) {
		*ret = def;
		return 0;
	}
	if (!json_is_number(v) || !(json_number_value(v) > 0))
		return bad(r, key, "a number above 0");
	*ret = json_number_value(v);
	return 0;
}

/* Checks that a key is missing, null or false. */
static int get_off(const struct reader *r, const char *key)
{
	const json_t *v = json_object_get(r->root, key);

	return !v || json_is_null(v) || json_is_false(v)
	               ? 0
	               : bad(r, key, "null or false (nothing else is computed)");
}

/* Reads true or false; a missing key means false. */
static int get_bool(const struct reader *r, const char *key, bool *ret)
{
	const json_t *v = json_object_get(r->root, key);

	if (v && !json_is_null(v) && !json_is_boolean(v))
		return bad(r, key, "true or false");
	*ret = json_is_true(v);
	return 0;
}

/* Checks that a key is missing or has this value. */
static int get_fixed(const struct reader *r, const char *key, const char *value)
{
	const char *s = json_string_value(json_object_get(r->root, key));
	char expected[64];

	if (!json_object_get(r->root, key) || (s && !strcmp(s, value)))
		return 0;
	snprintf(expected, sizeof(expected), "\"%s\"", value);
	return bad(r, key, expected);
}

static bool is_token(const json_t *v, uint32_t vocab)
{
	return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (json_int_t)vocab;
}

/*
 * Reads the token ids bos and eos. bos is a token id below vocab_size, or missing. eos is one token id, a list of token
 * ids, or missing; without eos, no token ends a text.
 */
static int get_ends(const struct reader *r, struct eng_config *c)
{
	const json_t *bos = json_object_get(r->root, "bos_token_id"), *eos = json_object_get(r->root, "eos_token_id");
	const bool list = json_is_array(eos);
	const size_t n = list ? json_array_size(eos) : eos && !json_is_null(eos);

	if (bos && !json_is_null(bos) && !is_token(bos, c->vocab))
		return bad(r, "bos_token_id", "a token id below vocab_size, or null");
	c->bos = json_is_integer(bos) ? (int32_t)json_integer_value(bos) : -1;
	if (n > ENG_EOS_MOST)
		return bad(r, "eos_token_id", "a token id below vocab_size, a list of up to 8, or null");
	for (c->n_eos = 0; c->n_eos < n; c->n_eos++) {
		const json_t *v = list ? json_array_get(eos, c->n_eos) : eos;

		if (!is_token(v, c->vocab))
			return bad(r, "eos_token_id", "a token id below vocab_size, a list of up to 8, or null");
		c->eos_list[c->n_eos] = (int32_t)json_integer_value(v);
	}
	c->eos = n ? c->eos_list[0] : -1;
	return 0;
}

/* ---- the parts of a configuration ------------------------------------------------------------ */

/* What all models of an architecture have, and which keys config.json may have. */
struct family {
	const char *name;
	bool may_bias;          /* "attention_bias" is allowed: biases of q, k, v and o */
	bool may_bias_mlp;      /* "mlp_bias" is allowed */
	/* every model of the architecture has biases of q, k and v; has RMS norms of q and k heads */
	bool qkv_bias, qk_norm;
	uint32_t kv_heads;      /* default of num_key_value_heads; 0: num_attention_heads */
	uint32_t head_dim;      /* default of head_dim; 0: hidden_size / num_attention_heads */
	enum { ALL_TOKENS, ONE_WINDOW, WINDOWS_BY_LAYER } windows;
};

static const struct family families[] = {
	{"LlamaForCausalLM", .may_bias = true, .may_bias_mlp = true},
	{"MistralForCausalLM", .kv_heads = 8, .windows = ONE_WINDOW},
	{"Qwen2ForCausalLM", .qkv_bias = true, .kv_heads = 32, .windows = WINDOWS_BY_LAYER},
	{"Qwen3ForCausalLM", .may_bias = true, .qk_norm = true, .kv_heads = 32, .head_dim = 128,
	 .windows = WINDOWS_BY_LAYER},
};

static const struct family *family_of(const struct reader *r)
{
	const json_t *list = json_object_get(r->root, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	for (size_t i = 0; name && json_array_size(list) == 1 && i < sizeof(families) / sizeof(*families); i++)
		if (!strcmp(name, families[i].name))
			return &families[i];
	bad(r, "architectures", "one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
	return NULL;
}

static int get_family(const struct reader *r, const struct family *f, struct eng_config *c)
{
	bool bias = false;

	if (get_fixed(r, "hidden_act", "silu") || get_bool(r, "tie_word_embeddings", &c->tied) ||
	    (f->may_bias ? get_bool(r, "attention_bias", &bias) : get_off(r, "attention_bias")) ||
	    (f->may_bias_mlp ? get_bool(r, "mlp_bias", &c->mlp_bias) : get_off(r, "mlp_bias")))
		return -EINVAL;
	c->qkv_bias = bias || f->qkv_bias;
	c->o_bias = bias;
	c->qk_norm = f->qk_norm;
	return get_off(r, "quantization_config");
}

static int get_shape(const struct reader *r, const struct family *f, struct eng_config *c)
{
	const bool said = json_object_get(r->root, "num_key_value_heads"); /* the key is there, even if it is null */

	if (get_count(r, "hidden_size", 0, 1u << 16, &c->hidden) ||
	    get_count(r, "num_hidden_layers", 0, SKV_MAX_LAYERS, &c->n_layers) ||
	    get_count(r, "num_attention_heads", 0, SKV_MAX_HEADS, &c->n_heads) ||
	    get_count(r, "num_key_value_heads", said || !f->kv_heads ? c->n_heads : f->kv_heads, c->n_heads,
	              &c->n_kv_heads) ||
	    get_count(r, "intermediate_size", 0, 1u << 20, &c->ffn) ||
	    get_count(r, "vocab_size", 0, 1u << 20, &c->vocab) ||
	    get_count(r, "max_position_embeddings", 0, SKV_MAX_TOKENS, &c->max_positions))
		return -EINVAL;
	if (c->n_heads % c->n_kv_heads)
		return bad(r, "num_key_value_heads", "a divisor of num_attention_heads");
	if (get_count(r, "head_dim", f->head_dim ? f->head_dim : c->hidden / c->n_heads, SKV_MAX_HEAD_DIM, &c->head_dim))
		return -EINVAL;
	if (c->head_dim % 16 || c->head_dim > SKV_MAX_HEAD_DIM)
		return bad(r, "head_dim",
		           "a multiple of 16 up to 256 (hidden_size / num_attention_heads when missing)");
	return 0;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Reads "layer_types". If the key is missing, the layers from `first` on have a sliding window of `window` tokens. */
static int get_layer_types(const struct reader *r, uint32_t window, uint32_t first, struct eng_config *c)
{
	const json_t *types = json_object_get(r->root, "layer_types");

	if (!types || json_is_null(types)) {
		for (uint32_t l = first; l < c->n_layers; l++)
			c->window[l] = window;
		return 0;
	}
	if (json_array_size(types) != c->n_layers)
		return bad(r, "layer_types", "a list of num_hidden_layers words");
	for (uint32_t l = 0; l < c->n_layers; l++) {
		const char *type = json_string_value(json_array_get(types, l));

		if (type && !strcmp(type, "sliding_attention") && window)
			c->window[l] = window;
		else if (!type || strcmp(type, "full_attention"))
			return bad(r, "layer_types",
			           window ? "\"full_attention\" or \"sliding_attention\" for each layer"
			                  : "\"full_attention\" for each layer, as there is no sliding window");
	}
	return 0;
}

/* Reads "max_window_layers": the number of first layers that attend to all tokens; may be 0. */
static int get_first_window(const struct reader *r, uint32_t *ret)
{
	const json_t *v = json_object_get(r->root, "max_window_layers");

	*ret = 0;
	return json_is_integer(v) && json_integer_value(v) == 0
	               ? 0
	               : get_count(r, "max_window_layers", 28, 1u << 16, ret);
}

/*
 * Reads the sliding windows. Without "sliding_window", Mistral models have windows of 4,096 tokens. Qwen models have no
 * sliding windows unless "use_sliding_window" is true, whatever the other keys are.
 */
static int get_windows(const struct reader *r, const struct family *f, struct eng_config *c)
{
	const json_t *window = json_object_get(r->root, "sliding_window");
	uint32_t size = 0, first = 0;
	bool use = true;

	if (f->windows == ALL_TOKENS)
		return get_off(r, "sliding_window") ? -EINVAL : get_layer_types(r, 0, 0, c);
	if (f->windows == ONE_WINDOW && get_off(r, "layer_types"))
		return -EINVAL;
	if (f->windows == WINDOWS_BY_LAYER && (get_bool(r, "use_sliding_window", &use) || get_first_window(r, &first)))
		return -EINVAL;
	if (use && !json_is_null(window) && get_count(r, "sliding_window", 4096, UINT32_MAX, &size))
		return -EINVAL;
	return get_layer_types(r, size, first, c);
}

/* ---- rotary positions ------------------------------------------------------------------------ */

/* Where get_rope() reads. A key of config.json takes precedence over the same key in the object, as in transformers. */
struct rope_reader {
	struct reader in; /* the object "rope_scaling" or "rope_parameters" */
	const struct reader *beside;
	uint32_t max_positions;
};

static int get_original(const struct rope_reader *r, struct skv_rope *rope)
{
	const char *const key = "original_max_position_embeddings";

	return get_positive(json_object_get(r->beside->root, key) ? r->beside : &r->in, key, r->max_positions,
	                    &rope->original);
}

static int get_llama3(const struct rope_reader *r, struct skv_rope *rope)
{
	rope->type = SKV_ROPE_LLAMA3;
	if (get_positive(&r->in, "factor", 0, &rope->factor) ||
	    get_positive(&r->in, "low_freq_factor", 0, &rope->low) ||
	    get_positive(&r->in, "high_freq_factor", 0, &rope->high) || get_original(r, rope))
		return -EINVAL;
	return rope->high > rope->low ? 0 : bad(&r->in, "high_freq_factor", "more than low_freq_factor");
}

static double mscale(double factor, double by)
{
	return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

/*
 * Reads the factor that cosines and sines are multiplied by: "attention_factor", or else the quotient of "mscale" and
 * "mscale_all_dim" (DeepSeek) if both are given. If neither is given, skv_rope_scale() computes it from "factor".
 */
static int get_attention(const struct reader *r, struct skv_rope *rope)
{
	const json_t *attention = json_object_get(r->root, "attention_factor");
	double numerator = json_number_value(json_object_get(r->root, "mscale"));
	double denominator = json_number_value(json_object_get(r->root, "mscale_all_dim"));

	if (attention && !json_is_null(attention))
		return get_positive(r, "attention_factor", 0, &rope->attention);
	if (numerator == 0 || denominator == 0)
		return 0;
	if (get_positive(r, "mscale", 0, &numerator) || get_positive(r, "mscale_all_dim", 0, &denominator))
		return -EINVAL;
	rope->attention = mscale(rope->factor, numerator) / mscale(rope->factor, denominator);
	return 0;
}

/*
 * Reads the parameters of YaRN. The key "truncate" exists only in a later variant of YaRN; only its default, true, is
 * supported.
 */
static int get_yarn(const struct rope_reader *r, struct skv_rope *rope)
{
	const json_t *truncate = json_object_get(r->in.root, "truncate");

	rope->type = SKV_ROPE_YARN;
	if (get_positive(&r->in, "factor", 0, &rope->factor) || get_positive(&r->in, "beta_slow", 1, &rope->low) ||
	    get_positive(&r->in, "beta_fast", 32, &rope->high) || get_original(r, rope) ||
	    get_attention(&r->in, rope))
		return -EINVAL;
	if (truncate && !json_is_true(truncate))
		return bad(&r->in, "truncate", "true");
	return rope->high > rope->low ? 0 : bad(&r->in, "beta_fast", "more than beta_slow");
}

static int get_scaling(const struct rope_reader *r, struct skv_rope *rope)
{
	const char *key = json_object_get(r->in.root, "rope_type") ? "rope_type" : "type";
	const char *type = json_string_value(json_object_get(r->in.root, key));

	if (type && !strcmp(type, "default"))
		return 0;
	if (type && !strcmp(type, "linear")) {
		rope->type = SKV_ROPE_LINEAR;
		return get_positive(&r->in, "factor", 0, &rope->factor);
	}
	if (type && !strcmp(type, "llama3"))
		return get_llama3(r, rope);
	if (type && !strcmp(type, "yarn"))
		return get_yarn(r, rope);
	return bad(&r->in, key, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
}

static int whole_head(const struct reader *r)
{
	const json_t *part = json_object_get(r->root, "partial_rotary_factor");

	return !part || json_is_null(part) || json_number_value(part) == 1 ? 0 : bad(r, "partial_rotary_factor", "1");
}

/*
 * Reads the rotary embedding. Older files have the key rope_theta and, if positions are scaled, the object
 * rope_scaling; newer files have both in the object rope_parameters.
 */
static int get_rope(const struct reader *r, uint32_t max_positions, struct skv_rope *rope)
{
	const char *key = "rope_scaling";
	const json_t *scaling = json_object_get(r->root, key);
	struct rope_reader in = {.in = *r, .beside = r, .max_positions = max_positions};
	const struct reader *theta = r;

	if (!scaling || json_is_null(scaling))
		scaling = json_object_get(r->root, key = "rope_parameters");
	if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
		return bad(r, key, "an object");
	in.in.root = scaling;
	if (json_object_get(scaling, "rope_theta"))
		theta = &in.in;
	if (get_positive(theta, "rope_theta", 10000, &rope->theta))
		return -EINVAL;
	if (rope->theta <= 1)
		return bad(theta, "rope_theta", "a number above 1");
	rope->type = SKV_ROPE_DEFAULT;
	if (whole_head(r))
		return -EINVAL;
	if (!json_is_object(scaling))
		return 0;
	return whole_head(&in.in) ? -EINVAL : get_scaling(&in, rope);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int get_all(const struct reader *r, struct eng_config *c)
{
	const struct family *f = family_of(r);
	double eps = 0;

	if (!f || get_family(r, f, c) || get_shape(r, f, c) || get_windows(r, f, c) ||
	    get_rope(r, c->max_positions, &c->rope) || get_positive(r, "rms_norm_eps", 0, &eps) || get_ends(r, c))
		return -EINVAL;
	c->architecture = f->name;
	c->rms_eps = (float)eps;
	return 0;
}

int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err)
{
	struct eng_config c = {.hidden = 0};
	json_t *root = NULL;
	int r = skv_json_load(&root, path, JSON_REJECT_DUPLICATES, err->text, sizeof(err->text));
	struct reader in = {.path = path, .root = root, .err = err};

	if (r < 0)
		return r == -EBADMSG ? -EINVAL : r;
	if (!json_is_object(root)) {
		json_decref(root);
		return eng_fail(err, -EINVAL, "%s: not a JSON object", path);
	}
	r = get_all(&in, &c);
	json_decref(root);
	if (!r)
		*ret = c;
	return r;
}

bool eng_config_ends(const struct eng_config *c, int32_t id)
{
	for (uint32_t i = 0; i < c->n_eos; i++)
		if (c->eos_list[i] == id)
			return true;
	return false;
}
