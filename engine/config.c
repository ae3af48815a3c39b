/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/config.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/types.h>

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

/* A whole number of 1 … most. A missing key takes `def` when that is not 0. */
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

/* A finite number above 0. A missing key takes `def` when that is not 0. */
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

/* A key that may be absent, null or false, and nothing else. */
static int get_off(const struct reader *r, const char *key)
{
	const json_t *v = json_object_get(r->root, key);

	return !v || json_is_null(v) || json_is_false(v)
	               ? 0
	               : bad(r, key, "null or false (nothing else is computed)");
}

/* The key, if there, must have this value. */
static int get_fixed(const struct reader *r, const char *key, const char *value)
{
	const char *s = json_string_value(json_object_get(r->root, key));
	char expected[64];

	if (!json_object_get(r->root, key) || (s && !strcmp(s, value)))
		return 0;
	snprintf(expected, sizeof(expected), "\"%s\"", value);
	return bad(r, key, expected);
}

/* A token id below the vocabulary; of a list the first one. */
static int get_token(const struct reader *r, const char *key, uint32_t vocab, int32_t *ret)
{
	const json_t *v = json_object_get(r->root, key);

	if (json_is_array(v))
		v = json_array_get(v, 0);
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)vocab)
		return bad(r, key, "a token id below vocab_size");
	*ret = (int32_t)json_integer_value(v);
	return 0;
}

/* ---- the parts of a configuration ------------------------------------------------------------ */

static int check_family(const struct reader *r)
{
	const json_t *list = json_object_get(r->root, "architectures");
	const char *name = json_string_value(json_array_get(list, 0));

	if (json_array_size(list) != 1 || !name ||
	    (strcmp(name, "LlamaForCausalLM") && strcmp(name, "MistralForCausalLM")))
		return bad(r, "architectures", "[\"LlamaForCausalLM\"] or [\"MistralForCausalLM\"]");
	if (get_fixed(r, "hidden_act", "silu"))
		return -EINVAL;
	if (get_off(r, "attention_bias") || get_off(r, "mlp_bias") || get_off(r, "sliding_window"))
		return -EINVAL;
	return json_object_get(r->root, "quantization_config")
	               ? bad(r, "quantization_config", "no quantized weights")
	               : 0;
}

static int get_shape(const struct reader *r, struct eng_config *c)
{
	if (get_count(r, "hidden_size", 0, 1u << 16, &c->hidden) ||
	    get_count(r, "num_hidden_layers", 0, SKV_MAX_LAYERS, &c->n_layers) ||
	    get_count(r, "num_attention_heads", 0, SKV_MAX_HEADS, &c->n_heads) ||
	    get_count(r, "num_key_value_heads", c->n_heads, c->n_heads, &c->n_kv_heads) ||
	    get_count(r, "intermediate_size", 0, 1u << 20, &c->ffn) ||
	    get_count(r, "vocab_size", 0, 1u << 20, &c->vocab) ||
	    get_count(r, "max_position_embeddings", 0, SKV_MAX_TOKENS, &c->max_positions))
		return -EINVAL;
	if (c->n_heads % c->n_kv_heads)
		return bad(r, "num_key_value_heads", "a divisor of num_attention_heads");
	if (get_count(r, "head_dim", c->hidden / c->n_heads, SKV_MAX_HEAD_DIM, &c->head_dim))
		return -EINVAL;
	if (c->head_dim % 16)
		return bad(r, "head_dim",
		           "a multiple of 16 (hidden_size / num_attention_heads when missing)");
	return 0;
}

static int get_llama3(const struct reader *r, struct skv_rope *rope)
{
	rope->type = SKV_ROPE_LLAMA3;
	if (get_positive(r, "factor", 0, &rope->factor) || get_positive(r, "low_freq_factor", 0, &rope->low) ||
	    get_positive(r, "high_freq_factor", 0, &rope->high) ||
	    get_positive(r, "original_max_position_embeddings", 0, &rope->original))
		return -EINVAL;
	return rope->high > rope->low ? 0 : bad(r, "high_freq_factor", "more than low_freq_factor");
}

