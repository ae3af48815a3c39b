/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/parking.h - parked sequences: which ones are to go to files, and which pages they name. The
 * caller moves the bytes to files and back.
 */
#ifndef SKV_CORE_PARKING_H
#define SKV_CORE_PARKING_H

#include "daemon/core/core.h"

/* Whether sequences make room by being parked (on) or by being dropped (off), from now on. */
void skv_core_set_parking(struct skv_core *, bool on);
/*
 * The next sequence to be parked, one a call, until it returns false. Its parking is then in progress until
 * skv_core_park_failed() or skv_core_park_done(). Only a few of a user's sequences are in progress at once: the next
 * one is returned when one of them has ended.
 */
bool skv_core_next_park(struct skv_core *, uint32_t *ret_seq);
/* May skv_core_next_park() return one? */
bool skv_core_has_park(const struct skv_core *);
/* May another sequence of this user be in progress? */
bool skv_core_may_park(const struct skv_core *, uid_t uid);
/*
 * The same by name, of any rank and however many are in progress: the next sequence after *row, which starts as
 * UINT32_MAX. False: there is none. *ret_held is increased by the number of those that are in use.
 */
bool skv_core_park_name(struct skv_core *, uid_t uid, const char *model, const char *name, uint32_t *row,
                        uint32_t *ret_seq, uint32_t *ret_held);
/* Parking is not needed or failed; it is not tried again for a while. */
void skv_core_park_failed(struct skv_core *, uint32_t seq, uint64_t now_ns);
/*
 * The sequence is in a file, as the listing says. It is removed from memory, in turns. E_BUSY: a client has held it
 * since, so the file is out of date.
 */
struct skv_core_listing;
int skv_core_park_done(struct skv_core *, const struct skv_core_listing *);

/* Where a sequence without a holder is. What is borrowed stays valid until the next call into the core. */
struct skv_core_location {
	uid_t uid;
	const struct skv_model *model;
	const char *name;
	uint32_t max_tokens;
	uint64_t commit;
	int fd;                          /* of its memory */
	int pages_fd;                    /* of host memory: all pages; -1: the pages are in segments of a device */
	uint64_t page_bytes, segment_bytes;
	uint64_t max_pages;              /* limit of page ids */
	uint32_t pages_per_segment;
};
/* E_NOENT: there is no such sequence, or a client holds it. */
int skv_core_seq_location(struct skv_core *, uint32_t seq, struct skv_core_location *ret);
/* The memory of a segment on the sequence's device (borrowed); NULL: there is no such segment now. */
const struct skv_mem_handle *skv_core_seq_segment(const struct skv_core *, uint32_t seq, uint32_t segment);
/*
 * Checks the entries that count, of each table in order, and writes them as skv_pte into a file of the caller's, in
 * turns. begin: errors of skv_core_seq_location(), E_CORRUPT, -ENOMEM. some: 0: complete; E_TURNS: there is more;
 * E_NOENT; E_NOSPC; E_CORRUPT (the sequence was dropped). The listing has ended after any result but E_TURNS;
 * skv_core_list_end() ends it earlier.
 */
struct skv_core_listing {
	uint32_t seq;
	uint64_t commit, used; /* of the sequence when the listing began */
	/* most_bytes: limit of the file's memory, known from the beginning. */
	uint64_t n_entries, n_pages, most_bytes;
	struct skv_walk *walk;
};
int skv_core_list_begin(struct skv_core *, uint32_t seq, int fd, struct skv_core_listing *ret);
int skv_core_list_some(struct skv_core *, struct skv_core_listing *, uint32_t *units);
void skv_core_list_end(struct skv_core_listing *);

/*
 * The other direction: creates a sequence that has neither name nor holder yet and cannot be found; if the daemon ends,
 * nothing of it remains. The model's device is where its pages will be. E_EXIST, E_INVALID, E_QUOTA, E_NOSPC.
 */
int skv_core_restore_new(struct skv_core *, uid_t uid, const struct skv_model *, const char *name, uint32_t max_tokens,
                         uint32_t *ret_seq);
/* Takes pages for the sequence, at most `want`, as ascending runs. E_WAIT as in skv_core_lease_get(). */
int skv_core_restore_take(struct skv_core *, uint32_t seq, uint32_t want, struct skv_wire_run *ret_runs,
                          uint32_t max_runs, uint32_t *ret_n);
/*
 * All of the sequence is in memory: gives it its name. E_EXIST: another sequence has the name by now. E_CORRUPT: its
 * memory is invalid. After an error it has to be dropped.
 */
int skv_core_restore_done(struct skv_core *, uint32_t seq, const char *name);
/* Drops the sequence, in turns. */
int skv_core_restore_drop(struct skv_core *, uint32_t seq);

#endif
