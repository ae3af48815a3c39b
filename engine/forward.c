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

static int library(int r, struct eng_error *err)
{
	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

static int backend_failed(const struct eng_forward *f, int r, struct eng_error *err)
{
	return r < 0 ? eng_fail(err, r, "%s", f->model->backend->ops->error()) : 0;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static int allocate(struct eng_forward *f, struct eng_error *err)
{
	const struct eng_config *c = &f->model->config;
	struct eng_backend *p = f->model->backend;
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	size_t element = skv_dtype_bytes(f->model->dtype);
	const struct {
		void *at;
		size_t bytes; /* bytes of a row */
	} part[] = {
		{&f->x, c->hidden * sizeof(float)},
		{&f->h, c->hidden * element},
		{&f->wide, larger(larger(q + 2 * kv, 2 * c->ffn), c->hidden) * sizeof(float)},
		{&f->q, larger(q, c->ffn) * element},
		{&f->k, kv * element},
		{&f->v, kv * element},
		{&f->logits, c->vocab * sizeof(float)},
		{&f->id, sizeof(*f->id)},
		{&f->position, sizeof(*f->position)},
		{&f->from, sizeof(*f->from)},
	};
	size_t at = 0;
	void *seen;
	int r;

	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++)
		at += (part[i].bytes * f->max_rows + 255) / 256 * 256;
	r = p->ops->alloc(p, at, &f->block);
	r = r ? r : p->ops->alloc_host(p, f->max_rows * sizeof(*f->seen_id), &seen);
	if (r < 0)
		return eng_fail(err, r, "buffers for steps of %u rows: %s", f->max_rows, p->ops->error());
	f->seen_id = seen;
	at = 0;
	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++) {
		*(void **)part[i].at = (uint8_t *)f->block + at;
		at += (part[i].bytes * f->max_rows + 255) / 256 * 256;
	}
	return 0;
}

int eng_forward_init(struct eng_forward *f, const struct eng_model *model, uint32_t max_rows,
                     struct eng_error *err)
{
	int r;

	*f = (struct eng_forward){.model = model, .max_rows = max_rows};
	f->rows.id = calloc(max_rows, sizeof(*f->rows.id));
	f->rows.position = calloc(max_rows, sizeof(*f->rows.position));
	f->rows.from = calloc(max_rows, sizeof(*f->rows.from));
	f->rows.expected = calloc(max_rows, sizeof(*f->rows.expected));
	if (!f->rows.id || !f->rows.position || !f->rows.from || !f->rows.expected)
		r = eng_fail(err, -ENOMEM, "no memory for steps of %u rows", max_rows);
	else
		r = allocate(f, err);
	if (r)
		eng_forward_deinit(f);
	return r;
}

void eng_forward_deinit(struct eng_forward *f)
{
	if (f->model) {
		struct eng_backend *p = f->model->backend;

		eng_recordings_forget(&f->recordings, p);
		p->ops->free(p, f->block);
		p->ops->free(p, f->rope);
		p->ops->free_host(p, f->seen_id);
		p->ops->free_host(p, f->seen_logits);
	}
	free(f->rows.id);
	free(f->rows.position);
	free(f->rows.from);
	free(f->rows.expected);
	*f = ENG_FORWARD_NULL;
}

static int grow_rope(struct eng_forward *f, uint32_t positions, struct eng_error *err)
{
	const struct eng_config *c = &f->model->config;
	struct eng_backend *p = f->model->backend;
	uint32_t n = larger(f->rope_positions, 1024);
	size_t bytes;
	void *at = NULL;
	float *table;
	int r;

	if (positions <= f->rope_positions)
		return 0;
	while (n < positions)
		n *= 2;
	bytes = (size_t)n * c->head_dim * sizeof(*table);
	table = eng_rope_table(&c->rope, c->head_dim, n);
	if (!table)
		return eng_fail(err, -ENOMEM, "no memory for a rotary table of %u positions", n);
	r = p->ops->alloc(p, bytes, &at);
	r = r ? r : p->ops->put(p, at, table, bytes);
	free(table);
	if (r < 0) {
		p->ops->free(p, at);
		return backend_failed(f, r, err);
	}
	eng_recordings_forget(&f->recordings, p);
	p->ops->free(p, f->rope);
	f->rope = at;
	f->rope_positions = n;
	return 0;
}

