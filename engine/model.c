/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/client.h>
#include "formats/checkpoint.h"

/* ---- the layout of the weights --------------------------------------------------------------- */

/* Divides one block of memory into parts. If `block` is NULL, the dealer only adds up the bytes. */
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

/* Returns memory for a vector that only some models have; NULL if this model does not have it. */
static float *deal_if(struct dealer *d, bool there, uint64_t n)
{
	return there ? deal(d, n, SKV_F32) : NULL;
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
			.qkv_bias = deal_if(d, c->qkv_bias, q + 2 * kv),
			.q_norm = deal_if(d, c->qk_norm, c->head_dim),
			.k_norm = deal_if(d, c->qk_norm, c->head_dim),
			.o = deal(d, h * q, m->dtype),
			.o_bias = deal_if(d, c->o_bias, h),
			.post_attention_norm = deal(d, h, SKV_F32),
			.gate_up = deal(d, 2 * (uint64_t)c->ffn * h, m->dtype),
			.gate_up_bias = deal_if(d, c->mlp_bias, 2 * (uint64_t)c->ffn),
			.down = deal(d, h * c->ffn, m->dtype),
			.down_bias = deal_if(d, c->mlp_bias, h),
		};
}

static int allocate(struct eng_model *m, struct eng_error *err)
{
	struct dealer d = {.block = NULL};
	int r;

	m->layers = calloc(m->config.n_layers, sizeof(*m->layers));
	m->attention = calloc(m->config.n_layers, sizeof(*m->attention));
	if (!m->layers || !m->attention)
		return eng_fail(err, -ENOMEM, "no memory for %u layers", m->config.n_layers);
	for (uint32_t l = 0; l < m->config.n_layers; l++)
		m->attention[l] = SKV_MODEL_LAYER(.window = m->config.window[l]);
	deal_model(m, &d);
	r = m->backend->ops->alloc(m->backend, d.used, &m->weights);
	if (r < 0)
		return eng_fail(err, r, "the weights, %zu MiB: %s", d.used >> 20, m->backend->ops->error());
	d = (struct dealer){.block = m->weights};
	deal_model(m, &d);
	return 0;
}

