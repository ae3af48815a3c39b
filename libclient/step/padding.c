/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/padding.c - pads decode steps to a given batch size and length, so that one CUDA graph replays them
 * all: skv_pad_steps().
 *
 * A recording holds addresses, and sizes from which kernels derive their grids and the layout of their workspace. All
 * else is data that kernels read in each step: which sequences there are, their lengths, their pages. So all steps that
 * are laid out for the same sizes, in memory that does not move, can be replayed from one recording. Padded steps have
 * memory of their own. In shared memory, a long prompt could enlarge the workspace, and so move it.
 */
#include "libclient/step/padding.h"

#include <errno.h>

#include "libclient/device/device.h"
#include "libclient/device/scratch.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/policy.h"
#include "libclient/seq.h"

static bool fits(const struct skv_session *s)
{
	const struct step *st = &s->step;

	if (!s->device || st->padding.n_seqs == 0 || st->n_batches != 1 || st->n != st->n_decode || st->n > st->padding.n_seqs ||
	    st->batch[0].rows > 1 || st->batch[0].compresses || st->batch[0].policy->n_evicting > 0)
		return false;
	for (uint32_t i = 0; i < st->n; i++) {
		const struct skv_seq *q = st->items[i].seq;

		if (seq_by_layer(q) || q->len >= st->padding.max_tokens)
			return false;
	}
	return true;
}

#define SWAP(a, b)                         \
	do {                               \
		__typeof__(a) was_ = (a);  \
                                           \
		(a) = (b);                 \
		(b) = was_;                \
	} while (0)

static void swap_memory(struct skv_session *s)
{
	struct padding_memory *x = &s->step.padding.apart;
	struct step *st = &s->step;
	struct device *d = s->device;

	SWAP(st->work.mem, x->scratch);
	SWAP(st->work.bytes, x->scratch_bytes);
	SWAP(st->select.arena, x->arena);
	SWAP(st->select.arena_bytes, x->arena_bytes);
	SWAP(d->kseq, x->kseq);
	SWAP(d->cap_kseq, x->cap_kseq);
	SWAP(d->attended, x->attended);
	SWAP(d->cap, x->cap);
}

void padding_choose(struct skv_session *s)
{
	struct step *st = &s->step;
	const bool on = fits(s);

	if (on != st->padding.on)
		swap_memory(s);
	st->padding.on = on;
}

uint32_t padding_seqs(const struct skv_session *s, uint32_t n)
{
	return s->step.padding.on ? s->step.padding.n_seqs : n;
}

static void padding_close(struct skv_session *s)
{
	struct padding_memory *x = &s->step.padding.apart;

	scratch_free(s, x->scratch);
	scratch_free(s, x->arena);
	scratch_free(s, x->kseq);
	scratch_free(s, x->attended);
}

const struct feature padding_feature = {.close = padding_close};

static int set(struct skv_session *s, uint32_t n_seqs, uint32_t max_tokens)
{
	struct step *st = &s->step;

	if (max_tokens > s->model.max_tokens)
		return error_set(-EINVAL, "steps are padded to max_tokens = %u, expected at most the model's %u", max_tokens,
		                 s->model.max_tokens);
	max_tokens = max_tokens ? max_tokens : s->model.max_tokens;
	if (n_seqs == st->padding.n_seqs && max_tokens == st->padding.max_tokens)
		return 0;
	st->padding.n_seqs = n_seqs;
	st->padding.max_tokens = max_tokens;
	st->steady.follows = false;
	return 0;
}

int skv_pad_steps(struct skv_session *s, uint32_t n_seqs, uint32_t max_tokens)
{
	void *was;
	int e = device_lock(s, &was);

	if (e == 0) {
		e = s->step.open ? error_set(-EBUSY, "a step is open: end or abort it first") : set(s, n_seqs, max_tokens);
		device_unlock(s, was);
	}
	return e;
}
