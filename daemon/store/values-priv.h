/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values-priv.h - what the jobs of values.h have in common.
 *
 * The connection to the store outlives a job: a process has one, until a job names another store. All else is the job's, and is wiped.
 */
#ifndef SKV_STORE_VALUES_PRIV_H
#define SKV_STORE_VALUES_PRIV_H

#include "daemon/disk/list.h"
#include "daemon/disk/pages.h"
#include "daemon/store/nixl.h"

#define SKV_STORE_RUN 4096u /* page ids that are read from a list at a time */
#define SKV_STORE_BATCH_KEYS 256u /* of a call */
/* Bytes of values in a call, or one value. Calls of this size say in time that the job goes on. */
#define SKV_STORE_CALL_BYTES ((size_t)16 << 20)

struct skv_store_part_number {
	uint32_t block, part;
};

struct skv_store_values {
	struct skv_disk_work *work;
	struct skv_store *store; /* the process's */
	struct skv_store_what what;
	uint8_t (*names)[SKV_STORE_NAME]; /* [what.n_blocks] */
	uint64_t deadline_ns;
	bool gave_up; /* the store failed, and `why` of the work says how */
	/* of a call */
	char text[SKV_STORE_BATCH_KEYS][SKV_STORE_PART_KEY];
	struct skv_store_bytes keys[SKV_STORE_BATCH_KEYS];
	int status[SKV_STORE_BATCH_KEYS];
	/* PUT, GET */
	struct skv_model model;
	struct skv_store_cut cut;
	struct skv_store_cipher cipher;
	struct skv_disk_pages pages;
	void *staging; /* a part */
	size_t staging_bytes;
	uint32_t ids[SKV_STORE_RUN];
};

/*
 * What the daemon says, checked, and the store, in *ret, which is freed by skv_store_values_end(). With pages, the job's model and list
 * are checked, too, and its pages open.
 */
int skv_store_values_begin(struct skv_disk_work *, struct skv_store_values **ret);
int skv_store_values_begin_with_pages(struct skv_disk_work *, struct skv_store_values **ret);
void skv_store_values_end(struct skv_store_values *);

/* What a call may take, in ms; 0: the job's time is over, which skv_store_values_late() says. */
uint32_t skv_store_values_left_ms(const struct skv_store_values *);
int skv_store_values_late(struct skv_store_values *);
/* A call's error: the job's, with its text. */
int skv_store_values_failed(struct skv_store_values *, int error);

/* keys[i] is this part's; keys are the caller's until the next call. */
void skv_store_values_key(struct skv_store_values *, uint32_t i, uint32_t block, uint32_t part);
/* An agent with so much memory in *at, if there is none yet. It outlives the job. An error is the job's, with its text. */
int skv_store_values_nixl(struct skv_store_values *, size_t bytes, struct skv_nixl **at);
/* The bytes of a part of the block that is cut, between its pages and `staging`. Errors are the job's. */
int skv_store_values_read_part(struct skv_store_values *, uint32_t part);
int skv_store_values_write_part(struct skv_store_values *, uint32_t part);
/* The pages of n pieces from `first` on, which stand one after the other in the list, into `ids`. At most SKV_STORE_RUN. */
int skv_store_values_ids(struct skv_store_values *, uint32_t first, uint32_t n);
/* How many pieces from `first` on do so, before `end`. */
uint32_t skv_store_values_run(const struct skv_store_values *, uint32_t first, uint32_t end);
/* `status` of the first n keys. */
int skv_store_values_exist(struct skv_store_values *, uint32_t n);

#endif
