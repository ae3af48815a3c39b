/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/workspace.c - memory for the kernels' workspaces, and branches, on which policy batches of a step run
 * concurrently.
 *
 * One layer of a few sequences does not keep a device busy, and a step may have a policy batch for each of its
 * sequences. So on a device the work of a layer forks into branches, each with a stream and a workspace of its own, and
 * the branches join after the layer (attend.c). Branch 0 is the step's own stream. A recorded layer has the same
 * branches.
 */
#include "libclient/step/workspace.h"

#include "kernels/threads.h"
#include "libclient/compress/schedule.h"
#include "libclient/conn/conn.h"
#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/feature.h"
#include "libclient/policy.h"
#include "libclient/session.h"
#include "libclient/step/padding.h"

/* ---- workspaces ------------------------------------------------------------------------------ */

void step_threads(struct skv_session *s)
{
	s->step.work.threads = atomic_load_explicit(&s->client->threads, memory_order_relaxed);
	if (!s->device)
		skv_threads_ready(s->step.work.threads);
}

/*
 * Upper bounds for kernel calls on n policy batches, beginning with number `first`: sequences, rows, and tokens of the
 * longest sequence.
 */
struct bounds {
	uint32_t first, n, seqs, rows, longest;
};

static size_t bytes_of(const struct skv_session *s, struct bounds most)
{
	const struct policy_batch *batch = s->step.batch + most.first;
	int threads = s->step.work.threads;
	struct skv_shape all = s->shape;
	size_t bytes;

	for (uint32_t i = 0; i < most.n; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
			all.sketch_bits |= batch[i].policy->plan[layer].sketch_bits;
			all.value_bits |= batch[i].policy->plan[layer].value_bits;
		}
	bytes = s->kernels->workspace_bytes(&all, most.seqs, most.rows, most.longest, threads);
	for (uint32_t i = 0; i < most.n; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
			const struct policy_batch *pb = &batch[i]; /* all its sequences compress, or none does */
			struct skv_shape shape = s->shape;
			size_t more;

			shape.codec = compress_code(s->step.seqs[pb->n > 0 ? pb->first : pb->first_prompt], layer);
			more = shape.codec ? s->kernels->workspace_bytes(&shape, most.seqs, most.rows, most.longest, threads) : 0;
			bytes = more > bytes ? more : bytes;
		}
	return bytes;
}

/* Upper bound of the tokens of a sequence in any layer, rounded up to SCRATCH_ROUND. */
static uint32_t longest(const struct skv_session *s)
{
	const struct step *st = &s->step;
	uint32_t most = 0;

	for (uint32_t c = 0; c < st->n_classes; c++)
		most = st->class[c].all.max_len > most ? st->class[c].all.max_len : most;
	return (most + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;
}

/* Bytes of workspace that decoding one policy batch needs. */
static size_t bytes_of_batch(const struct skv_session *s, uint32_t batch)
{
	const struct policy_batch *pb = &s->step.batch[batch];
	const uint32_t n = pb->n_padded * pb->rows;

	return bytes_of(s, (struct bounds){.first = batch, .n = 1, .seqs = n, .rows = n, .longest = longest(s)});
}

static int workspace_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	const struct bounds all = {.n = st->n_batches, .seqs = st->n_kseq, .rows = padding_seqs(s, st->rows), .longest = longest(s)};

	return scratch_grow(s, &st->work.mem, &st->work.bytes, bytes_of(s, all));
}

static void workspace_close(struct skv_session *s)
{
	scratch_free(s, s->step.work.mem);
}

const struct feature workspace_feature = {.prepare = workspace_prepare, .close = workspace_close};

/* ---- branches -------------------------------------------------------------------------------- */

/*
 * Does a layer of the batch use scratch memory that all policy batches share, so that it cannot run beside another
 * batch?
 */
static bool shares_scratch(const struct skv_session *s, const struct policy_batch *pb)
{
	bool any = s->step.recall.n > 0;

	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		any |= pb->selection[layer].compress.seqs > 0;
	return any;
}

static int open_branch(struct skv_session *s, struct branch *x)
{
	const struct skv_backend *b = s->device->backend;
	int e = x->work.stream ? 0 : b->stream_new(&x->work.stream);

	if (e == 0 && !x->end)
		e = b->event_new(&x->end);
	return e < 0 ? device_failed(s->device, e, "a stream for another policy") : 0;
}

/*
 * Assign a branch to each policy batch that decodes, and make its stream and workspace. The first batch runs on the
 * step's own stream, and so do batches that use shared scratch memory.
 */
static int branches_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	struct device *d = s->device;
	uint32_t others = 0;
	bool first = true;
	int e = d && !d->fork ? d->backend->event_new(&d->fork) : 0;

	st->n_branches = 1;
	if (e < 0)
		return device_failed(d, e, "an event");
	for (uint32_t i = 0; i < st->n_batches && e == 0; i++) {
		struct policy_batch *pb = &st->batch[i];
		struct branch *x;

		pb->branch = 0;
		if (!d || pb->n == 0)
			continue;
		if (!first && !shares_scratch(s, pb))
			pb->branch = 1 + others++ % (BRANCHES - 1);
		first = false;
		if (pb->branch == 0)
			continue;
		x = &d->branch[pb->branch];
		st->n_branches = pb->branch < st->n_branches ? st->n_branches : pb->branch + 1;
		x->work.threads = st->work.threads;
		e = open_branch(s, x);
		if (e == 0)
			e = scratch_grow(s, &x->work.mem, &x->work.bytes, bytes_of_batch(s, i));
	}
	st->work.beside = st->n_branches - 1;
	for (uint32_t i = 1; i < st->n_branches; i++)
		d->branch[i].work.beside = st->n_branches - 1;
	return e;
}

static void close_all(struct device *d)
{
	for (uint32_t i = 1; i < BRANCHES; i++) {
		struct branch *x = &d->branch[i];

		d->backend->free(x->work.mem);
		if (x->end)
			d->backend->event_free(x->end);
		if (x->work.stream)
			d->backend->stream_free(x->work.stream);
	}
	if (d->fork)
		d->backend->event_free(d->fork);
}

static void branches_close(struct skv_session *s)
{
	void *was;

	if (!s->device || device_enter(s, &was) < 0)
		return;
	close_all(s->device);
	device_leave(s, was);
}

const struct feature branches_feature = {.prepare = branches_prepare, .close = branches_close};
