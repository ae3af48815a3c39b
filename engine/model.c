/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "formats/safetensors.h"

/* ---- where each weight goes ------------------------------------------------------------------ */

/* Deals out the parts of one block; with block = NULL it only counts. */
struct dealer {
	uint8_t *block;
	size_t used; /* bytes */
};

static void *deal(struct dealer *d, uint64_t n, uint32_t dtype)
{
	void *part = d->block ? d->block + d->used : NULL;

	d->used += (n * skv_dtype_bytes(dtype) + 255) / 256 * 256;
	return part;
}

static void deal_model(struct eng_model *m, struct dealer *d)
{
	const struct eng_config *c = &m->config;
	uint64_t h = c->hidden, q = (uint64_t)c->n_heads * c->head_dim;
	uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;

	m->embedding = deal(d, c->vocab * h, m->dtype);
	m->output = c->tied ? m->embedding : deal(d, c->vocab * h, m->dtype);
	m->final_norm = deal(d, h, SKV_F32);
	for (uint32_t l = 0; l < c->n_layers; l++)
		m->layers[l] = (struct eng_layer){
			.input_norm = deal(d, h, SKV_F32),
			.qkv = deal(d, (q + 2 * kv) * h, m->dtype),
			.o = deal(d, h * q, m->dtype),
			.post_attention_norm = deal(d, h, SKV_F32),
			.gate_up = deal(d, 2 * (uint64_t)c->ffn * h, m->dtype),
			.down = deal(d, h * c->ffn, m->dtype),
		};
}

static int allocate(struct eng_model *m, struct eng_error *err)
{
	struct dealer d = {.block = NULL};
	int r;

	m->layers = calloc(m->config.n_layers, sizeof(*m->layers));
	if (!m->layers)
		return eng_fail(err, -ENOMEM, "no memory for %u layers", m->config.n_layers);
	deal_model(m, &d);
	r = m->backend->ops->alloc(m->backend, d.used, &m->weights);
	if (r < 0)
		return eng_fail(err, r, "the weights, %zu MiB: %s", d.used >> 20, m->backend->ops->error());
	d = (struct dealer){.block = m->weights};
	deal_model(m, &d);
	return 0;
}

/* The nth row of a matrix of rows of `n` elements. */
static void *row_of(const struct eng_model *m, void *matrix, uint64_t row, uint64_t n)
{
	return (uint8_t *)matrix + row * n * skv_dtype_bytes(m->dtype);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct loader {
	const struct skv_safetensors *st;
	const struct eng_model *model;
	struct eng_error *err;
	float *staging; /* where a tensor is on its way to a device; NULL on the host */
};

/* fp32 to bf16 in place, of values that both have. */
static void narrow(float *x, uint64_t n)
{
	uint8_t *bytes = (uint8_t *)x;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits;
		uint16_t high;

		memcpy(&bits, bytes + 4 * i, 4);
		high = (uint16_t)(bits >> 16);
		memcpy(bytes + 2 * i, &high, 2);
	}
}

/* A tensor into memory of the backend; a vector (cols = 0) stays fp32. */
static int read_tensor(const struct loader *l, const char *name, uint64_t rows, uint64_t cols, void *to)
{
	struct eng_backend *backend = l->model->backend;
	uint32_t dtype = cols ? l->model->dtype : SKV_F32;
	uint64_t n = rows * (cols ? cols : 1);
	int r = skv_safetensors_read(l->st, name, rows, cols, l->staging ? l->staging : to, l->err->text,
	                             sizeof(l->err->text));

	if (r || !l->staging)
		return r;
	if (dtype == SKV_BF16)
		narrow(l->staging, n);
	r = backend->ops->put(backend, to, l->staging, n * skv_dtype_bytes(dtype));
	return r < 0 ? eng_fail(l->err, r, "%s", backend->ops->error()) : 0;
}

