/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/prefix/prefix-report.c - statistics of sealed prefixes, of a user or in all, as JSON for sparsekvctl. */
#include "daemon/parked/parking.h"
#include "daemon/prefix/prefix-priv.h"

/* Adds the statistics of sealed prefixes on disk to the JSON object. */
static int add_parked(json_t *to, uint64_t files, uint64_t bytes, const uint64_t *n)
{
	return json_object_update_new(to, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "parked",
	                                            (json_int_t)files, "parked_bytes", (json_int_t)bytes, "written",
	                                            (json_int_t)n[SKV_COUNT_PREFIXES_WRITTEN], "restored",
	                                            (json_int_t)n[SKV_COUNT_PREFIXES_RESTORED], "restored_tokens",
	                                            (json_int_t)n[SKV_COUNT_RESTORED_TOKENS], "evicted",
	                                            (json_int_t)n[SKV_COUNT_PREFIXES_EVICTED], "restore_last_ms",
	                                            (double)n[SKV_COUNT_RESTORE_NS] / 1e6, "restore_max_ms",
	                                            (double)n[SKV_COUNT_RESTORE_MAX_NS] / 1e6));
}

json_t *skv_prefix_status(const struct skv_server *s, bool all, uid_t uid, const uint64_t *n)
{
	unsigned fetching = 0, sending = 0;
	uint64_t files, bytes;
	json_t *row;

	for (const struct skv_prefix_ask *a = s->prefix->asks; a; a = a->next) {
		fetching += (all || a->uid == uid) && a->state == SKV_PREFIX_FETCHES;
		sending += (all || a->uid == uid) && a->state == SKV_PREFIX_SENDS;
	}
	row = json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}",
	                "store", *s->config.prefix_store != 0, "sealed", (json_int_t)n[SKV_COUNT_SEALED], "asked",
	                (json_int_t)n[SKV_COUNT_ASKED], "hits", (json_int_t)n[SKV_COUNT_HITS], "asked_tokens",
	                (json_int_t)n[SKV_COUNT_ASKED_TOKENS], "hit_tokens", (json_int_t)n[SKV_COUNT_HIT_TOKENS],
	                "fetching", (json_int_t)fetching, "fetched", (json_int_t)n[SKV_COUNT_FETCHED], "fetched_tokens",
	                (json_int_t)n[SKV_COUNT_FETCHED_TOKENS], "sending", (json_int_t)sending, "sent",
	                (json_int_t)n[SKV_COUNT_SENT], "sent_bytes", (json_int_t)n[SKV_COUNT_SENT_BYTES], "failed",
	                (json_int_t)n[SKV_COUNT_STORE_FAILED], "nixl_values", (json_int_t)n[SKV_COUNT_NIXL_VALUES],
	                "nixl_bytes", (json_int_t)n[SKV_COUNT_NIXL_BYTES], "fetch_last_ms",
	                (double)n[SKV_COUNT_FETCH_NS] / 1e6, "fetch_max_ms", (double)n[SKV_COUNT_FETCH_MAX_NS] / 1e6);
	if (row && skv_parking_sum_prefixes(s, all, uid, &files, &bytes) && add_parked(row, files, bytes, n) < 0) {
		json_decref(row);
		return NULL;
	}
	return row;
}
