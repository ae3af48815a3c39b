/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/replay.c - records the decode attention of layers on a device as CUDA graphs, and replays them.
 *
 * A layer is several kernels, and launching each takes the host longer than some of them take the device. A CUDA graph
 * is one launch. The engine may record whole steps (skv_step_key, skv_step_replayed). Otherwise each layer has a small
 * graph here for the sequences that decode. skv_step_begin makes the graph when the engine gave a layer the same
 * q, k, v, out and lse in two steps of the same key, and skv_attend launches the graph while these pointers stay the
 * same. Recording is spread over a few steps, each of which records some layers, so that no step takes much longer than
 * others. Rows of prompts attend without a graph.
 *
 * The key of steps changes back and forth: one request joins and another one leaves, and the policies of a batch change
 * with them. So recordings of several keys are kept, and the least recently used one makes room. A recording holds
 * addresses. When its key comes again they are still valid:
 *
 *   memory of the session   Its address is in the key, with the purpose of the memory. The memory is freed only to be
 *                           replaced by a larger allocation. If an address returns to the same purpose, the step has
 *                           made sure that the memory is large enough, and a workspace was zeroed again; its contents
 *                           do not outlive a step.
 *   memory of a policy      It lives as long as the policy. The policy's serial is in the key and is never reused.
 *   memory of sequences     Recordings do not contain its addresses: kernels find it in the step's kseq.
 *   the engine's memory     The pointers q, k, v, out and lse are compared in every step.
 *
 * A layer that exchanges scores with other ranks (ranks.c) attends without a graph, and is recorded only for the
 * selections that its hooks make. To record the exchange, all ranks would have to do so in the same step, but each rank
 * decides for itself.
 *
 * Hooks run when a layer is recorded and not when it is replayed, because their requests depend on the plan and the
 * layer alone (policy.h). The state that hooks leave on the host (which selections exist) is remembered for later
 * layers that are not replayed.
 */
#include "libclient/step/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/conn/fence.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/ranks/ranks.h"
#include "libclient/session.h"
#include "libclient/step/padding.h"

#define REPLAY_KEYS 16u  /* number of keys whose recordings are kept */
#define MISSES_MOST 2u   /* attempts to record under one key */
#define RECORD_LAYERS 4u /* layers recorded in a step */

/* The host's state of one selection after a layer's hooks have run. */
struct replay_mark {
	uint32_t made, rows, most;
	bool has_scores;
};

struct replay_layer {
	bool seen; /* the layer attended in the last step of this key, with the pointers and strides in `at` */
	struct skv_attn at;
	/*
	 * The layer's CUDA graph; NULL: none was recorded, or the layer exchanges scores with other ranks. The graph is
	 * stale if the layer's number is at least the set's `recorded`; a stale graph is freed when the layer is
	 * recorded again.
	 */
	void *graph;
	struct replay_mark *after; /* [n_batches * n_layers] */
};

/* The recordings of one key. */
struct replay_set {
	uint64_t key;  /* key of the steps in which the layers were seen; 0: no step yet */
	uint64_t used; /* number of the last step with this key */
	struct replay_layer *layer; /* [n_layers] */
	uint32_t cap_marks; /* marks allocated for each layer */
	uint32_t recorded; /* number of layers, from layer 0 on, with valid recordings */
	uint32_t tries;    /* attempts to record under this key */
};

struct replay {
	uint64_t key;           /* key of the open step, or of the last one; 0: the step cannot be replayed */
	/* key for the engine's recordings of whole steps; 0: this step cannot be replayed as a whole */
	uint64_t whole_key;
	struct replay_set *now; /* the set of recordings with this key, unless the key is 0 */
	struct replay_set set[REPLAY_KEYS];
	uint64_t steps;
	struct replay_layer *behind; /* the last replayed layer, if no hook ran after it; else NULL */
	void *recorder; /* a stream for recording, made when it is needed */
	void *stream;   /* the step's stream, while a layer is recorded on `recorder` */
	struct replay_layer layers[]; /* the layers of all sets */
};

