/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/import.h"

#include <stdlib.h>
#include <string.h>
#include "common/clock.h"

#define MS UINT64_C(1000000) /* ns */
#define MOST_MS 2000u /* maximum time of all reads of a call; the same as the default timeout of a call to the store */

/* Bytes of memory for the values of a call, each with the overhead of sealing. */
#define MEMORY (SKV_STORE_CALL_BYTES + SKV_STORE_BATCH_KEYS * (size_t)SKV_STORE_SEAL_OVERHEAD)
_Static_assert(MEMORY >= SKV_STORE_MAX_VALUE, "room for one value of any size");

struct import {
	struct skv_store_values *v;
	struct skv_nixl *nixl;
	struct skv_store_import *all;
	uint64_t deadline_ns;
	skv_store_import_fn fn;
	void *ctx;
};

/* ---- agents ---------------------------------------------------------------------------------- */

struct metadata {
	const struct skv_store_cipher *cipher;
	const uint8_t *agent;
	void *at; /* the decrypted metadata; NULL: none was found */
	size_t bytes;
};

static void take_metadata(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct metadata *m = ctx;

	(void)i;
	if (!value || bytes <= SKV_STORE_SEAL_OVERHEAD || bytes > SKV_STORE_MAX_METADATA + SKV_STORE_SEAL_OVERHEAD)
		return;
	m->at = malloc(bytes);
	m->bytes = bytes - SKV_STORE_SEAL_OVERHEAD;
	if (m->at && !skv_store_agent_open(m->cipher, m->agent, value, bytes, m->at)) {
		free(m->at);
		m->at = NULL;
	}
}

/*
 * Forgets an agent that does not answer, for whatever reason, and deletes its metadata from the store. So no host waits
 * for that agent until it stores its metadata again, with its next PUT job (export.c).
 */
static void bury(struct import *x, const uint8_t agent[SKV_STORE_AGENT])
{
	const uint32_t left_ms = skv_store_values_left_ms(x->v);
	char text[SKV_STORE_AGENT_KEY];
	struct skv_store_bytes key = {text, 0};
	int status;

	skv_nixl_forget(x->nixl, agent);
	skv_store_agent_key(agent, text);
	key.n = strlen(text);
	if (left_ms)
		(void)skv_store_del(x->v->store, &key, 1, left_ms, &status);
}

/*
 * Loads an agent's metadata from the store if it is not loaded yet. Returns 1 if values can be read from the agent, 0
 * if not, or a negative errno if the store failed.
 */
static int know(struct import *x, const uint8_t agent[SKV_STORE_AGENT])
{
	const struct skv_store_cipher cipher = {x->v->cipher.ctx, x->v->what.agents_key};
	struct metadata m = {.cipher = &cipher, .agent = agent};
	const uint32_t left_ms = skv_store_values_left_ms(x->v);
	char text[SKV_STORE_AGENT_KEY];
	struct skv_store_bytes key = {text, 0};
	int r, status;

	if (skv_nixl_knows(x->nixl, agent))
		return 1;
	if (!left_ms)
		return skv_store_values_late(x->v);
	skv_store_agent_key(agent, text);
	key.n = strlen(text);
	r = skv_store_get(x->v->store, &key, 1, left_ms, take_metadata, &m, &status);
	if (r < 0)
		return skv_store_values_failed(x->v, r);
	if (!m.at)
		return 0;
	r = skv_nixl_load(x->nixl, agent, m.at, m.bytes, x->deadline_ns);
	free(m.at);
	if (r < 0)
		bury(x, agent);
	return r == 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void in_vain(struct import *x, struct skv_store_wanted *w)
{
	x->fn(x->ctx, w->i, NULL, 0);
}

/* Starts the reads of all records, so that transfers overlap with the decryption of values that have arrived. */
static int begin_all(struct import *x)
{
	size_t used = 0;
	int r;

	for (uint32_t k = 0; k < x->all->n && !x->nixl->broken; k++) {
		struct skv_store_wanted *w = &x->all->wanted[k];

		r = know(x, w->record.agent);
		if (r < 0)
			return r;
		w->to = x->nixl->memory + used;
		used += w->record.bytes;
		if (r == 1 && skv_nixl_read_begin(x->nixl, &w->record, w->to, &w->read) < 0) {
			bury(x, w->record.agent);
			r = 0;
		}
		if (r == 0)
			in_vain(x, w);
	}
	return 0;
}

static void end_all(struct import *x)
{
	for (uint32_t k = 0; k < x->all->n; k++) {
		struct skv_store_wanted *w = &x->all->wanted[k];
		int r;

		if (!w->read || x->nixl->broken) /* once the agent is broken, the state of the other reads is unknown */
			continue;
		r = skv_nixl_read_end(x->nixl, w->read, x->deadline_ns);
		if (r < 0)
			bury(x, w->record.agent);
		x->fn(x->ctx, w->i, r < 0 ? NULL : w->to, w->record.bytes);
	}
}

int skv_store_import_read(struct skv_store_values *v, struct skv_store_import *all, skv_store_import_fn fn, void *ctx)
{
	static struct skv_nixl *nixl;
	struct import x = {.v = v, .all = all, .fn = fn, .ctx = ctx};
	const uint32_t left_ms = skv_store_values_left_ms(v) / 2;
	int r;

	if (all->n == 0)
		return 0;
	if (!left_ms)
		return skv_store_values_late(v);
	r = nixl ? 0 : skv_store_values_nixl(v, MEMORY, &nixl);
	if (r < 0)
		return r;
	x.nixl = nixl;
	x.deadline_ns = skv_now_ns() + (left_ms < MOST_MS ? left_ms : MOST_MS) * MS;
	r = begin_all(&x);
	end_all(&x);
	v->work->broken |= nixl->broken;
	return r;
}
