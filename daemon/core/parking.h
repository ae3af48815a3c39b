/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/parking.h - parked sequences: which are to go to files, and what they name. What moves their bytes to files and back is outside
 * of the core.
 */
#ifndef SKV_CORE_PARKING_H
#define SKV_CORE_PARKING_H

#include "daemon/core/core.h"

/* From now on sequences make room by being parked, or (off) by being dropped. */
void skv_core_set_parking(struct skv_core *, bool on);
/*
 * The next sequence that is to be parked, one call each, until it returns false. It is under way then, until one of the two calls below.
 * Few of a user's are under way at once: the next one comes when one of these has ended.
 */
bool skv_core_next_park(struct skv_core *, uint32_t *ret_seq);
/* May there be one? */
bool skv_core_has_park(const struct skv_core *);
/* May another one of this user's be under way? */
bool skv_core_may_park(const struct skv_core *, uid_t uid);
/*
 * The same by name, of any rank, however many are under way: the next one after *row, which begins with UINT32_MAX. False: there is none;
 * *ret_held: and how many clients hold.
 */
bool skv_core_park_name(struct skv_core *, uid_t uid, const char *model, const char *name, uint32_t *row, uint32_t *ret_seq,
                        uint32_t *ret_held);
/* It is not needed, or cannot be; then it is not tried again for a while. */
void skv_core_park_failed(struct skv_core *, uint32_t seq, uint64_t now_ns);
/*
 * It is in a file, as the listing says. It goes from memory, in turns; or E_BUSY: a client has held it since, and the file is not what
 * it is any more.
 */
struct skv_core_listing;
int skv_core_park_done(struct skv_core *, const struct skv_core_listing *);

/* Where a sequence is, that nobody holds. What is borrowed stays valid until the next call into the core. */
struct skv_core_location {
	uid_t uid;
	const struct skv_model *model;
	const char *name;
	uint32_t max_tokens;
	uint64_t commit;
	int fd;                          /* of its memory */
	int pages_fd;                    /* of host memory: all pages; -1: they are on a device, in segments */
	uint64_t page_bytes, segment_bytes;
	uint64_t max_pages;              /* page ids are below */
	uint32_t pages_per_segment;
};
/* E_NOENT: there is no such sequence, or somebody holds it. */
int skv_core_seq_location(struct skv_core *, uint32_t seq, struct skv_core_location *ret);
/* The memory of a segment of its device (borrowed); NULL: there is no such segment now. */
const struct skv_mem_handle *skv_core_seq_segment(const struct skv_core *, uint32_t seq, uint32_t segment);
/*
 * The entries that count, of each table in order, skv_pte each, are checked and written into a file of the caller's, in turns. Begin: as
 * skv_core_seq_location(), -ENOMEM. Some: E_TURNS: there is more; E_NOENT; E_NOSPC; E_CORRUPT (it was dropped). The listing is over after anything but
 * E_TURNS; end it in the middle with skv_core_list_end().
 */
struct skv_core_listing {
	uint32_t seq;
	uint64_t commit, used; /* that it had */
	uint64_t n_entries, n_pages, most_bytes; /* known at once: the memory that the file may come to */
	struct skv_walk *walk;
};
int skv_core_list_begin(struct skv_core *, uint32_t seq, int fd, struct skv_core_listing *ret);
int skv_core_list_some(struct skv_core *, struct skv_core_listing *, uint32_t *units);
void skv_core_list_end(struct skv_core_listing *);

/*
 * The other way: a sequence that has neither name nor holder yet, and that nobody finds; a daemon that ends leaves nothing of it.
 * Its model's device is where its pages will be. E_EXIST, E_INVALID, E_QUOTA, E_NOSPC.
 */
int skv_core_restore_new(struct skv_core *, uid_t uid, const struct skv_model *, const char *name, uint32_t max_tokens, uint32_t *ret_seq);
/* Pages for it, at most `want`, as ascending runs: its own. E_WAIT: as skv_core_lease_get(). */
int skv_core_restore_take(struct skv_core *, uint32_t seq, uint32_t want, struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* All of it is there: it gets its name. E_EXIST: another has it by now. E_CORRUPT: its memory is not what one is. Then it is to be dropped. */
int skv_core_restore_done(struct skv_core *, uint32_t seq, const char *name);
/* In turns. */
int skv_core_restore_drop(struct skv_core *, uint32_t seq);

#endif
