/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/stack-fixture.h"
#include "bench/bench.h"
#include <stdlib.h>
#include <string.h>

#define KV_ROWS 65536u  /* number of random rows; K and V of a call begin at random positions in them */
#define TIMEOUT_MS 60000 /* the daemon needs time to allocate the memory of large sequences */

static void die(const char *why)
{
	fprintf(stderr, "sparsekv-bench: %s\n", why);
	exit(1);
}

void stack_need(int r)
{
	if (r < 0)
		die(skv_last_error());
}

static void need_device(const struct stack_fixture *r, int e)
{
	if (e < 0)
		die(r->device->error());
}

static void *get(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!p)
		die("out of memory");
	memset(p, 0, bytes);
	return p;
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* Sets the timeout of a connected client and, if the model is on a CUDA device, opens its backend, stream and events. */
static void start(struct stack_fixture *r)
{
	const uint32_t device = r->model.device;
	char why[512];
	void *was;

	skv_set_timeout(r->client, TIMEOUT_MS);
	if (device == SKV_DEVICE_HOST)
		return;
	/* this comes after the daemon's fork, because CUDA does not survive fork() */
	r->device = skv_backend_cuda(why, sizeof why);
	if (!r->device)
		die(why);
	need_device(r, r->device->enter(device - SKV_DEVICE_CUDA(0), &was));
	need_device(r, r->device->stream_new(&r->stream));
	need_device(r, r->device->event_new(&r->from));
	need_device(r, r->device->event_new(&r->to));
}

void stack_start(struct stack_fixture *r, uint32_t device)
{
	struct eng_error err;

	*r = (struct stack_fixture){.model.device = device};
	if (eng_private_start(0, NULL, &r->daemon, &r->client, &err) < 0)
		die(err.text);
	start(r);
}

void stack_connect(struct stack_fixture *r, const char *socket, uint32_t device)
{
	*r = (struct stack_fixture){.model.device = device};
	stack_need(skv_connect(&r->client, socket));
	start(r);
}

void stack_stop(struct stack_fixture *r)
{
	skv_disconnect(r->client);
	eng_private_stop(r->daemon);
	if (!r->device)
		return;
	need_device(r, r->device->event_free(r->from));
	need_device(r, r->device->event_free(r->to));
	need_device(r, r->device->stream_free(r->stream));
}

/* ---- rows ------------------------------------------------------------------------------------ */

static size_t row_bytes(const struct skv_model *m, uint32_t heads)
{
	return (size_t)heads * m->head_dim * skv_dtype_bytes(m->io_dtype);
}

/* Fills memory with random elements of a dtype, which have a random sign and magnitudes from 0.5 to 1. */
static void fill_random(void *to, size_t n, uint32_t dtype)
{
	uint64_t rng = 1;
	for (size_t i = 0; i < n; i++) {
		uint64_t x = bench_random(&rng);
		uint32_t sign = (uint32_t)(x >> 63), rest = (uint32_t)x;
		if (dtype == SKV_F32)
			((uint32_t *)to)[i] = sign << 31 | 126u << 23 | (rest & 0x7fffff);
		else if (dtype == SKV_F16)
			((uint16_t *)to)[i] = (uint16_t)(sign << 15 | 14u << 10 | (rest & 0x3ff));
		else
			((uint16_t *)to)[i] = (uint16_t)(sign << 15 | 126u << 7 | (rest & 0x7f));
	}
}

uint8_t *stack_rows_copy(const struct stack_fixture *r, void *host, size_t bytes)
{
	void *there;

	if (!r->device)
		return host;
	need_device(r, r->device->alloc(bytes, &there));
	need_device(r, r->device->copy(there, host, bytes, r->stream));
	need_device(r, r->device->wait(r->stream));
	free(host);
	return there;
}

/* Makes rows in the memory that attention uses, filled with random elements or zeros. */
static uint8_t *rows_new(const struct stack_fixture *r, uint32_t rows, uint32_t heads, bool random)
{
	size_t bytes = rows * row_bytes(&r->model, heads);
	void *host = get(bytes);
	if (random)
		fill_random(host, (size_t)rows * heads * r->model.head_dim, r->model.io_dtype);
	return stack_rows_copy(r, host, bytes);
}