/* ---- input ----------------------------------------------------------------------------------- */

/* The numbers of rows in a step, and where its input tokens are. */
struct step {
	uint32_t rows, decoding; /* number of rows; number of decode rows */
	bool chosen;             /* the input tokens are those in f->id, chosen by the last step */
};

/* Checks the items and fills f->rows. */
static int read_items(struct eng_forward *f, const struct skv_step_item *items, uint32_t n, struct step *s,
                      struct eng_error *err)
{
	uint32_t vocab = f->model->config.vocab, longest = 0;

	*s = (struct step){.chosen = n && !items[0].tokens};
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = skv_seq_len(items[i].seq);

		if (items[i].n_tokens > f->max_rows - s->rows)
			return eng_fail(err, -EINVAL, "a step of more than %u rows", f->max_rows);
		if (!items[i].tokens != s->chosen || (s->chosen && (items[i].flags & SKV_STEP_PROMPT)))
			return eng_fail(err, -EINVAL,
			                "token ids for all items expected, or decode rows and no ids");
		for (uint32_t t = 0; t < items[i].n_tokens; t++, s->rows++) {
			int32_t id = s->chosen ? 0 : items[i].tokens[t];

			if (id < 0 || (uint32_t)id >= vocab)
				return eng_fail(err, -EINVAL, "token id %d, the vocabulary has %u", id,
				                vocab);
			f->rows.id[s->rows] = id;
			f->rows.position[s->rows] = at + t;
			if (!(items[i].flags & SKV_STEP_PROMPT))
				f->rows.from[s->decoding++] = s->rows;
		}
		longest = larger(longest, at + items[i].n_tokens);
	}
	if (s->chosen && s->rows != f->n_chosen)
		return eng_fail(err, -EINVAL, "%u rows without token ids, the last step chose %u", s->rows,
		                f->n_chosen);
	return grow_rope(f, longest, err);
}

/*
 * Copies the step's input to the backend, except for what is already there: chosen ids, and positions that continue
 * those of the last step.
 */
