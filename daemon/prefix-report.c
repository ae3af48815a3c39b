/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix-report.c - what sealed prefixes were good for, as JSON for sparsekvctl. */
#include "daemon/prefix-priv.h"

/* Of those on disk; nothing where there is no disk. */
static int add_parked(json_t *to, const struct skv_parking *k)
{
	const struct skv_parking_counters *n = &k->counters;
	uint64_t files, bytes;

	skv_files_sum(&k->files, UINT32_MAX, true, &files, &bytes);
	return json_object_update_new(to, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "parked", (json_int_t)files, "parked_bytes",
	                                            (json_int_t)bytes, "written", (json_int_t)n->prefixes_parked, "restored",
	                                            (json_int_t)n->prefixes_restored, "restored_tokens", (json_int_t)n->prefix_tokens, "evicted",
	                                            (json_int_t)n->prefixes_evicted, "restore_last_ms", (double)n->prefix_last_ns / 1e6,
	                                            "restore_max_ms", (double)n->prefix_max_ns / 1e6));
}

json_t *skv_prefix_status(struct skv_server *s)
{
	const struct skv_prefix_counters *n = &s->prefix->counters;
	unsigned fetching = 0, sending = 0;
	json_t *all;

	for (const struct skv_prefix_ask *a = s->prefix->asks; a; a = a->next) {
		fetching += a->state == SKV_PREFIX_FETCHES;
		sending += a->state == SKV_PREFIX_SENDS;
	}
	all = json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "store",
	                 *s->config.prefix_store && s->parking, "sealed", (json_int_t)n->sealed, "asked", (json_int_t)n->asked, "hits",
	                 (json_int_t)n->hits, "asked_tokens", (json_int_t)n->asked_tokens, "hit_tokens", (json_int_t)n->hit_tokens,
	                 "fetching", (json_int_t)fetching, "fetched", (json_int_t)n->fetched, "fetched_tokens",
	                 (json_int_t)n->fetched_tokens, "sending", (json_int_t)sending, "sent", (json_int_t)n->sent, "sent_bytes",
	                 (json_int_t)n->sent_bytes, "failed", (json_int_t)n->failed, "nixl_values", (json_int_t)n->nixl_values,
	                 "nixl_bytes", (json_int_t)n->nixl_bytes, "fetch_last_ms", (double)n->fetch_last_ns / 1e6,
	                 "fetch_max_ms", (double)n->fetch_max_ns / 1e6);
	if (all && s->parking && add_parked(all, s->parking) < 0) {
		json_decref(all);
		return NULL;
	}
	return all;
}