void stack_rows_free(const struct stack_fixture *r, void *rows)
{
	if (r->device)
		need_device(r, r->device->free(rows));
	else
		free(rows);
}

/* ---- sessions and sequences ------------------------------------------------------------------ */

void stack_open(struct stack_fixture *r, const struct skv_model *m, const char *spec)
{
	uint32_t device = r->model.device;
	r->model = *m;
	r->model.device = device;
	r->model.io_dtype = r->device ? m->kv_dtype : SKV_F32;
	stack_need(skv_open(r->client, &r->model, spec, &r->session));
	r->kv = rows_new(r, KV_ROWS, m->n_kv_heads, true);
	r->q = rows_new(r, STACK_CHUNK, m->n_heads, true);
	r->out = rows_new(r, STACK_CHUNK, m->n_heads, false);
}

static void forget_graph(struct stack_fixture *r)
{
	if (r->graph)
		need_device(r, r->device->graph_free(r->graph));
	r->graph = NULL;
}

void stack_close(struct stack_fixture *r)
{
	skv_close(r->session);
	forget_graph(r);
	stack_rows_free(r, r->kv);
	stack_rows_free(r, r->q);
	stack_rows_free(r, r->out);
}

void stack_sequences(struct stack_fixture *r, uint32_t n, uint32_t room)
{
	char name[SKV_NAME_MAX];
	uint32_t i = r->n;
	r->n += n;
	r->seq = realloc(r->seq, r->n * sizeof *r->seq);
	r->item = realloc(r->item, r->n * sizeof *r->item);
	if (!r->seq || !r->item)
		die("out of memory");
	for (; i < r->n; i++) {
		snprintf(name, sizeof name, "bench-%u", i);
		stack_need(skv_seq_new(r->session, name, room, &r->seq[i]));
		r->item[i] = SKV_STEP_ITEM(.seq = r->seq[i], .n_tokens = 1);
	}
}

/*
 * Returns the arguments of a call of attention. K and V are at positions of the buffer that depend on the layer and on
 * `at`.
 */
static struct skv_attn attn_of(const struct stack_fixture *r, uint32_t layer, uint64_t at)
{
	size_t bytes = row_bytes(&r->model, r->model.n_kv_heads);
	uint64_t rng = at * SKV_MAX_LAYERS + layer;
	return SKV_ATTN(
		.q = r->q,
		.k = r->kv + bench_random(&rng) % (KV_ROWS - STACK_CHUNK) * bytes,
		.v = r->kv + bench_random(&rng) % (KV_ROWS - STACK_CHUNK) * bytes,
		.out = r->out);
}

/* Calls skv_attend() for all layers. If `reads` is false, the rows do not attend: only their K and V are stored. */
static void attend_all(struct stack_fixture *r, uint64_t at, bool reads, struct stack_times *t)
{
	for (uint32_t layer = 0; layer < r->model.n_layers; layer++) {
		struct skv_attn a = attn_of(r, layer, at);
		double begun = bench_now();
		if (!reads)
			a.q = a.out = NULL;
		stack_need(skv_attend(r->session, layer, &a));
		if (t)
			t->attend[layer] = (bench_now() - begun) * 1e6;
	}
}

void stack_attend(struct stack_fixture *r)
{
	attend_all(r, 0, true, NULL);
}

void stack_wait(const struct stack_fixture *r)
{
	if (r->device)
		need_device(r, r->device->wait(r->stream));
}