/* "mscale" is of another family, "truncate" of a later variant. */
static int get_yarn(const struct reader *r, struct skv_rope *rope)
{
	const json_t *truncate = json_object_get(r->root, "truncate");

	rope->type = SKV_ROPE_YARN;
	if (get_positive(r, "factor", 0, &rope->factor) || get_positive(r, "beta_slow", 1, &rope->low) ||
	    get_positive(r, "beta_fast", 32, &rope->high) ||
	    get_positive(r, "original_max_position_embeddings", 0, &rope->original) ||
	    get_off(r, "mscale") || get_off(r, "mscale_all_dim"))
		return -EINVAL;
	if (truncate && !json_is_true(truncate))
		return bad(r, "truncate", "true");
	if (json_object_get(r->root, "attention_factor") && get_positive(r, "attention_factor", 0, &rope->attention))
		return -EINVAL;
	return rope->high > rope->low ? 0 : bad(r, "beta_fast", "more than beta_slow");
}

/* Newer files have everything in rope_parameters, older ones rope_theta and, if scaled, rope_scaling. */
static int get_rope(const struct reader *r, struct skv_rope *rope)
{
	const json_t *parameters = json_object_get(r->root, "rope_parameters");
	const json_t *scaling = parameters ? parameters : json_object_get(r->root, "rope_scaling");
	struct reader in = {.path = r->path, .root = scaling, .err = r->err};
	const struct reader *theta = parameters ? &in : r;
	const char *key, *type;

	if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
		return bad(r, parameters ? "rope_parameters" : "rope_scaling", "an object");
	if (get_positive(theta, "rope_theta", parameters ? 0 : 10000, &rope->theta))
		return -EINVAL;
	if (rope->theta <= 1)
		return bad(theta, "rope_theta", "a number above 1");
	rope->type = SKV_ROPE_DEFAULT;
	if (!json_is_object(scaling))
		return 0;
	if (json_object_get(scaling, "partial_rotary_factor") &&
	    json_number_value(json_object_get(scaling, "partial_rotary_factor")) != 1)
		return bad(&in, "partial_rotary_factor", "1");
	key = json_object_get(scaling, "rope_type") ? "rope_type" : "type";
	type = json_string_value(json_object_get(scaling, key));
	if (type && !strcmp(type, "default"))
		return 0;
	if (type && !strcmp(type, "linear")) {
		rope->type = SKV_ROPE_LINEAR;
		return get_positive(&in, "factor", 0, &rope->factor);
	}
	if (type && !strcmp(type, "llama3"))
		return get_llama3(&in, rope);
	if (type && !strcmp(type, "yarn"))
		return get_yarn(&in, rope);
	return bad(&in, key, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
}

int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err)
{
	struct eng_config c = {.hidden = 0};
	json_error_t je;
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
	struct reader r = {.path = path, .root = root, .err = err};
	double eps = 0;

	if (!root && json_error_code(&je) == json_error_cannot_open_file)
		return eng_fail(err, errno ? -errno : -EIO, "%s: %s", path, strerror(errno));
	if (!root)
		return eng_fail(err, -EINVAL, "%s:%d: %s", path, je.line, je.text);
	if (!json_is_object(root)) {
		json_decref(root);
		return eng_fail(err, -EINVAL, "%s: not a JSON object", path);
	}
	c.tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
	if (check_family(&r) || get_shape(&r, &c) || get_rope(&r, &c.rope) ||
	    get_positive(&r, "rms_norm_eps", 0, &eps) || get_token(&r, "bos_token_id", c.vocab, &c.bos) ||
	    get_token(&r, "eos_token_id", c.vocab, &c.eos)) {
		json_decref(root);
		return -EINVAL;
	}
	c.rms_eps = (float)eps;
	json_decref(root);
	*ret = c;
	return 0;
}
