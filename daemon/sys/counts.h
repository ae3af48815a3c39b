/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/counts.h - counts events since the daemon started: for each user, and in all.
 *
 * A user sees its own counts and operators see the totals, so that no count tells a user what other users do. The
 * counts of a user are kept as long as the user's account exists; after that only the totals include them. The
 * functions are not thread-safe.
 */
#ifndef SKV_COUNTS_H
#define SKV_COUNTS_H

#include <stdint.h>
#include <sys/types.h>

enum skv_count {
	/* connections: accepted, refused, ended for a malformed message; then requests */
	SKV_COUNT_CONNECTIONS,
	SKV_COUNT_REFUSED,
	SKV_COUNT_MALFORMED,
	SKV_COUNT_MESSAGES,
	SKV_COUNT_MESSAGE_NS, /* time that handling a message took: of the last message, of the longest one */
	SKV_COUNT_MESSAGE_MAX_NS,
	/* clients that are gone, and the time until their memory was reclaimed: of the last one, the longest */
	SKV_COUNT_GONE,
	SKV_COUNT_RECLAIM_NS,
	SKV_COUNT_RECLAIM_MAX_NS,
	/* sequences that were dropped while no client held them: for their age, and to make room for other users */
	SKV_COUNT_EXPIRED,
	SKV_COUNT_DISPLACED,
	/* parked sequences: written, read back, failed jobs, damaged files, expired files; then attaches and bytes */
	SKV_COUNT_PARKED,
	SKV_COUNT_RESUMED,
	SKV_COUNT_PARKING_FAILED,
	SKV_COUNT_DAMAGED,
	SKV_COUNT_PARKED_EXPIRED,
	SKV_COUNT_ATTACHED_IN_MEMORY,
	SKV_COUNT_ATTACHED_AFTER_READING,
	SKV_COUNT_BYTES_WRITTEN,
	SKV_COUNT_BYTES_READ,
	SKV_COUNT_RESUME_NS, /* time until a parked sequence was in memory: the last one, the longest */
	SKV_COUNT_RESUME_MAX_NS,
	/* sealed prefixes on disk: written, read back, tokens of those, evicted files; time until one was in memory */
	SKV_COUNT_PREFIXES_WRITTEN,
	SKV_COUNT_PREFIXES_RESTORED,
	SKV_COUNT_RESTORED_TOKENS,
	SKV_COUNT_PREFIXES_EVICTED,
	SKV_COUNT_RESTORE_NS,
	SKV_COUNT_RESTORE_MAX_NS,
	/*
	 * sealed prefixes: prefixes sealed; prompts for which a prefix was asked for; prompts that began with one of a
	 * block or more; tokens of these prompts; tokens that came from a prefix
	 */
	SKV_COUNT_SEALED,
	SKV_COUNT_ASKED,
	SKV_COUNT_HITS,
	SKV_COUNT_ASKED_TOKENS,
	SKV_COUNT_HIT_TOKENS,
	/*
	 * prefix store: prefixes fetched and sent, failed jobs, values read by NIXL; time from the computation of a
	 * prompt's keys until its prefix was in memory
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
#define SKV_NO_UID ((uid_t)-1) /* an unknown user, whose events are counted in the totals only */

struct skv_counts;
struct skv_counts *skv_counts_new(void); /* returns NULL if there is no memory */
struct skv_counts *skv_counts_free(struct skv_counts *); /* accepts NULL; returns NULL */

/*
 * Adds n to a count of the user and to the total. If there is no memory for the user's counts, adds n only to the
 * total.
 */
void skv_count(struct skv_counts *, uid_t, enum skv_count, uint64_t n);
/* Sets the count `last` to a time in ns, and raises the count after it, the longest time, if the new time is longer. */
void skv_count_time(struct skv_counts *, uid_t, enum skv_count last, uint64_t ns);

/*
 * Return the counts of a user (zeros if there are none), and the totals: arrays [SKV_COUNTS], borrowed until the next
 * skv_counts_sweep().
 */
const uint64_t *skv_counts_of(const struct skv_counts *, uid_t);
const uint64_t *skv_counts_total(const struct skv_counts *);

/*
 * Call skv_counts_keep() for each user with an account, then skv_counts_sweep(), once in a while. The sweep frees
 * counts of users that were neither kept nor new since the last sweep.
 */
void skv_counts_keep(struct skv_counts *, uid_t);
void skv_counts_sweep(struct skv_counts *);

#endif