static int read_part(const struct loader *l, uint32_t layer, const char *part, uint64_t rows, uint64_t cols,
                     void *to)
{
	char name[96];

	snprintf(name, sizeof(name), "model.layers.%u.%s.weight", layer, part);
	return read_tensor(l, name, rows, cols, to);
}

static int read_layer(const struct loader *l, uint32_t i)
{
	const struct eng_model *m = l->model;
	const struct eng_config *c = &m->config;
	const struct eng_layer *to = &m->layers[i];
	uint64_t h = c->hidden, q = (uint64_t)c->n_heads * c->head_dim;
	uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;
	int r = read_part(l, i, "input_layernorm", h, 0, to->input_norm);

	r = r ? r : read_part(l, i, "self_attn.q_proj", q, h, to->qkv);
	r = r ? r : read_part(l, i, "self_attn.k_proj", kv, h, row_of(m, to->qkv, q, h));
	r = r ? r : read_part(l, i, "self_attn.v_proj", kv, h, row_of(m, to->qkv, q + kv, h));
	r = r ? r : read_part(l, i, "self_attn.o_proj", h, q, to->o);
	r = r ? r : read_part(l, i, "post_attention_layernorm", h, 0, to->post_attention_norm);
	r = r ? r : read_part(l, i, "mlp.gate_proj", c->ffn, h, to->gate_up);
	r = r ? r : read_part(l, i, "mlp.up_proj", c->ffn, h, row_of(m, to->gate_up, c->ffn, h));
	return r ? r : read_part(l, i, "mlp.down_proj", h, c->ffn, to->down);
}

static int read_all(const struct loader *l)
{
	const struct eng_model *m = l->model;
	const struct eng_config *c = &m->config;
	int r = read_tensor(l, "model.embed_tokens.weight", c->vocab, c->hidden, m->embedding);

	if (!r && !c->tied)
		r = read_tensor(l, "lm_head.weight", c->vocab, c->hidden, m->output);
	r = r ? r : read_tensor(l, "model.norm.weight", c->hidden, 0, m->final_norm);
	for (uint32_t i = 0; !r && i < c->n_layers; i++)
		r = read_layer(l, i);
	return r;
}

static int read_weights(const struct eng_model *m, const struct skv_safetensors *st, struct eng_error *err)
{
	const struct eng_config *c = &m->config;
	struct loader l = {.st = st, .model = m, .err = err};
	uint64_t widest = (uint64_t)c->n_heads * c->head_dim;
	int r;

	if (m->backend->device != SKV_DEVICE_HOST) {
		widest = widest > c->ffn ? widest : c->ffn;
		widest = widest > c->vocab ? widest : c->vocab;
		l.staging = malloc(widest * c->hidden * sizeof(float));
		if (!l.staging)
			return eng_fail(err, -ENOMEM, "no memory for a matrix of %llu rows",
			                (unsigned long long)widest);
	}
	r = read_all(&l);
	free(l.staging);
	return r;
}

