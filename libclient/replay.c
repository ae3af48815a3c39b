/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/replay.c - attends of a device that were recorded and are replayed.
 *
 * A layer is several kernels, and to launch each takes the host longer than some of them take the device. A
 * CUDA graph is one launch. The engine may record whole steps (skv_step_key, skv_step_replayed). Where it does
 * not, each layer has a small graph here: made in skv_step_begin, when two steps of the same key gave a layer the
 * same q, k, v, out and lse, and launched by skv_attend while they stay the same.
 *
 * Hooks run when a layer is recorded and not when it is replayed: what they ask for depends on the plan and the
 * layer alone (policy.h). What they leave behind on the host - which selections exist - is remembered for
 * the layers after it that are not replayed.
 */
#include "libclient/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/device.h"
#include "libclient/error.h"
#include "libclient/fence.h"
#include "libclient/policy.h"
#include "libclient/session.h"

#define MISSES_MOST 2u /* recordings of one key that were not used */

/* What a layer's hooks have left of a selection. */
struct replay_mark {
	uint32_t made, rows, most;
	bool has_scores;
};

struct replay_layer {
	bool seen; /* attended in the last step of this key, with these */
	struct skv_attn at;
	void *graph;
	struct replay_mark *after; /* [n_batches * n_layers] */
};

/* Recordings of the layers. */
struct replay {
	uint64_t key;        /* of the open step, or the last one; 0: it cannot be replayed */
	uint64_t layers_key; /* of the steps that the layers were seen in */
	struct replay_layer *layer, *behind; /* [n_layers]; the one whose hooks did not run last, or NULL */
	uint32_t cap_marks; /* of each layer */
	void *recorder; /* a stream, made when it is needed */
	void *stream;   /* of the step, while a layer is recorded on the recorder */
	bool recorded;
	uint32_t tries; /* to record, under this key */
};

int replay_open(struct skv_session *s)
{
	struct replay *r = calloc(1, sizeof(*r));

	if (r)
		r->layer = calloc(s->model.n_layers, sizeof(*r->layer));
	if (!r || !r->layer) {
		free(r);
		return error_set(-ENOMEM, "out of memory");
	}
	s->replay = r;
	return 0;
}

/* Room for the marks of all policy batches of the open step. False: there is not enough memory. */
static bool grow_marks(struct skv_session *s)
{
	struct replay *r = s->replay;
	uint32_t n = s->step.n_batches * s->model.n_layers;

	for (uint32_t i = 0; i < s->model.n_layers && n > r->cap_marks; i++) {
		struct replay_mark *more = realloc(r->layer[i].after, n * sizeof(*more));

		if (!more)
			return false;
		r->layer[i].after = more;
	}
	r->cap_marks = n > r->cap_marks ? n : r->cap_marks;
	return true;
}

static void forget(struct device *d, struct replay_layer *x)
{
	if (x->graph)
		d->backend->graph_free(x->graph);
	x->graph = NULL;
	x->seen = false;
}

void replay_close(struct skv_session *s)
{
	struct replay *r = s->replay;
	void *was;

	if (!r)
		return;
	if (device_enter(s, &was) == 0) {
		for (uint32_t i = 0; i < s->model.n_layers; i++)
			forget(s->device, &r->layer[i]);
		if (r->recorder)
			s->device->backend->stream_free(r->recorder);
		device_leave(s, was);
	}
	for (uint32_t i = 0; i < s->model.n_layers; i++)
		free(r->layer[i].after);
	free(r->layer);
	free(r);
	s->replay = NULL;
}

static uint64_t mix(uint64_t sum, uint64_t part)
{
	sum = (sum ^ part) * 0x9e3779b97f4a7c15u;
	return sum ^ sum >> 29;
}

/* All that a recording of the step's attends has in it. Two of them with the same sum: one in 2^64. */
static uint64_t key_of(const struct skv_session *s)
{
	const struct step *st = &s->step;
	const uint64_t part[] = {
		s->serial,
		st->n,
		st->n_kseq,
		st->n_classes,
		(uintptr_t)st->work.mem,
		(uintptr_t)st->arena,
		(uintptr_t)st->decompressed.pool,
		(uintptr_t)st->decompressed.seq,
		(uintptr_t)st->decompressed.table,
		(uintptr_t)s->device->kseq,
		(uintptr_t)s->device->attended,
		(uintptr_t)s->shape.pool,
	};
	uint64_t sum = 0xcbf29ce484222325u;

	if (st->n_decode < st->n || st->recall.n > 0)
		return 0;
	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++)
		sum = mix(sum, part[i]);
	for (uint32_t i = 0; i < st->n_batches; i++)
		sum = mix(mix(mix(mix(sum, st->batch[i].policy->serial), st->batch[i].compresses), st->batch[i].n), st->batch[i].rows);
	for (uint32_t i = 0; i < st->n_classes; i++)
		sum = mix(mix(sum, st->class[i].all.max_len), st->class[i].all.max_state);
	for (uint32_t layer = 0; st->n_classes > 1 && layer < s->model.n_layers; layer++)
		sum = mix(sum, st->class_of[layer]);
	return sum ? sum : 1;
}

