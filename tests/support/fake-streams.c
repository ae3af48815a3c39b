/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake device's streams, recordings and events.
 *
 * Work queued on a stream runs when the caller waits for that stream. Streams that wait for each other's events take
 * turns, one operation of a stream at a time, in a pseudo-random order: so an operation that depends on another stream
 * without waiting for it sooner or later runs too early, and the test fails. The same is true of the captured streams
 * of a recording.
 */
#include <errno.h>
#include <stdlib.h>

#include "tests/support/fake-backend.h"

struct queue {
	struct op *first, **end;
	struct op *next;   /* of a recording that is running */
	const struct op *joined; /* of a recording: its last event that another stream waits for */
	struct op *last;
};

#define GRAPH_QUEUES 32

struct graph {
	struct queue queue[GRAPH_QUEUES];
	uint32_t n;
};

struct stream {
	struct stream *next;
	struct queue queue;
	bool forks; /* has ever waited for another stream */
	struct graph *graph; /* recording that captures it, or NULL ... */
	struct queue *recording; /* ... and its queue in there */
};

struct event {
	struct stream *on;         /* stream that recorded it, until it is done */
	uint64_t recorded, done;
	struct graph *graph;       /* or the recording that has it ... */
	struct queue *queue;
	struct op *op;             /* ... and its operation there */
};

static struct stream default_stream, *streams; /* streams: all but the default stream */
static uint64_t draws = 1;

static uint32_t draw(uint32_t n)
{
	draws = draws * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(draws >> 33) % n;
}

static struct stream *stream_of(void *stream)
{
	struct stream *s = stream ? stream : &default_stream;

	if (!s->queue.end)
		s->queue.end = &s->queue.first;
	return s;
}

struct op *fake_queue(void *stream, enum what what)
{
	struct stream *s = stream_of(stream);
	struct queue *q = s->recording ? s->recording : &s->queue;
	struct op *o = calloc(1, sizeof(*o));

	if (!o)
		abort();
	o->what = what;
	*q->end = o;
	q->end = &o->next;
	q->last = o;
	return o;
}

static void drop_first(struct queue *q)
{
	struct op *o = q->first;

	q->first = o->next;
	if (!q->first)
		q->end = &q->first;
	free(o->own);
	free(o);
}

/* ---- running --------------------------------------------------------------------------------- */

static bool may_run(const struct op *o)
{
	const struct event *e = o->out;

	return o->what != WAIT || (o->of ? o->of->done : e->done >= o->serial);
}

static void run_graph(struct graph *g)
{
	uint32_t ready[GRAPH_QUEUES], n;

	for (uint32_t i = 0; i < g->n; i++) {
		g->queue[i].next = g->queue[i].first;
		for (struct op *o = g->queue[i].first; o; o = o->next)
			o->done = false;
	}
	for (;;) {
		struct queue *q;

		n = 0;
		for (uint32_t i = 0; i < g->n; i++)
			if (g->queue[i].next && may_run(g->queue[i].next))
				ready[n++] = i;
		if (n == 0)
			break;
		q = &g->queue[ready[draw(n)]];
		q->next->done = true;
		fake_run(q->next);
		q->next = q->next->next;
	}
	for (uint32_t i = 0; i < g->n; i++)
		if (g->queue[i].next) /* queues wait for each other: deadlock */
			abort();
}

void fake_run_queued(const struct op *o)
{
	struct event *e = o->out;

	if (o->what == GRAPH)
		run_graph(o->out);
	if (o->what != EVENT || o->serial == 0)
		return;
	e->done = o->serial;
	if (e->done == e->recorded)
		e->on = NULL;
}

/* Another stream than s that can run now: one that has waited for another, or with `any` any of them. */
static struct stream *another(const struct stream *s, bool any)
{
	struct stream *found = NULL;
	uint32_t n = 0;

	for (struct stream *x = &default_stream; x; x = x == &default_stream ? streams : x->next)
		if (x != s && !x->recording && x->queue.first && (any || x->forks) && may_run(x->queue.first) && draw(++n) == 0)
			found = x;
	return found;
}

static void run_first(struct stream *s)
{
	fake_run(s->queue.first);
	drop_first(&s->queue);
}

int fake_wait(void *stream)
{
	struct stream *s = stream_of(stream);

	if (s->recording)
		return fake_failed(-EIO, "waiting for a stream that is being recorded");
	while (s->queue.first) {
		const bool own = may_run(s->queue.first);
		struct stream *other = own && draw(2) ? NULL : another(s, !own);

		if (!own && !other)
			abort();
		run_first(other ? other : s);
	}
	return 0;
}