int replay_open(struct skv_session *s)
{
	const uint32_t n = s->model.n_layers;
	struct replay *r;

	if (!s->device)
		return 0;
	r = calloc(1, sizeof(*r) + (size_t)REPLAY_KEYS * n * sizeof(*r->layers));
	if (!r)
		return error_set(-ENOMEM, "out of memory");
	for (uint32_t i = 0; i < REPLAY_KEYS; i++)
		r->set[i].layer = r->layers + (size_t)i * n;
	s->replay = r;
	return 0;
}

/* Allocate marks for all policy batches of the open step. Returns false if there is not enough memory. */
static bool grow_marks(struct skv_session *s)
{
	struct replay_set *x = s->replay->now;
	uint32_t n = s->step.n_batches * s->model.n_layers;

	for (uint32_t i = 0; i < s->model.n_layers && n > x->cap_marks; i++) {
		struct replay_mark *more = realloc(x->layer[i].after, n * sizeof(*more));

		if (!more)
			return false;
		x->layer[i].after = more;
	}
	x->cap_marks = n > x->cap_marks ? n : x->cap_marks;
	return true;
}

static void forget_all(const struct skv_session *s, struct replay_set *x)
{
	for (uint32_t i = 0; i < s->model.n_layers; i++)
		x->layer[i].seen = false;
	x->recorded = 0;
}

void replay_close(struct skv_session *s)
{
	struct replay *r = s->replay;
	void *was;

	if (!r)
		return;
	if (device_enter(s, &was) == 0) {
		for (uint32_t i = 0; i < REPLAY_KEYS * s->model.n_layers; i++)
			if (r->layers[i].graph)
				s->device->backend->graph_free(r->layers[i].graph);
		if (r->recorder)
			s->device->backend->stream_free(r->recorder);
		device_leave(s, was);
	}
	for (uint32_t i = 0; i < REPLAY_KEYS * s->model.n_layers; i++)
		free(r->layers[i].after);
	free(r);
	s->replay = NULL;
}

static uint64_t mix(uint64_t sum, uint64_t part)
{
	sum = (sum ^ part) * 0x9e3779b97f4a7c15u;
	return sum ^ sum >> 29;
}

static uint64_t key_of_batch(const struct skv_session *s, const struct policy_batch *pb)
{
	const struct branch *b = &s->device->branch[pb->branch];
	const uint64_t part[] = {
		pb->policy->serial,
		pb->compresses,
		pb->at_kseq,
		pb->n_padded,
		pb->rows,
		pb->rows > 1 ? pb->rows_at : 0,
		pb->branch,
		pb->branch > 0 ? (uintptr_t)b->work.mem : 0,
	};
	uint64_t sum = 0;

	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++)
		sum = mix(sum, part[i]);
	return sum;
}

/*
 * Hash of everything on which a recording of the step's decoding sequences depends. The probability that two different
 * steps have the same hash is 2^-64. The number of padding sequences in a policy batch is not part of the hash.
 */
static uint64_t key_of(const struct skv_session *s)
{
	const struct step *st = &s->step;
	const uint64_t part[] = {
		s->serial,
		st->n > st->n_decode, /* with prompts, the engine has its rows at other addresses */
		st->n_classes > 1 ? st->n_kseq : 0,
		st->n_classes,
		(uintptr_t)st->work.mem,
		(uintptr_t)st->select.arena,
		(uintptr_t)st->compress.decompressed.pool,
		(uintptr_t)st->compress.decompressed.seq,
		(uintptr_t)st->compress.decompressed.table,
		(uintptr_t)s->device->kseq,
		(uintptr_t)s->device->attended,
		(uintptr_t)s->shape.pool,
	};
	uint64_t sum = 0xcbf29ce484222325u;

	if (st->n_decode == 0 || st->recall.n > 0)
		return 0;
	for (size_t i = 0; i < sizeof(part) / sizeof(*part); i++)
		sum = mix(sum, part[i]);
	for (uint32_t i = 0; i < st->n_batches; i++)
		sum = mix(sum, st->batch[i].n > 0 ? key_of_batch(s, &st->batch[i]) : 0);
	for (uint32_t i = 0; i < st->n_classes; i++)
		sum = mix(mix(sum, st->class[i].decoding.max_len), st->class[i].decoding.max_state);
	for (uint32_t layer = 0; st->n_classes > 1 && layer < s->model.n_layers; layer++)
		sum = mix(sum, st->class_of[layer]);
	return sum ? sum : 1;
}