uint64_t skv_step_key(struct skv_session *s)
{
	uint64_t key = 0;

	if (fence_enter(s) < 0)
		return 0;
	if (s->device && s->step.open)
		key = s->replay->key;
	pthread_mutex_unlock(&s->lock);
	return key;
}

static int replayed(struct skv_session *s, uint64_t key)
{
	struct step *st = &s->step;

	if (!s->device)
		return error_set(-EINVAL, "a replay, but the session's pages are in host memory");
	if (!st->open || st->next_layer != 0)
		return error_set(-EINVAL, "a replay, expected in an open step before its first layer");
	if (key == 0 || key != s->replay->key)
		return error_set(-ESTALE, "the recording was made for another kind of step: record it anew");
	st->next_layer = s->model.n_layers;
	return 0;
}

int skv_step_replayed(struct skv_session *s, uint64_t key)
{
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = replayed(s, key);
	pthread_mutex_unlock(&s->lock);
	return e;
}

static void put_marks(struct skv_session *s, const struct replay_mark *from)
{
	for (uint32_t i = 0; i < s->step.n_batches * s->model.n_layers; i++) {
		struct selection *x = &s->step.selection[i];

		x->made = from[i].made;
		x->has_scores = from[i].has_scores;
		x->list.rows = from[i].rows;
		x->list.max_count = from[i].most;
	}
}

static void take_marks(const struct skv_session *s, struct replay_mark *to)
{
	for (uint32_t i = 0; i < s->step.n_batches * s->model.n_layers; i++) {
		const struct selection *x = &s->step.selection[i];

		to[i] = (struct replay_mark){.made = x->made, .rows = x->list.rows, .most = x->list.max_count,
		                             .has_scores = x->has_scores};
	}
}

bool replay_record_begin(struct skv_session *s, uint32_t layer, const struct skv_attn **ret)
{
	const struct skv_backend *b = s->device->backend;
	struct replay *r = s->replay;
	struct replay_layer *x = &r->layer[layer];
	/* by way of a stream of our own: the caller's may be one that cannot record */
	int e = r->recorder ? 0 : b->stream_new(&r->recorder);

	if (x->graph) /* another layer was not as it had been */
		b->graph_free(x->graph);
	x->graph = NULL;
	if (e == 0)
		e = b->begin_capture(r->recorder);
	if (e < 0)
		return false;
	r->stream = s->step.work.stream;
	s->step.work.stream = r->recorder;
	*ret = &x->at;
	return true;
}

bool replay_record_end(struct skv_session *s, uint32_t layer)
{
	struct replay_layer *x = &s->replay->layer[layer];
	int e;

	s->step.work.stream = s->replay->stream;
	e = s->device->backend->end_capture(s->replay->recorder, &x->graph);
	if (e < 0)
		x->graph = NULL;
	take_marks(s, x->after);
	return e == 0 && !s->misused;
}

void replay_recorded(struct skv_session *s, bool well)
{
	for (uint32_t i = 0; i < s->model.n_layers && !well; i++)
		forget(s->device, &s->replay->layer[i]);
	s->replay->recorded = well;
	s->misused = false;
	for (uint32_t i = 0; i < s->step.n_batches * s->model.n_layers; i++) {
		s->step.selection[i].made = 0;
		s->step.selection[i].has_scores = false;
	}
}

bool replay_begin(struct skv_session *s)
{
	struct device *d = s->device;
	struct replay *r = s->replay;
	uint64_t key = key_of(s);
	bool all = true;

	r->behind = NULL;
	r->key = key;
	if (key == 0)
		return false; /* the recordings are for the steps after this one */
	if (key != r->layers_key) {
		for (uint32_t i = 0; i < s->model.n_layers; i++)
			forget(d, &r->layer[i]);
		r->layers_key = key;
		r->recorded = false;
		r->tries = 0;
		return false;
	}
	for (uint32_t i = 0; i < s->model.n_layers && all; i++)
		all = r->layer[i].seen;
	if (!all || r->recorded || r->tries >= MISSES_MOST)
		return false;
	r->tries++;
	return grow_marks(s);
}

static bool same_rows(const struct skv_attn *a, const struct skv_attn *b)
{
	return a->q == b->q && a->k == b->k && a->v == b->v && a->out == b->out && a->lse == b->lse &&
	       a->q_stride == b->q_stride && a->k_stride == b->k_stride && a->v_stride == b->v_stride &&
	       a->out_stride == b->out_stride;
}

int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a)
{
	struct device *d = s->device;
	struct replay *r = s->replay;
	struct replay_layer *x = &r->layer[layer];
	bool same = x->seen && same_rows(&x->at, a);
	bool recording;
	int e;

	if (r->key == 0)
		return 0; /* what was recorded is for other steps */
	e = d->backend->recording(s->step.work.stream, &recording);
	if (e < 0)
		return device_failed(d, e, "attention");
	if (same && x->graph && !recording) {
		e = d->backend->graph_launch(x->graph, s->step.work.stream);
		if (e < 0)
			return device_failed(d, e, "attention");
		r->behind = x;
		return 1;
	}
	if (r->behind)
		put_marks(s, r->behind->after);
	r->behind = NULL;
	if (!recording && !same) {
		forget(d, x);
		r->recorded = false;
		x->at = *a;
		x->seen = true;
	}
	return 0;
}