void fake_wait_for_all(void)
{
	fake_wait(NULL);
	for (struct stream *s = streams; s; s = s->next)
		if (!s->recording)
			fake_wait(s);
}

/* ---- streams and recordings ------------------------------------------------------------------ */

static int stream_new(void **ret_stream)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return fake_failed(-ENOMEM, "no memory");
	s->next = streams;
	streams = s;
	*ret_stream = s;
	return 0;
}

static int stream_free(void *stream)
{
	struct stream **at = &streams;

	fake_wait(stream);
	while (*at != stream)
		at = &(*at)->next;
	*at = (*at)->next;
	free(stream);
	return 0;
}

static int recording(void *stream, bool *ret)
{
	*ret = stream_of(stream)->recording;
	return 0;
}

static void join_graph(struct stream *s, struct graph *g)
{
	if (g->n == GRAPH_QUEUES)
		abort();
	s->graph = g;
	s->recording = &g->queue[g->n++];
	s->recording->end = &s->recording->first;
}

static int begin_capture(void *stream)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (!g)
		return -ENOMEM;
	join_graph(stream_of(stream), g);
	return 0;
}

/* All captured streams must have joined the first one. */
static int end_capture(void *stream, void **ret_graph)
{
	struct graph *g = stream_of(stream)->graph;
	bool joined = true;

	for (uint32_t i = 1; i < g->n; i++)
		joined &= g->queue[i].joined == g->queue[i].last;
	for (struct stream *s = &default_stream; s; s = s == &default_stream ? streams : s->next)
		if (s->graph == g) {
			s->graph = NULL;
			s->recording = NULL;
		}
	*ret_graph = g;
	return joined ? 0 : fake_failed(-EIO, "a recording ends before one of its streams has joined in");
}

static int graph_launch(void *graph, void *stream)
{
	fake_queue(stream, GRAPH)->out = graph;
	return 0;
}

static int graph_free(void *graph)
{
	struct graph *g = graph;

	fake_wait_for_all();
	for (uint32_t i = 0; i < g->n; i++)
		while (g->queue[i].first)
			drop_first(&g->queue[i]);
	free(g);
	return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static int event_new(void **ret_event)
{
	*ret_event = calloc(1, sizeof(struct event));
	return *ret_event ? 0 : -ENOMEM;
}

static int event_free(void *event)
{
	free(event);
	return 0;
}

static int event_record(void *event, void *stream)
{
	struct stream *s = stream_of(stream);
	struct event *e = event;
	struct op *o = fake_queue(stream, EVENT);

	o->out = event;
	e->graph = s->graph;
	e->queue = s->recording;
	e->op = o;
	if (s->recording)
		return 0;
	o->serial = ++e->recorded;
	e->on = s;
	return 0;
}

static int stream_wait(void *stream, void *event)
{
	struct stream *s = stream_of(stream);
	struct event *e = event;
	struct op *o;

	if (s->recording && s->graph != e->graph)
		return fake_failed(-EIO, "a recording waits for what is not in it");
	if (e->graph && !s->recording)
		join_graph(s, e->graph);
	if (e->graph)
		e->queue->joined = e->op;
	s->forks = true;
	o = fake_queue(stream, WAIT);
	o->out = event;
	o->of = e->graph ? e->op : NULL;
	o->serial = e->recorded;
	return 0;
}

static int event_done(void *event, bool *ret_done)
{
	*ret_done = !((struct event *)event)->on;
	return 0;
}

static int event_wait(void *event)
{
	struct event *e = event;

	return e->on ? fake_wait(e->on == &default_stream ? NULL : e->on) : 0;
}

/* There is no clock: any two events are 1 ms apart. */
static int event_elapsed(void *from, void *to, float *ret_ms)
{
	int e = event_wait(from);

	*ret_ms = 1;
	return e < 0 ? e : event_wait(to);
}

void fake_streams(struct skv_backend *b)
{
	b->stream_new = stream_new;
	b->stream_free = stream_free;
	b->recording = recording;
	b->begin_capture = begin_capture;
	b->end_capture = end_capture;
	b->graph_launch = graph_launch;
	b->graph_free = graph_free;
	b->event_new = event_new;
	b->event_free = event_free;
	b->event_record = event_record;
	b->event_done = event_done;
	b->event_wait = event_wait;
	b->event_elapsed = event_elapsed;
	b->stream_wait = stream_wait;
}
