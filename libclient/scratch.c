/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/scratch.c - scratch memory of a session's steps, on the host or on its device. */
#include "libclient/scratch.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/compress/exchange.h"
#include "libclient/compress/schedule.h"
#include "libclient/device.h"
#include "libclient/error.h"
#include "libclient/policy.h"
#include "libclient/session.h"

int scratch_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need)
{
	size_t more = (need + need / 4 + 63) / 64 * 64;

	if (need <= *bytes)
		return 0;
	if (s->device)
		return device_grow(s, mem, bytes, more);
	free(*mem);
	*mem = aligned_alloc(64, more);
	*bytes = *mem ? more : 0;
	return *mem ? 0 : error_set(-ENOMEM, "out of memory for %zu bytes of scratch", more);
}

/* Upper bounds for calls of kernels: for n policy batches from number `first` on, their sequences, rows and tokens. */
struct bounds {
	uint32_t first, n, seqs, rows, longest;
};

static size_t workspace_bytes(const struct skv_session *s, struct bounds most)
{
	const struct policy_batch *batch = s->step.batch + most.first;
	int threads = s->step.work.threads;
	struct skv_shape all = s->shape;
	size_t bytes;

	for (uint32_t i = 0; i < most.n; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
			all.sketch_bits |= batch[i].policy->plan[layer].sketch_bits;
	bytes = s->kernels->workspace_bytes(&all, most.seqs, most.rows, most.longest, threads);
	for (uint32_t i = 0; i < most.n; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
			const struct policy_batch *pb = &batch[i]; /* its sequences compress alike */
			struct skv_shape shape = s->shape;
			size_t more;

			shape.codec = compress_code(s->step.seqs[pb->n > 0 ? pb->first : pb->first_prompt], layer);
			more = shape.codec ? s->kernels->workspace_bytes(&shape, most.seqs, most.rows, most.longest, threads) : 0;
			bytes = more > bytes ? more : bytes;
		}
	return bytes;
}

/* The longest sequence in any layer, rounded up. */
static uint32_t longest(const struct skv_session *s)
{
	const struct step *st = &s->step;
	uint32_t most = 0;

	for (uint32_t c = 0; c < st->n_classes; c++)
		most = st->class[c].all.max_len > most ? st->class[c].all.max_len : most;
	return (most + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;
}

size_t scratch_of_batch(const struct skv_session *s, uint32_t batch)
{
	const struct policy_batch *pb = &s->step.batch[batch];
	const uint32_t n = pb->n_padded * pb->rows;

	return workspace_bytes(s, (struct bounds){.first = batch, .n = 1, .seqs = n, .rows = n, .longest = longest(s)});
}

int scratch_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	const struct bounds all = {.n = st->n_batches, .seqs = st->n_kseq, .rows = st->rows, .longest = longest(s)};

	int e = scratch_grow(s, &st->work.mem, &st->work.bytes, workspace_bytes(s, all));

	return e < 0 ? e : scratch_grow(s, &st->exchanged, &st->exchanged_bytes, exchange_bytes(s));
}
