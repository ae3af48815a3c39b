/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/seal.c - gives a sequence's first tokens the form of a sealed prefix.
 *
 * If the policy keeps rows, a sealed prefix has rows of K and V. Under a policy that compresses, a prefix has only
 * records (codes and references), except for its first tokens: so a block has the same form wherever it was sealed, and
 * a sequence can begin with as many blocks as it finds. The policy's residual window, which consists of rows, begins
 * after the prefix. The sequence that seals gets the same form, and continues like a sequence that begins with the
 * sealed prefix.
 */
#include "libclient/session/seal.h"

#include <errno.h>

#include "libclient/compress/compressor.h"
#include "libclient/compress/schedule.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/ranks/exchange.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/step/maintenance.h"

static bool compresses(const struct skv_seq *q, uint32_t layer)
{
	return seq_policy(q)->plan[layer].compress.kind;
}

/* Does a layer that compresses still have rows for some of the first n tokens? */
static bool behind(const struct skv_seq *q, uint32_t n)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (compresses(q, layer) && seq_compressed(q, layer) < n)
			return true;
	return false;
}

/* Compress the first n tokens: prepared like a step, on the stream of the last step. */
static int compress(struct skv_session *s, struct skv_seq *q, uint32_t n)
{
	int e = exchange_has(q) ? joint_begin(s) : 0;

	if (e == 0)
		e = features_ready(q, 0, true);
	q->compress.sealing = n;
	while (e == 0 && q->compress.on && behind(q, n))
		e = maintenance_run(s, q, MAINTENANCE_COMPRESS);
	q->compress.sealing = 0;
	if (e == 0 && q->compress.on && q->mem->sealed < n)
		q->mem->sealed = n;
	return e;
}

/* Why K and V of the sequence's tokens are not all made under the session's policy; NULL: they are. */
static const char *foreign(const struct skv_seq *q)
{
	if (q->about & SKV_ABOUT_DECOMPRESSED)
		return "it has tokens that were compressed in another way";
	return q->mem->policy == q->session->policy->fingerprint ? NULL : "they were not all computed under the session's policy";
}

/* Why the first n tokens are not all in place and in the form of a prefix; NULL: they are. */
static const char *unsealable(const struct skv_seq *q, uint32_t n)
{
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *x = &q->slots[layer];
		const bool own = skv_model_kv_layer(&q->session->model, layer) == layer;

		if (q->about & SKV_ABOUT_SLOTS && (x->granularity || x->live != q->len || x->slot_end != q->len))
			return "its policy moves tokens";
		for (uint32_t page = 0; page < skv_pages_of(n) && own; page++)
			if (!skv_pte_resident(seq_table(q, layer)[page]) && !compress_has_page(q, layer, page))
				return "it has evicted pages";
	}
	return behind(q, n) ? "its policy cannot compress them" : foreign(q);
}

/* Compress the first n tokens. Returns 0, with *why set if the tokens cannot be compressed, or an error. */
static int pack(struct skv_session *s, struct skv_seq *q, uint32_t n, const char **why)
{
	void *was;
	int e;

	if (!compressor_seals(s, seq_policy(q)->compressor)) {
		*why = "those that its policy never compresses fill a block or more";
		return 0;
	}
	if (s->step.open)
		return error_set(-EBUSY, "a step is open, and sealing compresses");
	e = device_enter(s, &was);
	if (e < 0)
		return e;
	e = compress(s, q, n);
	device_leave(s, was);
	return e;
}

int seal_ready(struct skv_session *s, struct skv_seq *q, uint32_t n)
{
	const char *why = foreign(q);
	int e = !why && seq_policy(q)->n_compress > 0 ? pack(s, q, n, &why) : 0;

	if (e == 0 && !why)
		why = unsealable(q, n);
	return why ? error_set(-ESTALE, "the first %u tokens cannot be sealed: %s", n, why) : e;
}

/* Record the policy under which the sequence's tokens are computed: only if it is a single one can tokens be sealed. */
static int seal_sign(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	const uint64_t policy = seq_policy(q)->fingerprint;

	(void)prompt;
	if (n_tokens == 0)
		return 0;
	if (q->len == 0)
		q->mem->sealed = 0;
	if (q->mem->policy != policy)
		q->mem->policy = q->len == 0 ? policy : 0;
	return 0;
}

const struct feature seal_feature = {.ready = seal_sign};
