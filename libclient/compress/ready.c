/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/ready.c - compress and decompress between steps.
 *
 * Maintenance transactions compress the tokens of a prompt before the first decode step after it, and decompress tokens
 * that are compressed in another way than the policy compresses.
 */
#include "libclient/compress/attend.h"
#include "libclient/compress/compressor.h"
#include "libclient/compress/encode.h"
#include "libclient/compress/lengths.h"
#include "libclient/compress/schedule.h"
#include "libclient/device/tables.h"
#include "libclient/feature.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/seq-table.h"
#include "libclient/ranks/exchange.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/step/maintenance.h"

/* From here on each layer has slots of its own number. */
static void begin_slots(struct skv_seq *q)
{
	const struct skv_layer_slots all = {.live = q->len, .slot_end = q->len, .n_active = q->len};

	for (uint32_t layer = 0; !(q->about & SKV_ABOUT_SLOTS) && layer < q->layout.n_layers; layer++)
		q->slots[layer] = all;
	q->about |= SKV_ABOUT_SLOTS;
}

/* The form of compressed tokens is known now, so pages that a torn step left can be dropped. */
static int trim(struct skv_seq *q)
{
	bool any = pages_trim(q);
	int e = seq_check_pages(q);

	return e == 0 && any && q->session->device ? device_seq_refresh(q) : e;
}

static int decompress(struct skv_session *s, struct skv_seq *q)
{
	int e = compressor_of_seq(q, &q->compress.from);

	if (e < 0)
		return e;
	e = trim(q);
	if (e == 0)
		e = maintenance_run(s, q, MAINTENANCE_DECOMPRESS);
	compressor_free(q->compress.from);
	q->compress.from = NULL;
	return e;
}

/* Decompress tokens that are compressed in another way than its policy compresses. */
static int decompress_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	(void)n_tokens, (void)prompt;
	if (q->compress.known || !compress_any(q) || (compress_as_planned(q) && compress_possible(q)))
		return 0;
	return decompress(q->session, q);
}

const struct feature decompress_feature = {.ready = decompress_ready};

/* Pages of compressed tokens, summed over all layers. */
static int32_t count_compressed(const struct skv_seq *q)
{
	int32_t n = 0;

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		n += (int32_t)(seq_compressed(q, layer) / SKV_PAGE_TOKENS);
	return n;
}

/*
 * Ranks that compress together must have compressed equally many tokens. If a rank died, the daemon has made sure of
 * that. If policies were swapped meanwhile, ranks may differ: then each decompresses what it has, and all begin anew.
 */
static int agree(struct skv_session *s, struct skv_seq *q)
{
	int32_t own = count_compressed(q), least, most;
	int e = joint_compare(s, own, &least, &most);

	return e < 0 || least == most || own == 0 ? e : decompress(s, q);
}

/* Decide whether the sequence compresses. What is compressed already has the policy's form. */
static int decide(struct skv_session *s, struct skv_seq *q)
{
	int e = exchange_has(q) ? agree(s, q) : 0;

	q->compress.on = compress_possible(q);
	return e == 0 && q->compress.on ? trim(q) : e;
}

/* Has a layer fewer compressed tokens than a decode step expects? */
static bool behind(const struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (seq_compressed(q, layer) < compress_end(&p->plan[layer].compress, q->len))
			return true;
	return false;
}

/* Before a decode step, compress all that it expects to be compressed. */
static int compress_ready(struct skv_seq *q, uint32_t n_tokens, bool prompt)
{
	struct skv_session *s = q->session;
	int e = 0;

	(void)n_tokens;
	if (!q->compress.known) {
		e = decide(s, q);
		if (e < 0)
			return e;
		q->compress.known = true;
	}
	if (!q->compress.on)
		return 0;
	begin_slots(q);
	while (!prompt && e == 0 && behind(q))
		e = maintenance_run(s, q, MAINTENANCE_COMPRESS);
	return e;
}

const struct feature compress_feature = {
	.make = compressor_make,
	.unmake = compressor_unmake,
	.close = compress_close,
	.ready = compress_ready,
	.prepare = compress_prepare,
	.end = compress_step_end,
};
