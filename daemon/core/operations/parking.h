/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/parking.h - parking: which sequences are moved to files, and which pages they name. The caller
 * moves the bytes to files and back.
 */
#ifndef SKV_CORE_PARKING_H
#define SKV_CORE_PARKING_H

#include "daemon/core/core.h"

/* From now on sequences are parked (`on`) or dropped (not `on`) to make room. */
void skv_core_set_parking(struct skv_core *, bool on);
/*
 * Returns the next sequence to be parked; false: there is none now. Parking the sequence is then in progress until
 * skv_core_park_failed() or skv_core_park_done(). Only a few sequences of a user are being parked at once: a further
 * sequence is returned when parking one of these has ended.
 */
bool skv_core_next_park(struct skv_core *, uint32_t *ret_seq);
/* May skv_core_next_park() return a sequence? */
bool skv_core_has_park(const struct skv_core *);
/* Is the user below the limit of sequences that are being parked at once? */
bool skv_core_may_park(const struct skv_core *, uid_t uid);
/*
 * Begins to park the next sequence of this name, of any rank, after row *row (UINT32_MAX at first), however many are
 * being parked. False: there is none. Adds to *ret_held the number of sequences that the call skipped because they are
 * in use.
 */
bool skv_core_park_name(struct skv_core *, uid_t uid, const char *model, const char *name, uint32_t *row,
                        uint32_t *ret_seq, uint32_t *ret_held);
/* Parking the sequence has failed or is not needed; parking is not tried again for a while. */
void skv_core_park_failed(struct skv_core *, uint32_t seq, uint64_t now_ns);
/*
 * A file contains the sequence as it was listed: removes the sequence from memory, in turns. E_BUSY: a client has held
 * the sequence since, so the file is out of date.
 */
struct skv_core_listing;
int skv_core_park_done(struct skv_core *, const struct skv_core_listing *);

/*
 * Where the data of a sequence without a holder is. All pointers and fds are borrowed until the next call into the
 * core.
 */
struct skv_core_location {
	uid_t uid;
	const struct skv_model *model;
	const char *name;
	uint32_t max_tokens;
	uint64_t commit;
	int fd;                          /* descriptor of the sequence's memory */
	int pages_fd;                    /* pool's memfd, with all pages; -1: the pages are in segments of a device */
	uint64_t page_bytes, segment_bytes;
	uint64_t max_pages;              /* page ids are below this number */
	uint32_t pages_per_segment;
};
/* Returns where a sequence's data is. E_NOENT: the sequence does not exist, or a client holds it. */
int skv_core_seq_location(struct skv_core *, uint32_t seq, struct skv_core_location *ret);
/* Handle of the memory of a segment on the sequence's device (borrowed); NULL: there is no such segment now. */
const struct skv_mem_handle *skv_core_seq_segment(const struct skv_core *, uint32_t seq, uint32_t segment);
/*
 * A listing checks the committed entries of each of a sequence's tables in order, and writes them as skv_pte to a file
 * of the caller's (`fd`, borrowed), in turns. skv_core_list_begin() has the errors of skv_core_seq_location(),
 * E_CORRUPT and -ENOMEM. skv_core_list_some() returns 0: complete; E_TURNS: there is more; E_NOENT; E_NOSPC; E_CORRUPT
 * (the sequence was dropped). A listing has ended after any result but E_TURNS; skv_core_list_end() ends it earlier.
 */
struct skv_core_listing {
	uint32_t seq;
	uint64_t commit, used; /* the sequence's commit word, and the number of its last use, when the listing began */
	/* numbers of entries and of pages in the list; most_bytes: limit of the file's memory, set at the beginning */
	uint64_t n_entries, n_pages, most_bytes;
	struct skv_walk *walk;
};
int skv_core_list_begin(struct skv_core *, uint32_t seq, int fd, struct skv_core_listing *ret);
int skv_core_list_some(struct skv_core *, struct skv_core_listing *, uint32_t *units);
void skv_core_list_end(struct skv_core_listing *);

/*
 * Creates a sequence to read a file into. The sequence has neither name nor holder yet, so it cannot be found; if the
 * daemon ends, nothing of the sequence remains. Its pages will be in the memory of the model's device. E_EXIST: another
 * sequence has `name` already; E_INVALID, E_QUOTA, E_NOSPC.
 */
int skv_core_restore_new(struct skv_core *, uid_t uid, const struct skv_model *, const char *name, uint32_t max_tokens,
                         uint32_t *ret_seq);
/*
 * Takes at most `want` pages for a sequence that is being restored, as ascending runs. Errors of skv_core_lease_get().
 */
int skv_core_restore_take(struct skv_core *, uint32_t seq, uint32_t want, struct skv_wire_run *ret_runs,
                          uint32_t max_runs, uint32_t *ret_n);
/*
 * Gives a restored sequence its name when all of the sequence is in memory. E_EXIST: another sequence has the name by
 * now. E_CORRUPT: the sequence's memory is invalid. After an error the caller drops the sequence.
 */
int skv_core_restore_done(struct skv_core *, uint32_t seq, const char *name);
/* Drops a sequence that is being restored, in turns. */
int skv_core_restore_drop(struct skv_core *, uint32_t seq);

#endif
