/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/scratch.c - scratch memory of a session's steps, on the host or on its device. */
#include "libclient/scratch.h"

#include <errno.h>
#include <stdlib.h>

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

/* What the kernels want for sequences of up to `longest` tokens. */
static size_t workspace_bytes(const struct skv_session *s, uint32_t longest)
{
	const struct step *st = &s->step;
	int threads = st->work.threads;
	struct skv_shape all = s->shape;
	size_t most;

	for (uint32_t i = 0; i < st->n_batches; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
			all.sketch_bits |= st->batch[i].policy->plan[layer].sketch_bits;
	most = s->kernels->workspace_bytes(&all, st->n_kseq, st->rows, longest, threads);
	for (uint32_t i = 0; i < st->n_batches; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
			const struct policy_batch *pb = &st->batch[i]; /* whose sequences compress alike */
			struct skv_shape shape = s->shape;
			size_t bytes;

			shape.codec = compress_code(st->seqs[pb->n > 0 ? pb->first : pb->first_prompt], layer);
			bytes = shape.codec ? s->kernels->workspace_bytes(&shape, st->n_kseq, st->rows, longest, threads) : 0;
			most = bytes > most ? bytes : most;
		}
	return most;
}

int scratch_prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t longest = 0;

	for (uint32_t c = 0; c < st->n_classes; c++)
		longest = st->class[c].all.max_len > longest ? st->class[c].all.max_len : longest;
	longest = (longest + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;
	return scratch_grow(s, &st->work.mem, &st->work.bytes, workspace_bytes(s, longest));
}
