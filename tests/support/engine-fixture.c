/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/engine-fixture.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/random.h"

/* ---- weights --------------------------------------------------------------------------------- */

#define TENSORS_MAX 64

struct fx_tensor {
	char name[80];
	uint32_t rows, cols; /* cols = 0: a vector */
	double *value;
	uint8_t *bytes; /* as in the file */
};

struct fx_weights {
	struct fx_tensor tensor[TENSORS_MAX];
	uint32_t n;
};

static size_t type_bytes(enum fx_type type)
{
	return type == FX_F32 ? 4 : 2;
}

/*
 * A random value of roughly the wanted size that the type represents exactly, and its bits. The bits come first and the
 * value follows from their definition, so the test checks the engine's conversion instead of repeating it.
 */
static double random_value(enum fx_type type, double size, uint8_t *bytes)
{
	int exponent = ilogb(size) - (int)rnd_below(3);
	unsigned negative = rnd_below(2), mantissa;
	uint32_t bits;

	if (type == FX_F16) {
		mantissa = rnd_below(1u << 10);
		bits = negative << 15 | (unsigned)(exponent + 15) << 10 | mantissa;
		memcpy(bytes, &bits, 2);
		return (negative ? -1 : 1) * ldexp(1 + mantissa / 1024.0, exponent);
	}
	mantissa = rnd_below(1u << 7);
	bits = negative << 31 | (unsigned)(exponent + 127) << 23 | mantissa << 16;
	if (type == FX_F32)
		memcpy(bytes, &bits, 4);
	else
		memcpy(bytes, (uint8_t *)&bits + 2, 2); /* the upper half; little-endian, like the file format */
	return (negative ? -1 : 1) * ldexp(1 + mantissa / 128.0, exponent);
}

static void add(struct fx_weights *w, enum fx_type type, uint32_t rows, uint32_t cols, double size,
                const char *name)
{
	struct fx_tensor *t = &w->tensor[w->n++];
	size_t n = (size_t)rows * (cols ? cols : 1), step = type_bytes(type);

	ck_assert_uint_le(w->n, TENSORS_MAX);
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->rows = rows;
	t->cols = cols;
	t->value = malloc(n * sizeof(*t->value));
	t->bytes = malloc(n * step);
	ck_assert(t->value && t->bytes);
	for (size_t i = 0; i < n; i++)
		t->value[i] = random_value(type, size, t->bytes + i * step);
}

struct fx_weights *fx_weights_new(const struct fx_model *m)
{
	struct fx_weights *w = calloc(1, sizeof(*w));
	uint32_t h = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
	double size = 1 / sqrt(h);

	ck_assert_ptr_nonnull(w);
	add(w, m->type, m->vocab, h, 1, "model.embed_tokens.weight");
	add(w, m->type, h, 0, 1, "model.norm.weight");
	if (!m->tied)
		add(w, m->type, m->vocab, h, size, "lm_head.weight");
	for (uint32_t l = 0; l < m->layers; l++) {
		const struct {
			const char *part;
			uint32_t rows, cols;
			double size;
		} parts[] = {
			{"input_layernorm", h, 0, 1},
			{"self_attn.q_proj", q, h, 2 * size},
			{"self_attn.k_proj", kv, h, 2 * size},
			{"self_attn.v_proj", kv, h, size},
			{"self_attn.o_proj", h, q, size},
			{"post_attention_layernorm", h, 0, 1},
			{"mlp.gate_proj", m->ffn, h, size},
			{"mlp.up_proj", m->ffn, h, size},
			{"mlp.down_proj", h, m->ffn, size},
		};
		char name[80];

		for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
			snprintf(name, sizeof(name), "model.layers.%u.%s.weight", l, parts[i].part);
			add(w, m->type, parts[i].rows, parts[i].cols, parts[i].size, name);
		}
	}
	return w;
}