void stack_fill(struct stack_fixture *r, uint32_t n, uint32_t tokens, uint32_t steps)
{
	struct skv_step_item *item = get(n * sizeof *item);
	uint64_t step = 0;

	stack_sequences(r, n, tokens + steps);
	/* sequence i has `at` tokens so far */
	for (uint32_t i = 0, at = 0; i < n; step++) {
		uint32_t rows = 0, items = 0;
		while (i < n && rows < STACK_CHUNK) {
			uint32_t least = tokens < SKV_PAGE_TOKENS ? 0 : i % SKV_PAGE_TOKENS;
			uint32_t left = tokens - least - at, take = left < STACK_CHUNK - rows ? left : STACK_CHUNK - rows;
			item[items++] = SKV_STEP_ITEM(
				.seq = r->seq[i], .n_tokens = take, .flags = SKV_STEP_PROMPT, .n_prompt_remaining = left - take);
			rows += take;
			at += take;
			if (take == left) {
				i++;
				at = 0;
			}
		}
		stack_need(skv_step_begin(r->session, item, items, r->stream));
		attend_all(r, step, skv_policy_depends_on_prefill(r->session), NULL);
		stack_need(skv_step_end(r->session, NULL, NULL));
	}
	stack_wait(r);
	free(item);
}

void stack_empty(struct stack_fixture *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		stack_need(skv_seq_drop(r->seq[i]));
	free(r->seq);
	free(r->item);
	r->seq = NULL;
	r->item = NULL;
	forget_graph(r);
	r->n = 0;
}

void stack_hand_over(struct stack_fixture *r, const char *spec)
{
	char name[SKV_NAME_MAX];
	for (uint32_t i = 0; i < r->n; i++)
		stack_need(skv_seq_detach(r->seq[i]));
	skv_close(r->session);
	forget_graph(r);
	stack_need(skv_open(r->client, &r->model, spec, &r->session));
	for (uint32_t i = 0; i < r->n; i++) {
		snprintf(name, sizeof name, "bench-%u", i);
		stack_need(skv_seq_attach(r->session, name, &r->seq[i]));
		r->item[i].seq = r->seq[i];
	}
}

void stack_fork(struct stack_fixture *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		stack_need(skv_seq_fork(r->seq[i], NULL, SKV_ALL, &r->item[i].seq));
}

void stack_drop_forks(struct stack_fixture *r)
{
	forget_graph(r);
	for (uint32_t i = 0; i < r->n; i++) {
		stack_need(skv_seq_drop(r->item[i].seq));
		r->item[i].seq = r->seq[i];
	}
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Launches the recorded graph. If there is none with this step's key, first records one. */
static void launch(struct stack_fixture *r, struct stack_times *t)
{
	const struct skv_backend *d = r->device;
	uint64_t key = skv_step_key(r->session);
	double begun, launched;

	t->recorded = !r->graph || key != r->key;
	if (t->recorded) {
		forget_graph(r);
		need_device(r, d->begin_capture(r->stream));
		attend_all(r, 0, true, NULL);
		need_device(r, d->end_capture(r->stream, &r->graph));
		r->key = key;
	}
	begun = bench_now();
	need_device(r, d->graph_launch(r->graph, r->stream));
	launched = bench_now();
	t->launch = (launched - begun) * 1e6;
	if (!t->recorded)
		stack_need(skv_step_replayed(r->session, key));
	t->replayed = (bench_now() - launched) * 1e6;
}

void stack_step(struct stack_fixture *r, enum stack_how how, struct stack_times *t)
{
	double begun = bench_now(), attended, end;
	float ms;

	stack_need(skv_step_begin(r->session, r->item, r->n, r->stream));
	t->begin = (bench_now() - begun) * 1e6;
	t->recorded = false;
	if (r->device)
		need_device(r, r->device->event_record(r->from, r->stream));
	attended = bench_now();
	if (how == STACK_REPLAY)
		launch(r, t);
	else
		attend_all(r, how == STACK_MOVING ? ++r->moved : 0, true, t);
	t->device_ms = (bench_now() - attended) * 1e3;
	if (r->device)
		need_device(r, r->device->event_record(r->to, r->stream));
	end = bench_now();
	stack_need(skv_step_end(r->session, NULL, NULL));
	t->end = (bench_now() - end) * 1e6;
	stack_wait(r);
	t->whole = (bench_now() - begun) * 1e6;
	if (r->device) {
		need_device(r, r->device->event_elapsed(r->from, r->to, &ms));
		t->device_ms = ms;
	}
}
