/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parked/parking-report.c - parked sequences as JSON for sparsekvctl. */
#include "daemon/core/state/units.h"
#include "daemon/core/operations/prefix.h"
#include "daemon/core/operations/views.h"
#include "daemon/parked/parking-priv.h"

#define FILE_UNITS 20u /* work units of a file that gets no row */

json_t *skv_parking_status(const struct skv_server *s, bool all, uid_t uid, const uint64_t *n)
{
	const struct skv_parking *k = s->parking;
	uint64_t files, bytes, jobs = 0;

	if (!k)
		return json_array();
	skv_files_sum(&k->files, all ? UINT32_MAX : (uint32_t)uid, false, &files, &bytes);
	for (const struct skv_job *j = k->jobs->all; j; j = j->next)
		jobs += all || j->m.uid == (uint32_t)uid;
	return json_pack("[{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}]", "path",
	                 s->config.parked_path, "account_limit_bytes", (json_int_t)s->config.account_parked_bytes,
	                 "sequences", (json_int_t)files, "bytes", (json_int_t)bytes, "jobs", (json_int_t)jobs, "parked",
	                 (json_int_t)n[SKV_COUNT_PARKED], "resumed", (json_int_t)n[SKV_COUNT_RESUMED], "failed",
	                 (json_int_t)n[SKV_COUNT_PARKING_FAILED], "damaged", (json_int_t)n[SKV_COUNT_DAMAGED],
	                 "expired", (json_int_t)n[SKV_COUNT_PARKED_EXPIRED], "attached_in_memory",
	                 (json_int_t)n[SKV_COUNT_ATTACHED_IN_MEMORY], "attached_after_reading",
	                 (json_int_t)n[SKV_COUNT_ATTACHED_AFTER_READING], "bytes_written",
	                 (json_int_t)n[SKV_COUNT_BYTES_WRITTEN], "bytes_read", (json_int_t)n[SKV_COUNT_BYTES_READ],
	                 "resume_last_ms", (double)n[SKV_COUNT_RESUME_NS] / 1e6, "resume_max_ms",
	                 (double)n[SKV_COUNT_RESUME_MAX_NS] / 1e6);
}

/* Returns whether the sealed prefix of this file is in memory, too; then the core reports it as a sequence. */
static bool is_listed(const struct skv_server *s, const struct skv_parked *p)
{
	return skv_core_prefix_exists(s->core, (uid_t)p->uid, &p->model, p->keys->key, p->n_keys);
}

static json_t *row_of(const struct skv_parked *p)
{
	return json_pack("{s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:n, s:n, s:n, s:I, s:b}", "seq",
	                 (json_int_t)0, "uid", (json_int_t)p->uid, "name", p->name, "model", p->model.name, "client",
	                 (json_int_t)0, "session", (json_int_t)0, "tokens", (json_int_t)skv_commit_len(p->commit),
	                 "max_tokens", (json_int_t)p->max_tokens, "pages_total",
	                 (json_int_t)((uint64_t)p->model.n_layers * skv_pages_of(skv_commit_len(p->commit))),
	                 "page_bytes", (json_int_t)(p->n_pages ? p->bytes / p->n_pages : 0), "pages", "pages_resident",
	                 "pages_shared", "parked_bytes", (json_int_t)p->bytes, "damaged", p->damaged);
}

bool skv_parking_rows_some(struct skv_server *s, bool all, uid_t uid, size_t *at, uint32_t *units,
                           void (*cb)(void *, json_t *), void *ctx)
{
	const struct skv_files *f = s->parking ? &s->parking->files : NULL;

	for (; f && *at < f->n; ++*at) {
		const struct skv_parked *p = f->all[*at];

		if (!skv_units_take(units, FILE_UNITS))
			return false;
		if (p->going || (!all && p->uid != uid) || (p->indexed && is_listed(s, p)))
			continue;
		cb(ctx, row_of(p));
	}
	return true;
}