void fx_weights_free(struct fx_weights *w)
{
	for (uint32_t i = 0; i < w->n; i++) {
		free(w->tensor[i].value);
		free(w->tensor[i].bytes);
	}
	free(w);
}

const double *fx_weight(const struct fx_weights *w, const char *name)
{
	for (uint32_t i = 0; i < w->n; i++)
		if (!strcmp(w->tensor[i].name, name))
			return w->tensor[i].value;
	ck_abort_msg("no weight %s", name);
}

void fx_model_write(const struct fx_model *m, const struct fx_weights *w, const char *folder)
{
	static const char *const types[] = {"F32", "F16", "BF16"};
	char *header = NULL, *config = NULL;
	size_t header_n = 0, at = 0;
	uint64_t length;
	FILE *f = open_memstream(&header, &header_n);

	for (uint32_t i = 0; i < w->n; i++) {
		const struct fx_tensor *t = &w->tensor[i];
		size_t n = (size_t)t->rows * (t->cols ? t->cols : 1) * type_bytes(m->type);

		fprintf(f, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%u", i ? ',' : '{', t->name, types[m->type],
		        t->rows);
		if (t->cols)
			fprintf(f, ",%u", t->cols);
		fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + n);
		at += n;
	}
	fprintf(f, "}");
	fclose(f);

	f = fopen(fx_path(folder, "model.safetensors"), "we");
	ck_assert_ptr_nonnull(f);
	length = header_n;
	fwrite(&length, 8, 1, f);
	fwrite(header, 1, header_n, f);
	for (uint32_t i = 0; i < w->n; i++)
		fwrite(w->tensor[i].bytes, type_bytes(m->type),
		       (size_t)w->tensor[i].rows * (w->tensor[i].cols ? w->tensor[i].cols : 1), f);
	ck_assert_int_eq(fclose(f), 0);
	free(header);

	ck_assert_int_gt(asprintf(&config,
	                          "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%u,"
	                          "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
	                          "\"num_key_value_heads\":%u,\"head_dim\":%u,"
	                          "\"intermediate_size\":%u,\"vocab_size\":%u,\"max_position_embeddings\":%u,"
	                          "\"rope_theta\":%g,\"rms_norm_eps\":%g,\"tie_word_embeddings\":%s,"
	                          "\"bos_token_id\":256,\"eos_token_id\":257}",
	                          m->hidden, m->layers, m->heads, m->kv_heads, m->head_dim, m->ffn, m->vocab,
	                          m->positions, m->theta, m->eps, m->tied ? "true" : "false"),
	                 0);
	fx_text(fx_path(folder, "config.json"), config);
	free(config);
}

/* ---- the reference --------------------------------------------------------------------------- */

static const double *layer_weight(const struct fx_weights *w, uint32_t l, const char *part)
{
	char name[80];

	snprintf(name, sizeof(name), "model.layers.%u.%s.weight", l, part);
	return fx_weight(w, name);
}

static void norm(double *y, const double *x, const double *w, double eps, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	for (uint32_t i = 0; i < n; i++)
		y[i] = x[i] / sqrt(sum / n + eps) * w[i];
}

static void product(double *y, const double *w, const double *x, uint32_t out, uint32_t in)
{
	for (uint32_t o = 0; o < out; o++) {
		y[o] = 0;
		for (uint32_t i = 0; i < in; i++)
			y[o] += w[(size_t)o * in + i] * x[i];
	}
}

static void rotate(const struct fx_model *m, double *head, uint32_t position)
{
	uint32_t half = m->head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		double angle = position / pow(m->theta, (double)i / half), a = head[i], b = head[half + i];

		head[i] = a * cos(angle) - b * sin(angle);
		head[half + i] = a * sin(angle) + b * cos(angle);
	}
}

