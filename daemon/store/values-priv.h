/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values-priv.h - code shared by the jobs of values.h: PUT, FIND and GET of the prefix store.
 *
 * The worker process keeps its client of the store, with its connections, until a job names another store. All other
 * state belongs to one job; its end frees the state and wipes the keys.
 */
#ifndef SKV_STORE_VALUES_PRIV_H
#define SKV_STORE_VALUES_PRIV_H

#include "daemon/disk/list.h"
#include "daemon/disk/pages.h"
#include "daemon/store/nixl.h"

#define SKV_STORE_RUN 4096u /* page ids read from a list at a time */
#define SKV_STORE_BATCH_KEYS 256u /* maximum number of keys in a call to the store */
/*
 * Maximum bytes of values in a call to the store, unless a single value is larger. Progress is reported only between
 * calls, so the limit is small enough that a call does not take long.
 */
#define SKV_STORE_CALL_BYTES ((size_t)16 << 20)

struct skv_store_part_number {
	uint32_t block, part;
};

struct skv_store_values {
	struct skv_disk_work *work;
	struct skv_store *store; /* client of the store; not freed with the job */
	struct skv_store_what what;
	uint8_t (*names)[SKV_STORE_NAME]; /* [what.n_blocks] */
	uint64_t deadline_ns;
	bool gave_up; /* the store failed or the job's time is over, with the reason in work->why */
	/* fields of the current call to the store */
	char text[SKV_STORE_BATCH_KEYS][SKV_STORE_PART_KEY];
	struct skv_store_bytes keys[SKV_STORE_BATCH_KEYS];
	int status[SKV_STORE_BATCH_KEYS];
	/* fields of PUT and GET jobs */
	struct skv_model model;
	struct skv_store_cut cut;
	struct skv_store_cipher cipher;
	struct skv_disk_pages pages;
	void *staging; /* buffer for the plain bytes of one part */
	size_t staging_bytes;
	uint32_t ids[SKV_STORE_RUN];
};

/*
 * Reads and checks the daemon's description of the job (struct skv_store_what), and gets the process's client of the
 * store. skv_store_values_begin_with_pages() also checks the job's model and list, and opens the memory of its pages.
 * Both functions return 0, with *ret to be freed by skv_store_values_end(), or a negative errno with a text in
 * work->why.
 */
int skv_store_values_begin(struct skv_disk_work *, struct skv_store_values **ret);
int skv_store_values_begin_with_pages(struct skv_disk_work *, struct skv_store_values **ret);
void skv_store_values_end(struct skv_store_values *);

/* Returns the time limit for the next call to the store, in milliseconds; 0: the job's time is over. */
uint32_t skv_store_values_left_ms(const struct skv_store_values *);
/* Returns the job's error, with its text, for a job whose time is over. */
int skv_store_values_late(struct skv_store_values *);
/* Turns the error of a call to the store into the job's error, with its text. */
int skv_store_values_failed(struct skv_store_values *, int error);

/* Sets keys[i] to the key of this part of this block. */
void skv_store_values_key(struct skv_store_values *, uint32_t i, uint32_t block, uint32_t part);
/*
 * Creates a NIXL agent with this much memory in *at, unless *at is one already. The agent outlives the job. An error is
 * the job's, with its text.
 */
int skv_store_values_nixl(struct skv_store_values *, size_t bytes, struct skv_nixl **at);
/* Copy a part of the current block from its pages to `staging` (read), or from `staging` to its pages (write). */
int skv_store_values_read_part(struct skv_store_values *, uint32_t part);
int skv_store_values_write_part(struct skv_store_values *, uint32_t part);
/* Reads into `ids` the page ids of n pieces, from `first` on, which are consecutive in the list. n <= SKV_STORE_RUN. */
int skv_store_values_ids(struct skv_store_values *, uint32_t first, uint32_t n);
/* Returns how many pieces, from `first` on and before `end`, have pages that are consecutive in the list. */
uint32_t skv_store_values_run(const struct skv_store_values *, uint32_t first, uint32_t end);
/* Asks the store which of the first n keys exist, and sets their `status`. */
int skv_store_values_exist(struct skv_store_values *, uint32_t n);

#endif
