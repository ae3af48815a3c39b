/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/counts.h - counts of what the daemon has done since it started: for each user, and in all.
 *
 * A user sees its own counts and operators see the totals, so that counters tell no user what others do. A user's
 * counts are kept as long as its account exists; after that they are in the totals only. Not thread-safe.
 */
#ifndef SKV_COUNTS_H
#define SKV_COUNTS_H

#include <stdint.h>
#include <sys/types.h>

enum skv_count {
	/* connections */
	SKV_COUNT_CONNECTIONS,
	SKV_COUNT_REFUSED,
	SKV_COUNT_MALFORMED,
	SKV_COUNT_MESSAGES,
	SKV_COUNT_MESSAGE_NS, /* time of one message: the last one, the longest one */
	SKV_COUNT_MESSAGE_MAX_NS,
	/* clients that are gone, and the time until what they had was reclaimed */
	SKV_COUNT_GONE,
	SKV_COUNT_RECLAIM_NS,
	SKV_COUNT_RECLAIM_MAX_NS,
	/* sequences dropped while no client held them: for their age, and to make room */
	SKV_COUNT_EXPIRED,
	SKV_COUNT_DISPLACED,
	/* parked sequences: written, read, failed jobs, damaged files, expired files */
	SKV_COUNT_PARKED,
	SKV_COUNT_RESUMED,
	SKV_COUNT_PARKING_FAILED,
	SKV_COUNT_DAMAGED,
	SKV_COUNT_PARKED_EXPIRED,
	SKV_COUNT_ATTACHED_IN_MEMORY,
	SKV_COUNT_ATTACHED_AFTER_READING,
	SKV_COUNT_BYTES_WRITTEN,
	SKV_COUNT_BYTES_READ,
	SKV_COUNT_RESUME_NS, /* time until a parked sequence was in memory */
	SKV_COUNT_RESUME_MAX_NS,
	/* sealed prefixes on disk: written, read, tokens read, evicted files; time until one was in memory */
	SKV_COUNT_PREFIXES_WRITTEN,
	SKV_COUNT_PREFIXES_RESTORED,
	SKV_COUNT_RESTORED_TOKENS,
	SKV_COUNT_PREFIXES_EVICTED,
	SKV_COUNT_RESTORE_NS,
	SKV_COUNT_RESTORE_MAX_NS,
	/*
	 * requests about sealed prefixes: prefixes sealed, prompts, prompts with a hit of a block or more, tokens of
	 * both
	 */
	SKV_COUNT_SEALED,
	SKV_COUNT_ASKED,
	SKV_COUNT_HITS,
	SKV_COUNT_ASKED_TOKENS,
	SKV_COUNT_HIT_TOKENS,
	/*
	 * prefixes from and to the store, failed jobs, values read by NIXL; time from a prompt's keys until its
	 * prefix was there
	 */
	SKV_COUNT_FETCHED,
	SKV_COUNT_FETCHED_TOKENS,
	SKV_COUNT_SENT,
	SKV_COUNT_SENT_BYTES,
	SKV_COUNT_STORE_FAILED,
	SKV_COUNT_NIXL_VALUES,
	SKV_COUNT_NIXL_BYTES,
	SKV_COUNT_FETCH_NS,
	SKV_COUNT_FETCH_MAX_NS,
	SKV_COUNTS
};
#define SKV_NO_UID ((uid_t)-1) /* unknown user: counted in the totals only */

struct skv_counts;
struct skv_counts *skv_counts_new(void); /* NULL: no memory */
struct skv_counts *skv_counts_free(struct skv_counts *); /* NULL is fine; returns NULL */

/* Adds n for the user and in all; in all only if there is no memory for the user's counts. */
void skv_count(struct skv_counts *, uid_t, enum skv_count, uint64_t n);
/* Sets the last time, in ns; the next count is the maximum. */
void skv_count_time(struct skv_counts *, uid_t, enum skv_count last, uint64_t ns);

/* The user's counts, zeros if there are none; the totals. [SKV_COUNTS], borrowed until the next skv_counts_sweep(). */
const uint64_t *skv_counts_of(const struct skv_counts *, uid_t);
const uint64_t *skv_counts_total(const struct skv_counts *);

/* Once in a while: frees counts of users that were neither kept nor new since the last sweep. */
void skv_counts_keep(struct skv_counts *, uid_t);
void skv_counts_sweep(struct skv_counts *);

#endif
