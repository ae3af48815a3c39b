/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix-report.c - what sealed prefixes were good for, as JSON for sparsekvctl. */
#include "daemon/prefix-priv.h"

json_t *skv_prefix_status(struct skv_server *s)
{
	const struct skv_prefix_counters *n = &s->prefix->counters;
	unsigned fetching = 0, sending = 0;

	for (const struct skv_prefix_ask *a = s->prefix->asks; a; a = a->next) {
		fetching += a->state == SKV_PREFIX_FETCHES;
		sending += a->state == SKV_PREFIX_SENDS;
	}
	return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "store",
	                 *s->config.prefix_store && s->parking, "sealed", (json_int_t)n->sealed, "asked", (json_int_t)n->asked, "hits",
	                 (json_int_t)n->hits, "asked_tokens", (json_int_t)n->asked_tokens, "hit_tokens", (json_int_t)n->hit_tokens,
	                 "fetching", (json_int_t)fetching, "fetched", (json_int_t)n->fetched, "fetched_tokens",
	                 (json_int_t)n->fetched_tokens, "sending", (json_int_t)sending, "sent", (json_int_t)n->sent, "sent_bytes",
	                 (json_int_t)n->sent_bytes, "failed", (json_int_t)n->failed, "nixl_values", (json_int_t)n->nixl_values,
	                 "nixl_bytes", (json_int_t)n->nixl_bytes, "fetch_last_ms", (double)n->fetch_last_ns / 1e6,
	                 "fetch_max_ms", (double)n->fetch_max_ns / 1e6);
}