static int put_rows(struct eng_forward *f, const struct step *s, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;
	size_t bytes = s->rows * sizeof(*f->position);
	bool known = s->rows <= f->rows.n_expected && !memcmp(f->rows.position, f->rows.expected, bytes);
	int r = 0;

	if (!s->chosen) {
		f->n_chosen = 0;
		r = p->ops->put(p, f->id, f->rows.id, bytes);
	}
	if (!r && !known) {
		f->rows.n_expected = 0;
		r = p->ops->put(p, f->position, f->rows.position, bytes);
	}
	if (!r && s->decoding && s->decoding < s->rows)
		r = p->ops->put(p, f->from, f->rows.from, s->decoding * sizeof(*f->from));
	return backend_failed(f, r, err);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Attends with this rank's heads, then gathers the outputs of all ranks' heads. */
static int attend(struct eng_forward *f, struct skv_session *session, uint32_t l, uint32_t rows)
{
	const struct eng_config *c = &f->model->config;
	const size_t element = skv_dtype_bytes(f->model->dtype);
	const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	const struct eng_part own = eng_ranks_part(f->ranks, q * element), own_kv = eng_ranks_part(f->ranks, kv * element);
	uint8_t *at = (uint8_t *)f->q + own.at;
	int r = skv_attend(session, l, &SKV_ATTN(.q = at, .q_stride = q, .k = (uint8_t *)f->k + own_kv.at, .k_stride = kv,
	                                         .v = (uint8_t *)f->v + own_kv.at, .v_stride = kv, .out = at, .out_stride = q));

	return r < 0 ? r : eng_ranks_gather(f->ranks, f->q, rows, q * element, f->wide);
}

/* Runs the attention of layer l. `y` is an output that is not yet added to the residual stream; NULL: none. */
static int attention(struct eng_forward *f, struct skv_session *session, uint32_t l, const float *y,
                     uint32_t rows)
{
	const struct eng_config *c = &f->model->config;
	const struct eng_layer *w = &f->model->layers[l];
	const struct eng_heads heads = {
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.q_norm = w->q_norm,
		.k_norm = w->k_norm,
		.eps = c->rms_eps,
	};
	struct eng_backend *p = f->model->backend;
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, dtype = f->model->dtype;
	int r;

	p->ops->add_norm(p, f->h, dtype, f->x, y, w->input_norm, c->rms_eps, NULL, rows, c->hidden);
	p->ops->matmul(p, f->wide, f->h, w->qkv, w->qkv_bias, dtype, rows, c->hidden, q + 2 * kv);
	p->ops->rope_split(p, f->q, f->k, f->v, dtype, f->wide, &heads, f->rope, f->position, rows);
	if (f->tap)
		f->tap->attends(f->tap->arg, l, f->q, f->k, f->v, rows);
	r = attend(f, session, l, rows);
	if (r < 0)
		return r;
	p->ops->matmul(p, f->wide, f->q, w->o, w->o_bias, dtype, rows, q, c->hidden);
	if (f->tap)
		f->tap->adds(f->tap->arg, l, f->x, f->wide, rows);
	return 0;
}

static void feed_forward(struct eng_forward *f, uint32_t l, const float *y, uint32_t rows)
{
	const struct eng_config *c = &f->model->config;
	const struct eng_layer *w = &f->model->layers[l];
	struct eng_backend *p = f->model->backend;
	uint32_t dtype = f->model->dtype;

	p->ops->add_norm(p, f->h, dtype, f->x, y, w->post_attention_norm, c->rms_eps, NULL, rows, c->hidden);
	p->ops->matmul(p, f->wide, f->h, w->gate_up, w->gate_up_bias, dtype, rows, c->hidden, 2 * c->ffn);
	p->ops->swiglu(p, f->q, dtype, f->wide, rows, c->ffn);
	p->ops->matmul(p, f->wide, f->q, w->down, w->down_bias, dtype, rows, c->ffn, c->hidden);
}

/* Normalises the decode rows, multiplies them by the output matrix, and chooses their tokens. */
static int read_out(struct eng_forward *f, const float *y, const struct step *s)
{
	const struct eng_model *m = f->model;
	const struct eng_config *c = &m->config;
	const uint32_t *from = s->decoding < s->rows ? f->from : NULL;
	struct eng_backend *p = m->backend;

	p->ops->add_norm(p, f->h, m->dtype, f->x, y, m->final_norm, c->rms_eps, from, s->decoding, c->hidden);
	p->ops->matmul(p, f->logits, f->h, m->output, NULL, m->dtype, s->decoding, c->hidden, c->vocab);
	p->ops->choose(p, f->id, f->position, f->logits, s->decoding, c->vocab);
	return eng_ranks_agree(f->ranks, f->id, s->decoding);
}

static int compute(struct eng_forward *f, struct skv_session *session, const struct step *s,
                   struct eng_error *err)
{
	const struct eng_model *m = f->model;
	struct eng_backend *p = m->backend;

	p->ops->embed(p, f->x, m->embedding, m->dtype, f->id, s->rows, m->config.hidden);
	for (uint32_t l = 0; l < m->config.n_layers; l++) {
		int r = attention(f, session, l, l ? f->wide : NULL, s->rows);

		if (r == -ECONNABORTED)
			return eng_fail(err, r, "another rank has ended");
		if (r < 0)
			return library(r, err);
		feed_forward(f, l, f->wide, s->rows);
	}
	if (s->decoding && read_out(f, f->wide, s) < 0)
		return eng_fail(err, -ECONNABORTED, "another rank has ended");
	return backend_failed(f, p->ops->check(p), err);
}

/* Records the work that compute() queues, and launches the recording. */
static int record(struct eng_forward *f, struct skv_session *session, const struct step *s,
                  void **ret_recording, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;
	int r = backend_failed(f, p->ops->record(p), err), ended;
	struct eng_error later;

	if (r)
		return r;
	r = compute(f, session, s, err);
	ended = backend_failed(f, p->ops->recorded(p, ret_recording), r ? &later : err);
	if (r && !ended) {
		p->ops->forget(p, *ret_recording);
		*ret_recording = NULL;
	}
	r = r ? r : ended;
	return r ? r : backend_failed(f, p->ops->launch(p, *ret_recording), err);
}

/* Runs the step by compute(), or by launching the recording of a step with the same key. */
static int compute_or_replay(struct eng_forward *f, struct skv_session *session, const struct step *s,
                             struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;
	struct eng_recording *known = NULL;
	uint64_t key = p->ops->record && !f->one_by_one && s->decoding == s->rows ? skv_step_key(session) : 0;
	bool seen = false;
	int r;

	if (key)
		known = eng_recording_of(&f->recordings, p, key, &seen);
	if (!seen)
		return compute(f, session, s, err);
	if (!known->recording)
		return record(f, session, s, &known->recording, err);
	r = backend_failed(f, p->ops->launch(p, known->recording), err);
	return r ? r : library(skv_step_replayed(session, key), err);
}

int eng_forward(struct eng_forward *f, struct skv_session *session, const struct skv_step_item *items,
                uint32_t n, struct eng_error *err)
{
	struct step s;
	int r = read_items(f, items, n, &s, err);

	r = r ? r : put_rows(f, &s, err);
	r = r ? r : library(skv_step_begin(session, items, n, f->model->backend->stream), err);
	if (r)
		return r;
	f->rows.n_expected = 0;
	f->n_chosen = f->n_decoding = 0;
	r = compute_or_replay(f, session, &s, err);
	if (r) {
		skv_step_abort(session);
		return r;
	}
	f->n_decoding = s.decoding;
	if (s.decoding == s.rows) {
		for (uint32_t i = 0; i < s.rows; i++)
			f->rows.expected[i] = f->rows.position[i] + 1;
		f->rows.n_expected = f->n_chosen = s.rows;
	}
	return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

int eng_forward_choose(struct eng_forward *f, const int32_t *ids, uint32_t n, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;

	f->n_chosen = n;
	return backend_failed(f, p->ops->put(p, f->id, ids, n * sizeof(*ids)), err);
}

int eng_forward_fetch(struct eng_forward *f, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;

	return backend_failed(f, p->ops->fetch(p, f->seen_id, f->id, f->n_decoding * sizeof(*f->id)), err);
}

int eng_forward_fetched(struct eng_forward *f, const int32_t **ret_ids, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;

	*ret_ids = f->seen_id;
	return backend_failed(f, p->ops->fetched(p), err);
}

int eng_forward_logits(struct eng_forward *f, const float **ret_logits, struct eng_error *err)
{
	struct eng_backend *p = f->model->backend;
	size_t row = f->model->config.vocab * sizeof(float);
	void *seen = f->seen_logits;
	int r = seen ? 0 : p->ops->alloc_host(p, row * f->max_rows, &seen);

	if (r < 0)
		return backend_failed(f, r, err);
	f->seen_logits = seen;
	r = p->ops->fetch(p, seen, f->logits, f->n_decoding * row);
	r = r ? r : p->ops->fetched(p);
	if (!r)
		*ret_logits = seen;
	return backend_failed(f, r, err);
}
