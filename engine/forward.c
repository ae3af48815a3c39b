/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "engine/ops.h"

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err)
{
	const struct eng_config *c = &model->config;
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	uint32_t wide = larger(q + 2 * kv, 2 * c->ffn);
	uint32_t width[] = {c->hidden, c->hidden, wide, larger(q, c->ffn), kv, kv, c->vocab};
	float **buffer[] = {&f->x, &f->h, &f->wide, &f->q, &f->k, &f->v, &f->logits};
	size_t floats = 0;

	*f = (struct eng_forward){.model = model, .max_rows = max_rows};
	for (size_t i = 0; i < sizeof(width) / sizeof(*width); i++)
		floats += ((size_t)width[i] * max_rows + 15) / 16 * 16;
	f->block = aligned_alloc(64, floats * sizeof(float));
	f->position = calloc(max_rows, sizeof(*f->position));
	if (!f->block || !f->position) {
		eng_forward_deinit(f);
		return eng_fail(err, -ENOMEM, "no memory for steps of %u rows", max_rows);
	}
	floats = 0;
	for (size_t i = 0; i < sizeof(width) / sizeof(*width); i++) {
		*buffer[i] = f->block + floats;
		floats += ((size_t)width[i] * max_rows + 15) / 16 * 16;
	}
	return 0;
}

void eng_forward_deinit(struct eng_forward *f)
{
	free(f->rope);
	free(f->position);
	free(f->block);
	*f = ENG_FORWARD_NULL;
}

static int grow_rope(struct eng_forward *f, uint32_t positions, struct eng_error *err)
{
	const struct eng_config *c = &f->model->config;
	uint32_t n = larger(f->rope_positions, 1024);

	if (positions <= f->rope_positions)
		return 0;
	while (n < positions)
		n *= 2;
	free(f->rope);
	f->rope = eng_rope_table(&c->rope, c->head_dim, n);
	f->rope_positions = f->rope ? n : 0;
	return f->rope ? 0 : eng_fail(err, -ENOMEM, "no memory for a rotary table of %u positions", n);
}

/* The rows' embeddings and positions. *ret_rows: how many; the rotary table reaches them all. */
static int embed(struct eng_forward *f, const struct skv_step_item *items, uint32_t n, uint32_t *ret_rows,
                 struct eng_error *err)
{
	const struct eng_config *c = &f->model->config;
	uint32_t rows = 0, longest = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = skv_seq_len(items[i].seq);

		if (items[i].n_tokens > f->max_rows - rows)
			return eng_fail(err, -EINVAL, "a step of more than %u rows", f->max_rows);
		for (uint32_t t = 0; t < items[i].n_tokens; t++, rows++) {
			int32_t id = items[i].tokens[t];

			if (id < 0 || (uint32_t)id >= c->vocab)
				return eng_fail(err, -EINVAL, "token id %d, the vocabulary has %u", id,
				                c->vocab);
			memcpy(f->x + (size_t)rows * c->hidden, f->model->embedding + (size_t)id * c->hidden,
			       c->hidden * sizeof(float));
			f->position[rows] = at + t;
		}
		longest = larger(longest, at + items[i].n_tokens);
	}
	*ret_rows = rows;
	return grow_rope(f, longest, err);
}

static int attention(struct eng_forward *f, struct skv_session *session, uint32_t l, uint32_t rows)
{
	const struct eng_config *c = &f->model->config;
	const struct eng_layer *w = &f->model->layers[l];
	const struct eng_heads heads = {c->n_heads, c->n_kv_heads, c->head_dim};
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	int r;

	eng_rmsnorm(f->h, f->x, w->input_norm, c->rms_eps, rows, c->hidden);
	eng_matmul(f->wide, f->h, w->qkv, rows, c->hidden, q + 2 * kv);
	eng_rope_split(f->q, f->k, f->v, f->wide, &heads, f->rope, f->position, rows);
	r = skv_attend(session, l, &(struct skv_attn){.q = f->q, .k = f->k, .v = f->v, .out = f->q});
	if (r < 0)
		return r;
	eng_matmul(f->h, f->q, w->o, rows, q, c->hidden);
	eng_add(f->x, f->h, (uint64_t)rows * c->hidden);
	return 0;
}

static void feed_forward(struct eng_forward *f, uint32_t l, uint32_t rows)
{
	const struct eng_config *c = &f->model->config;
	const struct eng_layer *w = &f->model->layers[l];

	eng_rmsnorm(f->h, f->x, w->post_attention_norm, c->rms_eps, rows, c->hidden);
	eng_matmul(f->wide, f->h, w->gate_up, rows, c->hidden, 2 * c->ffn);
	eng_swiglu(f->q, f->wide, rows, c->ffn);
	eng_matmul(f->h, f->q, w->down, rows, c->ffn, c->hidden);
	eng_add(f->x, f->h, (uint64_t)rows * c->hidden);
}

/* The decode rows, moved together, through the last norm and the output matrix. */
static void read_out(struct eng_forward *f, const struct skv_step_item *items, uint32_t n)
{
	const struct eng_config *c = &f->model->config;
	uint32_t row = 0, decoding = 0;

	for (uint32_t i = 0; i < n; row += items[i++].n_tokens)
		if (!(items[i].flags & SKV_STEP_PROMPT))
			memmove(f->x + (size_t)decoding++ * c->hidden, f->x + (size_t)row * c->hidden,
			        c->hidden * sizeof(float));
	if (!decoding)
		return;
	eng_rmsnorm(f->h, f->x, f->model->final_norm, c->rms_eps, decoding, c->hidden);
	eng_matmul(f->logits, f->h, f->model->output, decoding, c->hidden, c->vocab);
}

int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err)
{
	uint32_t rows = 0;
	int r = embed(f, items, n, &rows, err);

	if (r)
		return r;
	r = skv_step_begin(session, items, n, NULL);
	if (r < 0)
		return eng_fail(err, r, "%s", skv_last_error());
	for (uint32_t l = 0; l < f->model->config.n_layers; l++) {
		r = attention(f, session, l, rows);
		if (r < 0) {
			eng_fail(err, r, "%s", skv_last_error());
			skv_step_abort(session);
			return r;
		}
		feed_forward(f, l, rows);
	}
	read_out(f, items, n);
	return 0;
}
