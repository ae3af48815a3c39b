/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/read-text.h"

struct eng_observer {
	struct eng_forward forward;
	struct eng_tap tap;
	struct skv_session *session;
	struct eng_measure *measure;
	struct eng_delta_error *differ;
	struct eng_progress *progress;
	struct eng_text text;
	uint32_t next;       /* index of the next row of the text that is to be measured */
	uint32_t at;         /* position of the step's first row */
	uint32_t wanted;     /* number of rows of this step to measure */
	uint32_t row[ENG_READ_ROWS]; /* [wanted]: their indices within the step */
	uint32_t rows;       /* number of rows of the step */
	uint8_t *mark;       /* [max_tokens]: enum eng_delta_error_mark of each row of the text */
	float *keys, *values; /* [layer][kv head][max_tokens][head_dim]: of the whole text */
	float *queries;      /* [layer][ENG_READ_ROWS][head][head_dim]: queries of the step's rows */
	float *weights;      /* [layer][head][tokens]: softmax weights of one row */
};

static size_t keys_at(const struct eng_observer *o, uint32_t layer, uint32_t head)
{
	const struct eng_config *c = &o->forward.model->config;

	return ((size_t)layer * c->n_kv_heads + head) * o->measure->shape.max_tokens * c->head_dim;
}

static size_t queries_at(const struct eng_observer *o, uint32_t layer, uint32_t i)
{
	const struct eng_config *c = &o->forward.model->config;

	return ((size_t)layer * ENG_READ_ROWS + i) * c->n_heads * c->head_dim;
}

/* ---- during a step --------------------------------------------------------------------------- */

static void attends(void *arg, uint32_t layer, const float *q, const float *k, const float *v, uint32_t rows)
{
	struct eng_observer *o = arg;
	const struct eng_config *c = &o->forward.model->config;

	for (uint32_t h = 0; h < c->n_kv_heads; h++) {
		size_t to = keys_at(o, layer, h) + (size_t)o->at * c->head_dim;

		for (uint32_t i = 0; i < rows; i++, to += c->head_dim) {
			size_t from = ((size_t)i * c->n_kv_heads + h) * c->head_dim;

			memcpy(o->keys + to, k + from, c->head_dim * sizeof(*k));
			memcpy(o->values + to, v + from, c->head_dim * sizeof(*v));
		}
	}
	memcpy(o->queries + queries_at(o, layer, 0), q, (size_t)rows * c->n_heads * c->head_dim * sizeof(*q));
}

static void adds(void *arg, uint32_t layer, const float *x, const float *y, uint32_t rows)
{
	struct eng_observer *o = arg;
	uint32_t hidden = o->forward.model->config.hidden;

	(void)rows;
	for (uint32_t i = 0; i < o->wanted; i++)
		eng_measure_change(o->measure, layer, x + (size_t)o->row[i] * hidden,
		                   y + (size_t)o->row[i] * hidden, hidden);
}

/* ---- after a step ---------------------------------------------------------------------------- */

/* Computes the softmax weights of one head's query over n keys. */
static void weigh(float *to, const float *q, const float *k, uint32_t n, uint32_t dim)
{
	float most = -INFINITY, scale = 1 / sqrtf((float)dim), sum = 0;

	for (uint32_t t = 0; t < n; t++) {
		const float *key = k + (size_t)t * dim;
		float x = 0;

#pragma omp simd reduction(+ : x)
		for (uint32_t d = 0; d < dim; d++)
			x += q[d] * key[d];
		to[t] = x * scale;
		most = to[t] > most ? to[t] : most;
	}
	for (uint32_t t = 0; t < n; t++) {
		to[t] = expf(to[t] - most);
		sum += to[t];
	}
	for (uint32_t t = 0; t < n; t++)
		to[t] /= sum;
}

/*
 * Computes the softmax weights of a row, in all layers and heads, and adds them to the measure. The row is the i-th of
 * this step's rows to measure.
 */
static void measure_row(struct eng_observer *o, uint32_t i)
{
	const struct eng_config *c = &o->forward.model->config;
	uint32_t n = o->at + o->row[i] + 1, group = c->n_heads / c->n_kv_heads;

#pragma omp parallel for collapse(2) schedule(dynamic)
	for (uint32_t l = 0; l < c->n_layers; l++)
		for (uint32_t h = 0; h < c->n_heads; h++)
			weigh(o->weights + ((size_t)l * c->n_heads + h) * n,
			      o->queries + queries_at(o, l, o->row[i]) + (size_t)h * c->head_dim,
			      o->keys + keys_at(o, l, h / group), n, c->head_dim);
	eng_measure_row(o->measure, o->weights, n);
}

