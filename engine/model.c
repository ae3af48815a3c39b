/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/safetensors.h"

/* ---- where each weight goes ------------------------------------------------------------------ */

/* Deals out the parts of one block; with block = NULL it only counts. */
struct dealer {
	float *block;
	size_t used; /* floats */
};

static float *deal(struct dealer *d, uint64_t floats)
{
	float *part = d->block ? d->block + d->used : NULL;

	d->used += (floats + 15) / 16 * 16; /* keeps every part on a 64-byte line */
	return part;
}

static void deal_model(struct eng_model *m, struct dealer *d)
{
	const struct eng_config *c = &m->config;
	uint64_t h = c->hidden, q = (uint64_t)c->n_heads * c->head_dim;
	uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;

	m->embedding = deal(d, c->vocab * h);
	m->output = c->tied ? m->embedding : deal(d, c->vocab * h);
	m->final_norm = deal(d, h);
	for (uint32_t l = 0; l < c->n_layers; l++)
		m->layers[l] = (struct eng_layer){
			.input_norm = deal(d, h),
			.qkv = deal(d, (q + 2 * kv) * h),
			.o = deal(d, h * q),
			.post_attention_norm = deal(d, h),
			.gate_up = deal(d, 2 * (uint64_t)c->ffn * h),
			.down = deal(d, h * c->ffn),
		};
}

/* ---- reading --------------------------------------------------------------------------------- */

struct loader {
	const struct eng_safetensors *st;
	struct eng_error *err;
	uint32_t layer;
};

static int read_part(const struct loader *l, const char *part, uint64_t rows, uint64_t cols, float *to)
{
	char name[96];

	snprintf(name, sizeof(name), "model.layers.%u.%s.weight", l->layer, part);
	return eng_safetensors_read(l->st, name, rows, cols, to, l->err);
}

static int read_layer(const struct loader *l, const struct eng_config *c, const struct eng_layer *to)
{
	uint64_t h = c->hidden, q = (uint64_t)c->n_heads * c->head_dim;
	uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;
	int r = read_part(l, "input_layernorm", h, 0, to->input_norm);

	r = r ? r : read_part(l, "self_attn.q_proj", q, h, to->qkv);
	r = r ? r : read_part(l, "self_attn.k_proj", kv, h, to->qkv + q * h);
	r = r ? r : read_part(l, "self_attn.v_proj", kv, h, to->qkv + (q + kv) * h);
	r = r ? r : read_part(l, "self_attn.o_proj", h, q, to->o);
	r = r ? r : read_part(l, "post_attention_layernorm", h, 0, to->post_attention_norm);
	r = r ? r : read_part(l, "mlp.gate_proj", c->ffn, h, to->gate_up);
	r = r ? r : read_part(l, "mlp.up_proj", c->ffn, h, to->gate_up + c->ffn * h);
	return r ? r : read_part(l, "mlp.down_proj", h, c->ffn, to->down);
}

static int read_weights(struct eng_model *m, const struct eng_safetensors *st, struct eng_error *err)
{
	const struct eng_config *c = &m->config;
	int r = eng_safetensors_read(st, "model.embed_tokens.weight", c->vocab, c->hidden, m->embedding, err);

	if (!r && !c->tied)
		r = eng_safetensors_read(st, "lm_head.weight", c->vocab, c->hidden, m->output, err);
	if (!r)
		r = eng_safetensors_read(st, "model.norm.weight", c->hidden, 0, m->final_norm, err);
	for (uint32_t l = 0; !r && l < c->n_layers; l++)
		r = read_layer(&(struct loader){.st = st, .err = err, .layer = l}, c, &m->layers[l]);
	return r;
}

static int allocate(struct eng_model *m, struct eng_error *err)
{
	struct dealer d = {.block = NULL};

	m->layers = calloc(m->config.n_layers, sizeof(*m->layers));
	if (!m->layers)
		return eng_fail(err, -ENOMEM, "no memory for %u layers", m->config.n_layers);
	deal_model(m, &d);
	m->weights = aligned_alloc(64, d.used * sizeof(float));
	if (!m->weights)
		return eng_fail(err, -ENOMEM, "no memory for the weights: %zu MiB in fp32", d.used >> 18);
	d = (struct dealer){.block = m->weights};
	deal_model(m, &d);
	return 0;
}

/* "name of the directory-fingerprint", what is not printable ASCII left out. */
static void set_name(struct eng_model *m, const char *directory, uint32_t fingerprint)
{
	char real[PATH_MAX];
	const char *base = realpath(directory, real) ? strrchr(real, '/') + 1 : directory;
	size_t n = 0;

	for (const char *p = base; *p && n < sizeof(m->name) - 10; p++)
		if (*p > ' ' && *p < 127 && *p != '/')
			m->name[n++] = *p;
	snprintf(m->name + n, sizeof(m->name) - n, "-%08x", fingerprint);
}

int eng_model_load(struct eng_model *ret, const char *directory, struct eng_error *err)
{
	struct eng_safetensors st = ENG_SAFETENSORS_NULL;
	struct eng_model m = ENG_MODEL_NULL;
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/model.safetensors", directory) >= (int)sizeof(path))
		return eng_fail(err, -ENAMETOOLONG, "%.200s…: the path is too long", directory);
	snprintf(path, sizeof(path), "%s/config.json", directory);
	r = eng_config_load(&m.config, path, err);
	if (r)
		return r;
	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", directory);
	if (!access(path, F_OK))
		return eng_fail(err, -EINVAL, "%s: the weights are split; one model.safetensors expected",
		                path);
	snprintf(path, sizeof(path), "%s/model.safetensors", directory);
	r = eng_safetensors_open(&st, path, err);
	r = r ? r : allocate(&m, err);
	r = r ? r : read_weights(&m, &st, err);
	if (!r)
		set_name(&m, directory, eng_safetensors_fingerprint(&st));
	eng_safetensors_deinit(&st);
	if (r) {
		eng_model_deinit(&m);
		return r;
	}
	*ret = m;
	return 0;
}

void eng_model_deinit(struct eng_model *m)
{
	free(m->layers);
	free(m->weights);
	*m = ENG_MODEL_NULL;
}

struct skv_model eng_model_describe(const struct eng_model *m, uint32_t kv_dtype)
{
	struct skv_model d = SKV_MODEL_INIT;

	d.n_layers = m->config.n_layers;
	d.n_heads = m->config.n_heads;
	d.n_kv_heads = m->config.n_kv_heads;
	d.head_dim = m->config.head_dim;
	d.kv_dtype = kv_dtype;
	d.max_tokens = m->config.max_positions;
	memcpy(d.name, m->name, sizeof(d.name));
	return d;
}