/* Dense attention of one q head at token t over k and v rows [0, t]. */
static void attend(const struct fx_model *m, double *out, const double *q, const double *k, const double *v,
                   uint32_t t, uint32_t kv_head)
{
	uint32_t d = m->head_dim, stride = m->kv_heads * d;
	double weight[t + 1], sum = 0;

	for (uint32_t s = 0; s <= t; s++) {
		double dot = 0;

		for (uint32_t i = 0; i < d; i++)
			dot += q[i] * k[(size_t)s * stride + kv_head * d + i];
		sum += weight[s] = exp(dot / sqrt(d));
	}
	for (uint32_t i = 0; i < d; i++) {
		out[i] = 0;
		for (uint32_t s = 0; s <= t; s++)
			out[i] += weight[s] / sum * v[(size_t)s * stride + kv_head * d + i];
	}
}

/* One layer for all rows x [n][hidden]. */
static void layer(const struct fx_model *m, const struct fx_weights *w, uint32_t l, double *x, uint32_t n)
{
	uint32_t h = m->hidden, d = m->head_dim, q_n = m->heads * d, kv_n = m->kv_heads * d;
	double *k = malloc((size_t)n * kv_n * sizeof(*k)), *v = malloc((size_t)n * kv_n * sizeof(*v));
	double normed[h], q[q_n], out[q_n], back[h], gate[m->ffn], up[m->ffn];

	for (uint32_t t = 0; t < n; t++) {
		double *row = x + (size_t)t * h, *k_row = k + (size_t)t * kv_n;

		norm(normed, row, layer_weight(w, l, "input_layernorm"), m->eps, h);
		product(q, layer_weight(w, l, "self_attn.q_proj"), normed, q_n, h);
		product(k_row, layer_weight(w, l, "self_attn.k_proj"), normed, kv_n, h);
		product(v + (size_t)t * kv_n, layer_weight(w, l, "self_attn.v_proj"), normed, kv_n, h);
		for (uint32_t i = 0; i < m->kv_heads; i++)
			rotate(m, k_row + i * d, t);
		for (uint32_t i = 0; i < m->heads; i++) {
			rotate(m, q + i * d, t);
			attend(m, out + i * d, q + i * d, k, v, t, i / (m->heads / m->kv_heads));
		}
		product(back, layer_weight(w, l, "self_attn.o_proj"), out, h, q_n);
		for (uint32_t i = 0; i < h; i++)
			row[i] += back[i];
		norm(normed, row, layer_weight(w, l, "post_attention_layernorm"), m->eps, h);
		product(gate, layer_weight(w, l, "mlp.gate_proj"), normed, m->ffn, h);
		product(up, layer_weight(w, l, "mlp.up_proj"), normed, m->ffn, h);
		for (uint32_t i = 0; i < m->ffn; i++)
			gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
		product(back, layer_weight(w, l, "mlp.down_proj"), gate, h, m->ffn);
		for (uint32_t i = 0; i < h; i++)
			row[i] += back[i];
	}
	free(k);
	free(v);
}

double *fx_reference(const struct fx_model *m, const struct fx_weights *w, const int32_t *tokens, uint32_t n)
{
	const double *embedding = fx_weight(w, "model.embed_tokens.weight");
	double *x = malloc((size_t)n * m->hidden * sizeof(*x)),
	       *logits = malloc((size_t)n * m->vocab * sizeof(*logits));
	double normed[m->hidden];

	ck_assert(x && logits);
	for (uint32_t t = 0; t < n; t++)
		memcpy(x + (size_t)t * m->hidden, embedding + (size_t)tokens[t] * m->hidden,
		       m->hidden * sizeof(*x));
	for (uint32_t l = 0; l < m->layers; l++)
		layer(m, w, l, x, n);
	for (uint32_t t = 0; t < n; t++) {
		norm(normed, x + (size_t)t * m->hidden, fx_weight(w, "model.norm.weight"), m->eps, m->hidden);
		product(logits + (size_t)t * m->vocab, m->tied ? embedding : fx_weight(w, "lm_head.weight"),
		        normed, m->vocab, m->hidden);
	}
	free(x);
	return logits;
}
