/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-trace.c - generates traces of requests. Active chats are in a heap, ordered by the time of their next
 * request; the time at which the next new chat begins is stored separately. Each chat, each system prompt and the
 * arrivals of chats have their own random numbers, so that the content of a chat does not depend on other chats.
 */
#include "bench/scale-trace.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/bench.h"

const char *const scale_workload_names[] = {"conversation", "toolagent", "chat", NULL};

struct scale_workload scale_workload(enum scale_workload_name which)
{
	static const struct scale_workload all[] = {
		[SCALE_CONVERSATION] = {
			.tenants = 20, .prompts = 5, .zipf = 1, .system = {700, 0.8}, .message = {7200, 1.2}, .answer = {343, 0.9},
			.turns = 1.7, .think = 60, .branch = 0.1, .rate = 3.4, .max_tokens = 131072,
		},
		[SCALE_TOOLAGENT] = {
			.tenants = 20, .prompts = 5, .zipf = 1, .system = {4700, 0.5}, .message = {3600, 1.2}, .answer = {182, 0.9},
			.turns = 1.3, .think = 20, .branch = 0, .rate = 6.6, .max_tokens = 131072,
		},
		[SCALE_CHAT] = {
			.tenants = 20, .prompts = 5, .zipf = 1, .system = {1500, 0.8}, .message = {150, 1}, .answer = {350, 0.9},
			.turns = 6, .think = 60, .branch = 0.1, .rate = 5, .max_tokens = 131072,
		},
	};

	return all[which];
}

/* ---- random numbers ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t state = a ^ b * 0xd1342543de82ef95u;

	state = bench_random(&state);
	return bench_random(&state);
}

uint32_t scale_token(uint64_t content, uint32_t position, uint32_t n_vocab)
{
	return (uint32_t)(mix(content, position + 1ull) % n_vocab);
}

/* Returns a random number above 0 and below 1. */
static double draw_unit(uint64_t *state)
{
	return ((double)(bench_random(state) >> 11) + 0.5) * 0x1p-53;
}

static double draw_exponential(uint64_t *state, double mean)
{
	return -mean * log(draw_unit(state));
}

/* Returns a random length in tokens, at least 1. */
static uint32_t draw_length(uint64_t *state, const struct scale_lengths *l)
{
	const double z = sqrt(-2 * log(draw_unit(state))) * cos(2 * M_PI * draw_unit(state));
	const double x = round(l->mean * exp(l->sigma * z - l->sigma * l->sigma / 2));

	return x < 1 ? 1 : x > 1e9 ? 1000000000 : (uint32_t)x;
}

/* Returns a random number of turns, at least 1. */
static uint32_t draw_turns(uint64_t *state, double mean)
{
	/* drawn even if it is not used, so that the numbers drawn later do not depend on `mean` */
	const double u = draw_unit(state);

	return mean > 1 ? 1 + (uint32_t)(log(u) / log1p(-1 / mean)) : 1;
}

/* ---- the trace ----------------------------------------------------------------------------------- */

/* Streams of random numbers that are derived from one seed. */
enum { OF_ARRIVALS = 1, OF_CHATS, OF_PROMPTS, OF_HOSTS };

struct chat {
	uint64_t time_us; /* time of the next request */
	uint64_t id, random;
	uint32_t tenant, turn, turns;
	/* segments of the prompt: a system prompt, then messages and answers in turn, the last one a message */
	uint32_t said, room;
	struct scale_segment *segments;
	uint32_t n_prompt, n_contents;
	struct scale_segment answer;
};

struct scale_trace {
	struct scale_trace_params p;
	uint64_t left, arrivals, next_us, next_id;
	double next; /* time at which the next chat begins, in seconds; next_us is the same in whole microseconds */
	double *tenants, *prompts; /* cumulative probabilities */
	struct chat **heap, *current; /* heap of active chats; `current` is the chat whose request was returned last */
	size_t n, room;
};

static double *zipf_new(uint32_t n, double exponent)
{
	double *shares = calloc(n, sizeof *shares), sum = 0;

	for (uint32_t i = 0; shares && i < n; i++)
		shares[i] = sum += pow(i + 1, -exponent);
	for (uint32_t i = 0; shares && i < n; i++)
		shares[i] /= sum;
	return shares;
}