/* Compares row i of the step, in all layers, with the first row of its window (sparse-error.h), if row i is marked. */
static void compare_row(struct eng_observer *o, uint32_t i)
{
	const struct eng_config *c = &o->forward.model->config;

	if (o->mark[o->at + i] == ENG_DELTA_ERROR_NOT)
		return;
#pragma omp parallel for schedule(dynamic)
	for (uint32_t l = 0; l < c->n_layers; l++)
		eng_delta_error_add(o->differ, &(struct eng_delta_error_row){
			.layer = l, .p = o->at + i, .mark = o->mark[o->at + i], .q = o->queries + queries_at(o, l, i),
			.k = o->keys + keys_at(o, l, 0), .v = o->values + keys_at(o, l, 0),
			.stride = o->measure->shape.max_tokens});
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Returns the position of the i-th row to measure. */
static uint32_t wanted_row(const struct eng_text *t, uint32_t i)
{
	uint32_t all = t->n - t->from;

	return t->from + (t->rows ? (uint32_t)((uint64_t)i * all / t->rows) : i);
}

static void begins(void *arg, uint32_t at, uint32_t rows)
{
	struct eng_observer *o = arg;

	o->at = at;
	o->rows = rows;
	o->wanted = 0;
	for (; o->next < o->text.rows && wanted_row(&o->text, o->next) < at + rows; o->next++)
		o->row[o->wanted++] = wanted_row(&o->text, o->next) - at;
}

static void ended(void *arg)
{
	struct eng_observer *o = arg;

	for (uint32_t i = 0; i < o->wanted; i++)
		measure_row(o, i);
	for (uint32_t i = 0; i < o->rows; i++)
		compare_row(o, i);
	eng_progress_add(o->progress, o->rows, "reading texts");
}

int eng_observe(struct eng_observer *o, const struct eng_text *text, const volatile sig_atomic_t *stop,
                struct eng_progress *progress, struct eng_error *err)
{
	const struct eng_reading reading = {
		.ids = text->ids, .n = text->n, .begins = begins, .ended = ended, .arg = o, .stop = stop};
	uint64_t measured = o->measure->rows;
	int r;

	o->progress = progress;
	o->text = *text;
	o->text.rows = eng_text_rows(text);
	o->next = 0;
	eng_delta_error_choose(o->differ, text->n, text->rows, o->mark);
	r = eng_read(&o->forward, o->session, &reading, err);
	if (o->measure->rows > measured)
		eng_measure_end_text(o->measure);
	return r;
}

int eng_observer_new(struct eng_observer **ret, const struct eng_model *model, struct skv_session *session,
                     struct eng_measure *measure, struct eng_delta_error *differ, struct eng_error *err)
{
	const struct eng_config *c = &model->config;
	size_t tokens = measure->shape.max_tokens;
	struct eng_observer *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return eng_fail(err, -ENOMEM, "no memory to observe");
	o->session = session;
	o->measure = measure;
	o->differ = differ;
	o->tap = (struct eng_tap){.attends = attends, .adds = adds, .arg = o};
	o->mark = malloc(tokens);
	o->keys = malloc(c->n_layers * c->n_kv_heads * tokens * c->head_dim * sizeof(*o->keys));
	o->values = malloc(c->n_layers * c->n_kv_heads * tokens * c->head_dim * sizeof(*o->values));
	o->queries = malloc((size_t)c->n_layers * ENG_READ_ROWS * c->n_heads * c->head_dim * sizeof(*o->queries));
	o->weights = malloc(c->n_layers * c->n_heads * tokens * sizeof(*o->weights));
	if (!o->mark || !o->keys || !o->values || !o->queries || !o->weights)
		r = eng_fail(err, -ENOMEM, "no memory for keys and values of %zu tokens", tokens);
	else
		r = eng_forward_init(&o->forward, model, ENG_READ_ROWS, err);
	if (r) {
		eng_observer_free(o);
		return r;
	}
	o->forward.tap = &o->tap;
	*ret = o;
	return 0;
}

void eng_observer_free(struct eng_observer *o)
{
	if (!o)
		return;
	eng_forward_deinit(&o->forward);
	free(o->mark);
	free(o->keys);
	free(o->values);
	free(o->queries);
	free(o->weights);
	free(o);
}