/*
 * The key for an engine's recordings of whole steps, which also depend on the number of sequences: the engine's own
 * kernels work on each row. 0: the step has prompts, or its layers cannot be replayed.
 */
static uint64_t whole_key_of(const struct skv_session *s, uint64_t key)
{
	const uint64_t sum = mix(key, padding_seqs(s, s->step.n));

	return key == 0 || s->step.n_decode < s->step.n ? 0 : sum ? sum : 1;
}

uint64_t skv_step_key(struct skv_session *s)
{
	uint64_t key = 0;

	if (fence_enter(s) < 0)
		return 0;
	if (s->device && s->step.open)
		key = s->replay->whole_key;
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
	if (key == 0 || key != s->replay->whole_key)
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
		struct selection *x = &s->step.select.all[i];

		x->made = from[i].made;
		x->has_scores = from[i].has_scores;
		x->list.rows = from[i].rows;
		x->list.max_count = from[i].most;
	}
}

static void take_marks(const struct skv_session *s, struct replay_mark *to)
{
	for (uint32_t i = 0; i < s->step.n_batches * s->model.n_layers; i++) {
		const struct selection *x = &s->step.select.all[i];

		to[i] = (struct replay_mark){.made = x->made, .rows = x->list.rows, .most = x->list.max_count,
		                             .has_scores = x->has_scores};
	}
}

/* Does the layer exchange attention scores with other ranks, in any policy batch that decodes? */
static bool asks_ranks(const struct skv_session *s, uint32_t layer)
{
	for (uint32_t i = 0; i < s->step.n_batches; i++)
		if (s->step.batch[i].n > 0 && ranks_share_scores(s, &s->step.batch[i].policy->plan[layer]))
			return true;
	return false;
}

/*
 * Returns the set of recordings with this key. If there is none, the least recently used set is emptied and gets this
 * key.
 */
static struct replay_set *set_of(struct skv_session *s, uint64_t key)
{
	struct replay *r = s->replay;
	struct replay_set *x = r->set;

	for (uint32_t i = 0; i < REPLAY_KEYS && x->key != key; i++)
		if (r->set[i].key == key || r->set[i].used < x->used)
			x = &r->set[i];
	if (x->key != key) {
		forget_all(s, x);
		x->key = key;
		x->tries = 0;
	}
	x->used = ++r->steps;
	return x;
}

/*
 * Is there a layer to record in this step? Only after all layers that are not recorded have attended in a step of this
 * key.
 */