static uint32_t draw_of(uint64_t *state, const double *shares, uint32_t n)
{
	const double u = draw_unit(state);
	uint32_t low = 0, high = n - 1;

	while (low < high) {
		const uint32_t mid = (low + high) / 2;

		if (shares[mid] > u)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

static struct chat *chat_free(struct chat *c)
{
	if (c)
		free(c->segments);
	free(c);
	return NULL;
}

static int say(struct chat *c, struct scale_segment segment)
{
	if (c->said == c->room) {
		const uint32_t room = 2 * c->room + 6;
		struct scale_segment *more = realloc(c->segments, room * sizeof *more);

		if (!more)
			return -ENOMEM;
		c->segments = more;
		c->room = room;
	}
	c->segments[c->said++] = segment;
	c->n_prompt += segment.n_tokens;
	return 0;
}

static void unsay(struct chat *c, uint32_t said)
{
	while (c->said > said)
		c->n_prompt -= c->segments[--c->said].n_tokens;
}

static struct scale_segment draw_segment(struct chat *c, const struct scale_lengths *l, uint32_t most)
{
	const uint32_t n = draw_length(&c->random, l);

	return (struct scale_segment){mix(c->id, ++c->n_contents), n < most ? n : most};
}

/*
 * Draws the next answer of a chat and, if `message` is true, a message before it. Returns 1; 0 if the limit of tokens
 * leaves no room for them; or -ENOMEM.
 */
static int prompt_and_answer(const struct scale_trace *t, struct chat *c, bool message)
{
	const struct scale_workload *w = &t->p.workload;
	int r = 0;

	c->answer = draw_segment(c, &w->answer, w->max_tokens / 2);
	if ((uint64_t)c->n_prompt + message + c->answer.n_tokens > w->max_tokens)
		return 0;
	if (message)
		r = say(c, draw_segment(c, &w->message, w->max_tokens - c->n_prompt - c->answer.n_tokens));
	return r < 0 ? r : 1;
}

/* Returns the segment of a system prompt. Its content identifies the system prompt, and is the seed of its length. */
static struct scale_segment system_prompt(const struct scale_trace *t, uint32_t tenant, uint32_t prompt)
{
	const uint32_t most = t->p.workload.max_tokens / 2 - 1;
	struct scale_segment s = {.content = mix(mix(t->p.seed, OF_PROMPTS), (uint64_t)tenant << 32 | prompt)};
	uint64_t random = s.content;

	s.n_tokens = draw_length(&random, &t->p.workload.system);
	s.n_tokens = s.n_tokens < most ? s.n_tokens : most;
	return s;
}

static uint32_t host_of(const struct scale_trace *t, const struct chat *c)
{
	const uint64_t by = t->p.routing == SCALE_ROUTING_PREFIX ? c->segments[0].content : c->id;
	const uint64_t turn = t->p.routing == SCALE_ROUTING_RANDOM ? c->turn : 0;

	return (uint32_t)(mix(mix(mix(t->p.seed, OF_HOSTS), by), turn) % t->p.hosts);
}

/* ---- the heap ------------------------------------------------------------------------------------ */

static bool earlier(const struct chat *a, const struct chat *b)
{
	return a->time_us != b->time_us ? a->time_us < b->time_us : a->id < b->id;
}

static int heap_push(struct scale_trace *t, struct chat *c)
{
	size_t at = t->n;

	if (t->n == t->room) {
		struct chat **more = realloc(t->heap, (2 * t->room + 64) * sizeof *more);

		if (!more)
			return -ENOMEM;
		t->heap = more;
		t->room = 2 * t->room + 64;
	}
	t->n++;
	for (; at > 0 && earlier(c, t->heap[(at - 1) / 2]); at = (at - 1) / 2)
		t->heap[at] = t->heap[(at - 1) / 2];
	t->heap[at] = c;
	return 0;
}

static struct chat *heap_pop(struct scale_trace *t)
{
	struct chat *first = t->heap[0], *last = t->heap[--t->n];
	size_t at = 0;

	for (size_t child; (child = 2 * at + 1) < t->n; at = child) {
		if (child + 1 < t->n && earlier(t->heap[child + 1], t->heap[child]))
			child++;
		if (!earlier(t->heap[child], last))
			break;
		t->heap[at] = t->heap[child];
	}
	t->heap[at] = last;
	return first;
}

/* ---- arrivals and turns of chats ----------------------------------------------------------------- */

static void next_arrival(struct scale_trace *t)
{
	const struct scale_workload *w = &t->p.workload;

	t->next += draw_exponential(&t->arrivals, w->turns / w->rate);
	t->next_us = (uint64_t)(t->next * 1e6);
}

static int arrive(struct scale_trace *t)
{
	const struct scale_workload *w = &t->p.workload;
	struct chat *c = calloc(1, sizeof *c);
	int r;

	if (!c)
		return -ENOMEM;
	*c = (struct chat){.time_us = t->next_us, .id = mix(mix(t->p.seed, OF_CHATS), t->next_id++)};
	c->random = c->id;
	c->turns = draw_turns(&c->random, w->turns);
	c->tenant = draw_of(&c->random, t->tenants, w->tenants);
	r = say(c, system_prompt(t, c->tenant, draw_of(&c->random, t->prompts, w->prompts)));
	/* the answer and the system prompt always leave room for a message */
	r = r < 0 ? r : prompt_and_answer(t, c, true);
	r = r < 0 ? r : heap_push(t, c);
	if (r < 0)
		chat_free(c);
	next_arrival(t);
	return r;
}

/* Prepares the next turn of a chat. Returns 1; 0 if the chat is over; or -ENOMEM. */
static int next_turn(const struct scale_trace *t, struct chat *c)
{
	const uint32_t turns = c->said / 2; /* number of messages so far */
	int r;

	if (c->turn == c->turns)
		return 0;
	if (draw_unit(&c->random) < t->p.workload.branch) {
		/* number of turns before the one that the chat goes back to */
		const uint32_t back = (uint32_t)(bench_random(&c->random) % turns);
		const bool edited = bench_random(&c->random) & 1;

		unsay(c, 1 + 2 * back + !edited);
		return prompt_and_answer(t, c, edited);
	}
	r = say(c, c->answer);
	return r < 0 ? r : prompt_and_answer(t, c, true);
}

static int go_on(struct scale_trace *t, struct chat *c)
{
	int r = next_turn(t, c);

	if (r > 0) {
		c->time_us += (uint64_t)(1e6 * draw_exponential(&c->random, t->p.workload.think));
		r = heap_push(t, c);
		if (r == 0)
			return 0;
	}
	chat_free(c);
	return r;
}

int scale_trace_next(struct scale_trace *t, struct scale_request *ret)
{
	struct chat *c = t->current;
	int r;

	t->current = NULL;
	r = c ? go_on(t, c) : 0;
	if (r < 0 || t->left == 0)
		return r;
	while (t->n == 0 || t->next_us <= t->heap[0]->time_us) {
		r = arrive(t);
		if (r < 0)
			return r;
	}
	t->left--;
	c = t->current = heap_pop(t);
	c->turn++;
	*ret = (struct scale_request){
		.time_us = c->time_us,
		.chat = c->id,
		.host = host_of(t, c),
		.tenant = c->tenant,
		.turn = c->turn,
		.n_segments = c->said,
		.prompt = c->segments,
		.n_prompt = c->n_prompt,
		.answer = c->answer,
	};
	return 1;
}

struct scale_trace *scale_trace_new(const struct scale_trace_params *p)
{
	struct scale_trace *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->p = *p;
	t->left = p->requests;
	t->arrivals = mix(p->seed, OF_ARRIVALS);
	t->tenants = zipf_new(p->workload.tenants, p->workload.zipf);
	t->prompts = zipf_new(p->workload.prompts, p->workload.zipf);
	if (!t->tenants || !t->prompts)
		return scale_trace_free(t);
	next_arrival(t);
	return t;
}

struct scale_trace *scale_trace_free(struct scale_trace *t)
{
	if (!t)
		return NULL;
	while (t->n > 0)
		chat_free(t->heap[--t->n]);
	chat_free(t->current);
	free(t->heap);
	free(t->tenants);
	free(t->prompts);
	free(t);
	return NULL;
}