static bool all_bf16(const struct skv_safetensors *st)
{
	for (size_t i = 0; i < st->n_tensors; i++)
		if (st->tensors[i].dtype != SKV_BF16)
			return false;
	return true;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* "name of the directory-fingerprint", what is not printable ASCII left out; and where it is. */
static void set_name(struct eng_model *m, const char *directory, uint32_t fingerprint)
{
	char path[PATH_MAX];
	const char *real = realpath(directory, path), *base = real ? strrchr(real, '/') + 1 : directory;
	size_t n = 0;

	if (real && strlen(real) < sizeof(m->files))
		strcpy(m->files, real);
	for (const char *p = base; *p && n < sizeof(m->name) - 10; p++)
		if (*p > ' ' && *p < 127 && *p != '/')
			m->name[n++] = *p;
	snprintf(m->name + n, sizeof(m->name) - n, "-%08x", fingerprint);
}

int eng_model_load(struct eng_model *ret, const char *directory, struct eng_backend *backend, uint32_t dtype,
                   struct eng_error *err)
{
	struct skv_safetensors st = SKV_SAFETENSORS_NULL;
	struct eng_model m = {.backend = backend, .dtype = SKV_F32};
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
	r = skv_safetensors_open(&st, path, err->text, sizeof(err->text));
	if (!r && backend->device != SKV_DEVICE_HOST && dtype == SKV_BF16 && all_bf16(&st))
		m.dtype = SKV_BF16;
	r = r ? r : allocate(&m, err);
	r = r ? r : read_weights(&m, &st, err);
	if (!r)
		set_name(&m, directory, skv_safetensors_fingerprint(&st));
	skv_safetensors_deinit(&st);
	if (r) {
		eng_model_deinit(&m);
		return r;
	}
	*ret = m;
	return 0;
}

/* ---- random weights -------------------------------------------------------------------------- */

/* Rows of n_in random elements keep about the size of what they multiply; a power of two keeps them exact. */
static void fill_matrix(const struct eng_model *m, void *to, uint64_t rows, uint32_t n_in, uint32_t *seed)
{
	float scale = exp2f(roundf(log2f(sqrtf(3.0f / (float)n_in))));

	m->backend->ops->fill(m->backend, to, rows * n_in, m->dtype, scale, (*seed)++);
}

static int fill_weights(const struct eng_model *m, const float *ones, uint32_t seed)
{
	const struct eng_config *c = &m->config;
	struct eng_backend *p = m->backend;
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	size_t norm = c->hidden * sizeof(*ones);
	int r = p->ops->put(p, m->final_norm, ones, norm);

	fill_matrix(m, m->embedding, c->vocab, c->hidden, &seed);
	if (!c->tied)
		fill_matrix(m, m->output, c->vocab, c->hidden, &seed);
	for (uint32_t l = 0; !r && l < c->n_layers; l++) {
		const struct eng_layer *to = &m->layers[l];

		r = p->ops->put(p, to->input_norm, ones, norm);
		r = r ? r : p->ops->put(p, to->post_attention_norm, ones, norm);
		fill_matrix(m, to->qkv, q + 2 * kv, c->hidden, &seed);
		fill_matrix(m, to->o, c->hidden, q, &seed);
		fill_matrix(m, to->gate_up, 2 * (uint64_t)c->ffn, c->hidden, &seed);
		fill_matrix(m, to->down, c->hidden, c->ffn, &seed);
	}
	return r ? r : p->ops->check(p);
}

int eng_model_random(struct eng_model *ret, const struct eng_config *config, struct eng_backend *backend,
                     uint32_t dtype, uint32_t seed, struct eng_error *err)
{
	struct eng_model m = {.config = *config, .backend = backend, .dtype = dtype};
	float *ones = calloc(config->hidden, sizeof(*ones));
	int r = ones ? 0 : eng_fail(err, -ENOMEM, "no memory for %u floats", config->hidden);

	r = r ? r : allocate(&m, err);
	if (!r) {
		for (uint32_t i = 0; i < config->hidden; i++)
			ones[i] = 1;
		r = fill_weights(&m, ones, seed);
		if (r < 0)
			eng_fail(err, r, "%s", backend->ops->error());
	}
	free(ones);
	if (r) {
		eng_model_deinit(&m);
		return r;
	}
	snprintf(m.name, sizeof(m.name), "random-%08x", seed);
	*ret = m;
	return 0;
}

void eng_model_deinit(struct eng_model *m)
{
	free(m->layers);
	if (m->weights)
		m->backend->ops->free(m->backend, m->weights);
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
	d.io_dtype = m->dtype;
	d.device = m->backend->device;
	d.max_tokens = m->config.max_positions;
	d.rope = m->config.rope;
	memcpy(d.name, m->name, sizeof(d.name));
	memcpy(d.files, m->files, sizeof(d.files));
	return d;
}