static bool unrecorded(struct skv_session *s, struct replay_set *x)
{
	const uint32_t n = s->model.n_layers;
	bool all = true;

	for (uint32_t i = x->recorded; i < n && all; i++)
		all = x->layer[i].seen;
	if (!all || x->recorded == n)
		return false;
	if (x->recorded > 0)
		return true;
	if (x->tries >= MISSES_MOST)
		return false;
	x->tries++;
	return grow_marks(s);
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Compute the key of a step that was laid out. Returns whether layers [*ret_first, *ret_end) are to be recorded now. */
static bool next(struct skv_session *s, uint32_t *ret_first, uint32_t *ret_end)
{
	struct replay *r = s->replay;
	struct replay_set *x;

	r->behind = NULL;
	r->key = key_of(s);
	r->whole_key = whole_key_of(s, r->key);
	if (r->key == 0)
		return false; /* a step without a key is neither recorded nor replayed */
	x = r->now = set_of(s, r->key);
	if (!unrecorded(s, x))
		return false;
	if (x->recorded > 0)
		put_marks(s, x->layer[x->recorded - 1].after);
	*ret_first = x->recorded;
	*ret_end = s->model.n_layers - x->recorded < RECORD_LAYERS ? s->model.n_layers : x->recorded + RECORD_LAYERS;
	return true;
}

static bool record_begin(struct skv_session *s, uint32_t layer)
{
	const struct skv_backend *b = s->device->backend;
	struct replay *r = s->replay;
	struct replay_layer *x = &r->now->layer[layer];
	/* recording uses a stream of the library, because the caller's stream may be one that cannot record */
	int e = r->recorder ? 0 : b->stream_new(&r->recorder);

	if (x->graph) /* a stale graph, since the rows of some layer had changed */
		b->graph_free(x->graph);
	x->graph = NULL;
	if (e == 0)
		e = b->begin_capture(r->recorder);
	if (e < 0)
		return false;
	r->stream = s->step.work.stream;
	s->step.work.stream = r->recorder;
	s->step.recording = true;
	return true;
}

static bool record_end(struct skv_session *s, uint32_t layer, int error)
{
	struct replay_layer *x = &s->replay->now->layer[layer];
	int e;

	s->step.work.stream = s->replay->stream;
	s->step.recording = false;
	e = s->device->backend->end_capture(s->replay->recorder, &x->graph);
	if (e < 0)
		x->graph = NULL;
	if (e == 0 && asks_ranks(s, layer)) {
		s->device->backend->graph_free(x->graph);
		x->graph = NULL;
	}
	take_marks(s, x->after);
	return e == 0 && error == 0 && !s->hook.misused;
}

/*
 * After recording: if `well`, the recordings of layers [0, end) are valid; else all recordings of the key are dropped.
 */
static void recorded(struct skv_session *s, uint32_t end, bool well)
{
	if (well)
		s->replay->now->recorded = end;
	else
		forget_all(s, s->replay->now);
	s->hook.misused = false;
	for (uint32_t i = 0; i < s->step.n_batches * s->model.n_layers; i++) {
		s->step.select.all[i].made = 0;
		s->step.select.all[i].has_scores = false;
	}
}

void replay_record(struct skv_session *s,
                   int (*decode)(struct skv_session *s, uint32_t layer, const struct skv_attn *a))
{
	uint32_t layer, end;
	bool well = true;

	if (!s->device || !next(s, &layer, &end))
		return;
	for (; layer < end && well; layer++) {
		well = record_begin(s, layer);
		if (well)
			well = record_end(s, layer, decode(s, layer, &s->replay->now->layer[layer].at));
	}
	recorded(s, layer, well);
}

/* ---- replaying ------------------------------------------------------------------------------- */

static bool same_rows(const struct skv_attn *a, const struct skv_attn *b)
{
	return a->q == b->q && a->k == b->k && a->v == b->v && a->out == b->out && a->lse == b->lse &&
	       a->q_stride == b->q_stride && a->k_stride == b->k_stride && a->v_stride == b->v_stride &&
	       a->out_stride == b->out_stride;
}

int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool *ret)
{
	struct device *d = s->device;
	struct replay *r = s->replay;
	struct replay_layer *x;
	bool same, recording;
	int e;

	if (r->key == 0)
		return 0; /* a step without a key is not replayed */
	x = &r->now->layer[layer];
	same = x->seen && same_rows(&x->at, a);
	e = d->backend->recording(s->step.work.stream, &recording);
	if (e < 0)
		return device_failed(d, e, "attention");
	if (same && layer < r->now->recorded && x->graph && !recording) {
		e = d->backend->graph_launch(x->graph, s->step.work.stream);
		if (e < 0)
			return device_failed(d, e, "attention");
		r->behind = x;
		*ret = true;
		return 0;
	}
	if (r->behind)
		put_marks(s, r->behind->after);
	r->behind = NULL;
	if (!recording && !same) {
		r->now->recorded = 0; /* all layers are recorded again */
		x->at = *a;
		x->seen = true;
	}
	return 0;
}
