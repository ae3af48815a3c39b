/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks/exchange.c - compresses tokens when each tensor-parallel rank has only some of the heads.
 *
 * A code is computed from the keys and values of all heads. Each rank writes its own numbers, and -INFINITY in place of
 * the other ranks' numbers; the maximum over all ranks is then the whole token, bit by bit. So the all-reduce by
 * maximum that engines provide for scores is used as an exact all-gather. Every rank then makes the same codes as a
 * rank that has all heads, and decompresses only its own heads.
 *
 * Tokens are exchanged layer by layer, for some sequences at a time: fp32 numbers take more memory than the rows.
 */
#include "libclient/ranks/exchange.h"

#include "kernels/compress.h"
#include "libclient/ranks/ranks.h"
#include "libclient/seq.h"

#define ROOM ((size_t)64 << 20) /* maximum bytes of exchanged numbers; one sequence may exceed it */

bool exchange_has(const struct skv_seq *q)
{
	const struct skv_session *s = q->session;

	for (uint32_t layer = 0; s->model.n_ranks > 1 && layer < s->model.n_layers; layer++)
		if (seq_policy(q)->plan[layer].compress.kind == SKV_COMPRESS_LATENT)
			return true;
	return false;
}

/* Number of fp32 numbers that are exchanged for one sequence of the batch, in one layer. */
static size_t numbers(const struct skv_session *s, const struct skv_batch *b)
{
	return (size_t)b->max_compress * skv_token_dims(&s->shape) * s->model.n_ranks;
}

/* Number of sequences of the batch that are exchanged at a time. */
static uint32_t at_once(const struct skv_session *s, const struct skv_batch *b)
{
	const size_t n = ROOM / (numbers(s, b) * sizeof(float));

	return n < 1 ? 1 : n < b->n ? (uint32_t)n : b->n;
}

size_t exchange_bytes(const struct skv_session *s)
{
	const struct step *st = &s->step;
	size_t most = 0;

	for (uint32_t i = 0; s->model.n_ranks > 1 && i < st->n_classes; i++) {
		const struct skv_batch *b = &st->class[i].all;
		const size_t n = b->max_compress > 0 ? at_once(s, b) * numbers(s, b) : 0;

		most = n > most ? n : most;
	}
	return most * sizeof(float);
}

void exchange_compress(struct skv_session *s, const struct skv_shape *shapes, uint32_t n, const struct skv_batch *batch)
{
	const bool alone = shapes->codec->n_ranks < 2;
	const struct skv_workspace *w = &s->step.work;
	float *x = s->step.compress.exchanged;

	if (alone)
		s->kernels->compress(shapes, n, batch, NULL, w);
	for (uint32_t i = 0; i < n && !alone && batch->max_compress > 0; i++)
		for (uint32_t at = 0, most = at_once(s, batch); at < batch->n; at += most) {
			struct skv_batch part = *batch;

			part.seq += at;
			part.n = batch->n - at < most ? batch->n - at : most;
			part.rows = 0;
			s->kernels->gather_tokens(&shapes[i], &part, x, w);
			ranks_reduce(s, shapes[i].layer, x, part.n * numbers(s, &part));
			s->kernels->compress(&shapes[i], 1, &part, x, w);
		}
}
