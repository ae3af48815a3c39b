/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/verify-sparse.c - verifies the tables of a state that consist mostly of holes.
 *
 * A function that takes a new row assumes that the row's elements in these tables are zero. So all elements that are
 * not zero must belong to live rows. Only parts of the tables that have memory are read, because reading a hole through
 * the mapping would allocate memory for it.
 */
#include "daemon/core/restart/verify.h"

#include <errno.h>
#include <unistd.h>

#define BITS 64u

static bool lives(const struct skv_state *s, enum skv_table t, uint64_t i)
{
	return i < s->header->high[t] && ((const struct skv_row *)skv_state_at(s, t, i))->live;
}

/* Checks elements first … end - 1 of a table, which have memory (the first and the last perhaps only in part). */
typedef const char *(*check_fn)(const struct skv_state *, uint64_t first, uint64_t end);

/* Calls `check` for each part of a table that has memory. */
static const char *each_data(const struct skv_state *s, enum skv_table t, check_fn check)
{
	const struct skv_state_header *h = s->header;
	const off_t from = (off_t)h->offset[t], to = from + (off_t)(h->elements[t] * h->element_bytes[t]);
	const char *problem = NULL;

	for (off_t at = from, end; !problem && at < to; at = end) {
		at = lseek(s->fd, at, SEEK_DATA);
		if (at < 0 && errno != ENXIO)
			return "the state is not in memory whose holes can be found";
		if (at < 0 || at >= to)
			break;
		end = lseek(s->fd, at, SEEK_HOLE);
		if (end < 0 || end > to)
			end = to;
		problem = check(s, (uint64_t)(at - from) / h->element_bytes[t],
		                ((uint64_t)(end - from) + h->element_bytes[t] - 1) / h->element_bytes[t]);
	}
	return problem;
}

/* ---- members and announcements ----------------------------------------------------------------- */

static const char *check_members(const struct skv_state *s, uint64_t first, uint64_t end)
{
	const uint32_t n = s->header->geometry.max_clients;

	for (uint64_t i = first; i < end; i++) {
		const struct skv_member *m = skv_state_at(s, SKV_TABLE_MEMBERS, i);

		if ((m->sessions || m->lease) &&
		    (!lives(s, SKV_TABLE_POOLS, i / n) || !lives(s, SKV_TABLE_CLIENTS, i % n)))
			return skv_verify_off("member row of client row %u in pool row %u, which are not there",
			                      (uint32_t)(i % n), (uint32_t)(i / n));
	}
	return NULL;
}

/*
 * Checks what a client was told. Only a client with a session on the pool is told: of a segment in use or, in host
 * memory, of segment 0.
 */
static const char *check_told(const struct skv_state *s, uint64_t at, uint8_t told)
{
	const struct skv_geometry *g = &s->header->geometry;
	const uint64_t member = at / g->max_segments, n = g->max_clients;
	const uint32_t pool = (uint32_t)(member / n), client = (uint32_t)(member % n);
	const uint32_t segment = (uint32_t)(at % g->max_segments);
	const bool gone = told == SKV_TOLD_GONE_DUE || told == SKV_TOLD_GONE;
	bool host;

	if (skv_member_row(s, pool, client)->sessions) { /* then both rows are live: see check_members() */
		host = skv_pool_row(s, pool)->device == SKV_DEVICE_HOST;
		if (told <= SKV_TOLD_AGAIN && segment < (host ? 1 : skv_pool_row(s, pool)->high) &&
		    !(gone && (host || skv_segment_row(s, pool, segment)->state != SKV_SEGMENT_LEAVING)))
			return NULL;
	}
	return skv_verify_off("told value %u of segment %u, for client row %u in pool row %u", told, segment, client,
	                      pool);
}

static const char *check_all_told(const struct skv_state *s, uint64_t first, uint64_t end)
{
	const uint8_t *told = skv_state_at(s, SKV_TABLE_TOLD, 0);
	const char *problem = NULL;

	for (uint64_t i = first; !problem && i < end; i++)
		if (told[i])
			problem = check_told(s, i, told[i]);
	return problem;
}

