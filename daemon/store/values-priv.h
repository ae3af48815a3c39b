/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values-priv.h - code shared by the jobs of values.h.
 *
 * The connection to the store outlives a job: a process keeps one until a job names another store. All other state
 * belongs to the job and is wiped.
 */
#ifndef SKV_STORE_VALUES_PRIV_H
#define SKV_STORE_VALUES_PRIV_H

#include "daemon/disk/list.h"
#include "daemon/disk/pages.h"
#include "daemon/store/nixl.h"

#define SKV_STORE_RUN 4096u /* page ids read from a list at a time */
#define SKV_STORE_BATCH_KEYS 256u /* per call */
/*
 * Bytes of values in a call, unless a single value is larger. Small enough that progress is reported in time between
 * calls.
 */
#define SKV_STORE_CALL_BYTES ((size_t)16 << 20)

struct skv_store_part_number {
	uint32_t block, part;
};

struct skv_store_values {
	struct skv_disk_work *work;
	struct skv_store *store; /* owned by the process */
	struct skv_store_what what;
	uint8_t (*names)[SKV_STORE_NAME]; /* [what.n_blocks] */
	uint64_t deadline_ns;
	bool gave_up; /* the store failed, with the reason in `why` of the work */
	/* of the current call */
	char text[SKV_STORE_BATCH_KEYS][SKV_STORE_PART_KEY];
	struct skv_store_bytes keys[SKV_STORE_BATCH_KEYS];
	int status[SKV_STORE_BATCH_KEYS];
	/* PUT, GET */
	struct skv_model model;
	struct skv_store_cut cut;
	struct skv_store_cipher cipher;
	struct skv_disk_pages pages;
	void *staging; /* buffer for a part */
	size_t staging_bytes;
	uint32_t ids[SKV_STORE_RUN];
};

/*
 * Reads and checks the daemon's description, and gets the process's client of the store. Free *ret with
 * skv_store_values_end(). The variant with pages also checks the job's model and list, and opens its pages.
 */
int skv_store_values_begin(struct skv_disk_work *, struct skv_store_values **ret);
int skv_store_values_begin_with_pages(struct skv_disk_work *, struct skv_store_values **ret);
void skv_store_values_end(struct skv_store_values *);

/* Time limit for a call in ms; 0: the job's time is over, which skv_store_values_late() reports. */
uint32_t skv_store_values_left_ms(const struct skv_store_values *);
int skv_store_values_late(struct skv_store_values *);
/* Makes a call's error the job's, with its text. */
int skv_store_values_failed(struct skv_store_values *, int error);

/* Sets keys[i] to this part's key. Keys belong to the caller until the next call. */
void skv_store_values_key(struct skv_store_values *, uint32_t i, uint32_t block, uint32_t part);
/*
 * Creates an agent with this much memory in *at, if there is none. It outlives the job. An error becomes the job's,
 * with its text.
 */
int skv_store_values_nixl(struct skv_store_values *, size_t bytes, struct skv_nixl **at);
/* Copy the bytes of a part of the current block between its pages and `staging`. Errors become the job's. */
int skv_store_values_read_part(struct skv_store_values *, uint32_t part);
int skv_store_values_write_part(struct skv_store_values *, uint32_t part);
/* Reads the page ids of n pieces from `first`, which are consecutive in the list, into `ids`. At most SKV_STORE_RUN. */
int skv_store_values_ids(struct skv_store_values *, uint32_t first, uint32_t n);
/* Returns how many pieces from `first`, before `end`, are consecutive in the list. */
uint32_t skv_store_values_run(const struct skv_store_values *, uint32_t first, uint32_t end);
/* Sets `status` of the first n keys. */
int skv_store_values_exist(struct skv_store_values *, uint32_t n);

#endif