/* Returns row `row` of a matrix with rows of `n` elements. */
static void *row_of(const struct eng_model *m, void *matrix, uint64_t row, uint64_t n)
{
	return (uint8_t *)matrix + row * n * skv_dtype_bytes(m->dtype);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* number of elements that a thread converts at a time, or that are staged at a time for a device */
#define CHUNK (1u << 20)

struct loader {
	const struct skv_checkpoint *checkpoint;
	const struct eng_model *model;
	struct eng_error *err;
	float *staging; /* [CHUNK]: host memory for data on its way to a device; NULL for the host backend */
};

/* Converts a tensor to fp32 in host memory, with several threads, so that reading the files is the bottleneck. */
static void convert(const struct skv_tensor *t, uint64_t n, float *to)
{
#pragma omp parallel for schedule(dynamic) if (n > CHUNK)
	for (uint64_t at = 0; at < n; at += CHUNK)
		skv_tensor_floats(t, at, n - at < CHUNK ? n - at : CHUNK, to + at);
}

/* Copies a tensor to a device: bf16 without conversion, other types as fp32. */
static int send(const struct loader *l, const struct skv_tensor *t, uint64_t n, uint32_t dtype, void *to)
{
	struct eng_backend *p = l->model->backend;
	int r = 0;

	if (dtype == SKV_BF16)
		r = p->ops->put(p, to, t->data, n * sizeof(uint16_t));
	for (uint64_t at = 0; !r && dtype != SKV_BF16 && at < n; at += CHUNK) {
		uint64_t some = n - at < CHUNK ? n - at : CHUNK;

		skv_tensor_floats(t, at, some, l->staging);
		r = p->ops->put(p, (float *)to + at, l->staging, some * sizeof(float));
	}
	return r < 0 ? eng_fail(l->err, r, "%s", p->ops->error()) : 0;
}

/* Reads a tensor into memory of the backend. A vector (`cols` is 0) becomes fp32. */
static int read_tensor(const struct loader *l, const char *name, uint64_t rows, uint64_t cols, void *to)
{
	const uint64_t n = rows * (cols ? cols : 1);
	const struct skv_tensor *t;
	int r = skv_checkpoint_get(l->checkpoint, name, rows, cols, &t, l->err->text, sizeof(l->err->text));

	if (r)
		return r;
	if (l->staging)
		return send(l, t, n, cols ? l->model->dtype : SKV_F32, to);
	convert(t, n, to);
	return 0;
}

/* Reads a weight or a bias of a layer; `kind` is "weight" or "bias". */
static int read_part(const struct loader *l, uint32_t layer, const char *part, const char *kind, uint64_t rows,
                     uint64_t cols, void *to)
{
	char name[96];

	snprintf(name, sizeof(name), "model.layers.%u.%s.%s", layer, part, kind);
	return read_tensor(l, name, rows, cols, to);
}

/* Reads a matrix of a layer into the rows of `to` from row `at` on; also reads its bias unless `bias` is NULL. */
static int read_matrix(const struct loader *l, uint32_t layer, const char *part, uint64_t rows, uint64_t cols, void *to,
                       float *bias, uint64_t at)
{
	int r = read_part(l, layer, part, "weight", rows, cols, row_of(l->model, to, at, cols));

	return r || !bias ? r : read_part(l, layer, part, "bias", rows, 0, bias + at);
}

static int read_layer(const struct loader *l, uint32_t i)
{
	const struct eng_model *m = l->model;
	const struct eng_config *c = &m->config;
	const struct eng_layer *to = &m->layers[i];
	uint64_t h = c->hidden, q = (uint64_t)c->n_heads * c->head_dim;
	uint64_t kv = (uint64_t)c->n_kv_heads * c->head_dim;
	int r = read_part(l, i, "input_layernorm", "weight", h, 0, to->input_norm);

	r = r ? r : read_matrix(l, i, "self_attn.q_proj", q, h, to->qkv, to->qkv_bias, 0);
	r = r ? r : read_matrix(l, i, "self_attn.k_proj", kv, h, to->qkv, to->qkv_bias, q);
	r = r ? r : read_matrix(l, i, "self_attn.v_proj", kv, h, to->qkv, to->qkv_bias, q + kv);
	if (!r && c->qk_norm)
		r = read_part(l, i, "self_attn.q_norm", "weight", c->head_dim, 0, to->q_norm);
	if (!r && c->qk_norm)
		r = read_part(l, i, "self_attn.k_norm", "weight", c->head_dim, 0, to->k_norm);
	r = r ? r : read_matrix(l, i, "self_attn.o_proj", h, q, to->o, to->o_bias, 0);
	r = r ? r : read_part(l, i, "post_attention_layernorm", "weight", h, 0, to->post_attention_norm);
	r = r ? r : read_matrix(l, i, "mlp.gate_proj", c->ffn, h, to->gate_up, to->gate_up_bias, 0);
	r = r ? r : read_matrix(l, i, "mlp.up_proj", c->ffn, h, to->gate_up, to->gate_up_bias, c->ffn);
	return r ? r : read_matrix(l, i, "mlp.down_proj", h, c->ffn, to->down, to->down_bias, 0);
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

static int read_weights(const struct eng_model *m, const struct skv_checkpoint *checkpoint, struct eng_error *err)
{
	struct loader l = {.checkpoint = checkpoint, .model = m, .err = err};
	int r;

	if (m->backend->device != SKV_DEVICE_HOST) {
		l.staging = malloc(CHUNK * sizeof(*l.staging));
		if (!l.staging)
			return eng_fail(err, -ENOMEM, "no memory to read weights");
	}
	r = read_all(&l);
	free(l.staging);
	return r;
}

/* Returns whether all matrices are bf16. Norms and biases may have another dtype. */
static bool matrices_are_bf16(const struct skv_checkpoint *checkpoint)
{
	for (size_t f = 0; f < checkpoint->n_files; f++)
		for (size_t i = 0; i < checkpoint->file[f].n_tensors; i++) {
			const struct skv_tensor *t = &checkpoint->file[f].tensors[i];

			if (t->n_dims == 2 && t->dtype != SKV_BF16)
				return false;
		}
	return true;
}

/*
 * Returns whether the files contain an output matrix that differs from the embedding. If they do, the engine uses that
 * matrix even if "tie_word_embeddings" is true, as transformers does.
 */
static bool has_own_output(const struct skv_checkpoint *checkpoint, const struct eng_config *c)
{
	const struct skv_tensor *output, *embedding;
	char why[512];
	int r = skv_checkpoint_get(checkpoint, "lm_head.weight", c->vocab, c->hidden, &output, why, sizeof(why));

	if (r < 0)
		return r != -ENOENT;
	return skv_checkpoint_get(checkpoint, "model.embed_tokens.weight", c->vocab, c->hidden, &embedding, why, sizeof(why)) < 0 ||
	       output->dtype != embedding->dtype || memcmp(output->data, embedding->data, output->end - output->begin) != 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

/*
 * Adds the biases that are in the files, and so in the sum of the files, but that the configuration switches off: K and
 * V are others than with these biases.
 */
static void add_ignored(struct skv_identity *id, const struct skv_checkpoint *checkpoint, const struct eng_config *c)
{
	const struct {
		const char *name;
		bool is_read;
	} biases[] = {{"self_attn.q_proj", c->qkv_bias}, {"self_attn.k_proj", c->qkv_bias}, {"self_attn.v_proj", c->qkv_bias},
	              {"self_attn.o_proj", c->o_bias}, {"mlp.gate_proj", c->mlp_bias}, {"mlp.up_proj", c->mlp_bias},
	              {"mlp.down_proj", c->mlp_bias}};
	const struct skv_tensor *tensor;
	char name[80], why[256];

	for (uint32_t l = 0; l < c->n_layers; l++)
		for (size_t i = 0; i < sizeof(biases) / sizeof(biases[0]); i++) {
			snprintf(name, sizeof(name), "model.layers.%u.%s.bias", l, biases[i].name);
			if (!biases[i].is_read && skv_checkpoint_get(checkpoint, name, 1, 0, &tensor, why, sizeof(why)) != -ENOENT)
				skv_identity_add_text(id, "ignored", name);
		}
}

/*
 * Sets the model's name. The name consists of the model's family, and of a hash that identifies all weights and those
 * numbers of the configuration that the forward pass uses.
 */
static int set_name(struct eng_model *m, const struct skv_checkpoint *checkpoint, const char *directory, struct eng_error *err)
{
	const struct skv_model shape = eng_model_describe(m, SKV_F32);
	struct skv_identity id = SKV_IDENTITY_INIT;
	const struct skv_safetensors *changed;
	char family[SKV_NAME_MAX];
	size_t n = 0;
	int r;

	skv_identity_add_text(&id, "architecture", m->config.architecture);
	skv_identity_add_number(&id, "rms_norm_eps", m->config.rms_eps);
	skv_identity_add_shape(&id, &shape);
	add_ignored(&id, checkpoint, &m->config);
	r = skv_identity_add_files(&id, directory);
	if (r < 0)
		return eng_fail(err, r, "%s", skv_last_error());
	changed = skv_checkpoint_changed(checkpoint); /* the weights that were loaded must be those of the name */
	if (changed)
		return eng_fail(err, -ESTALE, "%.300s was replaced or changed while it was read: load the model again",
		                changed->path);
	for (const char *p = m->config.architecture; *p && strcmp(p, "ForCausalLM") != 0; p++)
		family[n++] = (char)tolower((unsigned char)*p);
	family[n] = 0;
	skv_identity_name(&id, family, m->name);
	return 0;
}

/* Stores the absolute path of the model's directory, if m->files has room for it. */
static void set_files(struct eng_model *m, const char *directory)
{
	char path[PATH_MAX];
	const char *real = realpath(directory, path);

	if (real && strlen(real) < sizeof(m->files))
		strcpy(m->files, real);
}

int eng_model_load(struct eng_model *ret, const char *directory, struct eng_backend *backend, uint32_t dtype,
                   struct eng_error *err)
{
	struct skv_checkpoint checkpoint = SKV_CHECKPOINT_NULL;
	struct eng_model m = {.backend = backend, .dtype = SKV_F32};
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/config.json", directory) >= (int)sizeof(path))
		return eng_fail(err, -ENAMETOOLONG, "%.200s…: the path is too long", directory);
	r = eng_config_load(&m.config, path, err);
	if (r)
		return r;
	r = skv_checkpoint_open(&checkpoint, directory, err->text, sizeof(err->text));
	if (!r && m.config.tied && has_own_output(&checkpoint, &m.config))
		m.config.tied = false;
	if (!r && backend->device != SKV_DEVICE_HOST && dtype == SKV_BF16 && matrices_are_bf16(&checkpoint))
		m.dtype = SKV_BF16;
	r = r ? r : allocate(&m, err);
	r = r ? r : read_weights(&m, &checkpoint, err);
	r = r ? r : set_name(&m, &checkpoint, directory, err);
	set_files(&m, directory);
	skv_checkpoint_deinit(&checkpoint);
	if (r) {
		eng_model_deinit(&m);
		return r;
	}
	*ret = m;
	return 0;
}

/* ---- random weights -------------------------------------------------------------------------- */

/*
 * Fills a matrix with random elements. Their scale is chosen so that a product with the matrix is about as large as its
 * input. The scale is a power of two, so that the elements are exact in bf16.
 */
static void fill_matrix(const struct eng_model *m, void *to, uint64_t rows, uint32_t n_in, uint32_t *seed)
{
	float scale = exp2f(roundf(log2f(sqrtf(3.0f / (float)n_in))));

	m->backend->ops->fill(m->backend, to, rows * n_in, m->dtype, scale, (*seed)++);
}

/*
 * Fills a vector with random values up to `scale`; does nothing if the model does not have the vector (`to` is NULL).
 */
static void fill_vector(const struct eng_model *m, float *to, uint32_t n, float scale, uint32_t *seed)
{
	if (to)
		m->backend->ops->fill(m->backend, to, n, SKV_F32, scale, (*seed)++);
}

static int fill_layer(const struct eng_model *m, const struct eng_layer *to, const float *ones, uint32_t *seed)
{
	const struct eng_config *c = &m->config;
	struct eng_backend *p = m->backend;
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	size_t norm = c->hidden * sizeof(*ones);
	int r = p->ops->put(p, to->input_norm, ones, norm);

	r = r ? r : p->ops->put(p, to->post_attention_norm, ones, norm);
	fill_matrix(m, to->qkv, q + 2 * kv, c->hidden, seed);
	fill_matrix(m, to->o, c->hidden, q, seed);
	fill_matrix(m, to->gate_up, 2 * (uint64_t)c->ffn, c->hidden, seed);
	fill_matrix(m, to->down, c->hidden, c->ffn, seed);
	fill_vector(m, to->qkv_bias, q + 2 * kv, 1, seed);
	fill_vector(m, to->q_norm, c->head_dim, 2, seed);
	fill_vector(m, to->k_norm, c->head_dim, 2, seed);
	fill_vector(m, to->o_bias, c->hidden, 0.5f, seed);
	fill_vector(m, to->gate_up_bias, 2 * c->ffn, 1, seed);
	fill_vector(m, to->down_bias, c->hidden, 0.5f, seed);
	return r;
}

static int fill_weights(const struct eng_model *m, const float *ones, uint32_t seed)
{
	const struct eng_config *c = &m->config;
	struct eng_backend *p = m->backend;
	int r = p->ops->put(p, m->final_norm, ones, c->hidden * sizeof(*ones));

	fill_matrix(m, m->embedding, c->vocab, c->hidden, &seed);
	if (!c->tied)
		fill_matrix(m, m->output, c->vocab, c->hidden, &seed);
	for (uint32_t l = 0; !r && l < c->n_layers; l++)
		r = fill_layer(m, &m->layers[l], ones, &seed);
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
	free(m->attention);
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
	d.layers = m->attention;
	memcpy(d.name, m->name, sizeof(d.name));
	memcpy(d.files, m->files, sizeof(d.files));
	return d;
}