/* Checks that no client has to acknowledge the end of a segment whose number was never used. */
static const char *check_segments(const struct skv_state *s, uint64_t first, uint64_t end)
{
	const uint32_t n = s->header->geometry.max_segments;

	for (uint64_t i = first; i < end; i++) {
		const struct skv_segment_row *row = skv_state_at(s, SKV_TABLE_SEGMENTS, i);

		if (row->waiting &&
		    !(lives(s, SKV_TABLE_POOLS, i / n) && i % n < skv_pool_row(s, (uint32_t)(i / n))->high))
			return skv_verify_off("segment row %u of pool row %u: %u clients to acknowledge, and it is not "
			                      "there",
			                      (uint32_t)(i % n), (uint32_t)(i / n), row->waiting);
	}
	return NULL;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/*
 * Checks that owner words outside live segments are 0. Owner words in live segments are checked when the segment is
 * recounted: balance.c.
 */
static const char *check_owners(const struct skv_state *s, uint64_t first, uint64_t end)
{
	const uint64_t max_pages = s->header->geometry.max_pages;

	for (uint64_t i = first, next; i < end; i = next) {
		const uint32_t pool = (uint32_t)(i / max_pages), page = (uint32_t)(i % max_pages);
		const struct skv_pool_row *p = lives(s, SKV_TABLE_POOLS, pool) ? skv_pool_row(s, pool) : NULL;
		const uint32_t segment = p ? page / p->pages_per_segment : 0;
		const skv_owner *word = skv_state_at(s, SKV_TABLE_PAGES, i);

		next = i - page + (p && segment < p->high ? (segment + UINT64_C(1)) * p->pages_per_segment : max_pages);
		next = next < end ? next : end;
		if (p && segment < p->high && skv_segment_row(s, pool, segment)->state == SKV_SEGMENT_LIVE)
			continue;
		for (uint64_t k = 0; k < next - i; k++)
			if (word[k])
				return skv_verify_off("owner word %#x of page %u of pool row %u, which is not there",
				                      word[k], (uint32_t)(page + k), pool);
	}
	return NULL;
}

/* Checks that only sequences with `referred` have reference bits, and only for page numbers below their pool's end. */
static const char *check_refs(const struct skv_state *s, uint64_t first, uint64_t end)
{
	const uint64_t words = skv_ref_words(&s->header->geometry);
	const uint64_t *all = skv_state_at(s, SKV_TABLE_REFS, 0);

	for (uint64_t i = first; i < end; i++) {
		const uint64_t page = i % words * BITS;
		const struct skv_seq_row *q;
		uint64_t pages;

		if (!all[i])
			continue;
		if (!lives(s, SKV_TABLE_SEQUENCES, i / words) || !skv_seq_row(s, (uint32_t)(i / words))->referred)
			return skv_verify_off("references of sequence row %u, which has none", (uint32_t)(i / words));
		q = skv_seq_row(s, (uint32_t)(i / words));
		pages = (uint64_t)skv_pool_row(s, q->pool)->high * skv_pool_row(s, q->pool)->pages_per_segment;
		if (page >= pages || (pages - page < BITS && all[i] >> (pages - page)))
			return skv_verify_off("references of sequence row %u are to pages that do not exist",
			                      (uint32_t)(i / words));
	}
	return NULL;
}

const char *skv_verify_sparse(const struct skv_state *s)
{
	static const struct {
		enum skv_table table;
		check_fn check;
	} checks[] = {{SKV_TABLE_MEMBERS, check_members},
	              {SKV_TABLE_SEGMENTS, check_segments},
	              {SKV_TABLE_TOLD, check_all_told},
	              {SKV_TABLE_PAGES, check_owners},
	              {SKV_TABLE_REFS, check_refs}};
	const char *problem = NULL;

	for (size_t i = 0; !problem && i < sizeof(checks) / sizeof(*checks); i++)
		problem = each_data(s, checks[i].table, checks[i].check);
	return problem;
}
