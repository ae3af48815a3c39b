/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values.h - blocks of a sealed prefix as values of the prefix store: jobs of a disk worker (disk/job.h).
 *
 * A block is SKV_BLOCK_TOKENS tokens: of each layer in order its pages of K and V, or records where the policy compresses (part.h). It is
 * stored in parts, each a value of its own, because values are not larger than SKV_STORE_MAX_VALUE. A part is encrypted and authenticated (AES-256-GCM) with a key that
 * follows from the tenant's secret, and with what it is, name and number, as additional data. So who can read the store but has not the
 * secret learns nothing but sizes; and what somebody else wrote, what was cut, flipped, or stored under another name is found, counts as
 * absent, and is deleted, so that the next one who has the block stores it again.
 *
 * Where there is NIXL, the store has in place of a value a record of where it lies in the memory of the host that has stored it (record.h,
 * export.h), and a reader gets it from there (import.h). A host without NIXL takes a record for a value that is not right.
 */
#ifndef SKV_STORE_VALUES_H
#define SKV_STORE_VALUES_H

#include "common/seqmem.h"
#include "daemon/disk/work.h"

#define SKV_STORE_NAME 32u /* bytes of a block's name */
#define SKV_STORE_KEY 32u
#define SKV_STORE_URL 2048u

/* What the daemon says of the store, in a memfd; n_blocks names follow, and for GET n_blocks * SKV_BLOCK_TOKENS token ids. */
struct skv_store_what {
	uint32_t n_blocks;
	uint32_t timeout_ms; /* of the job: what is not done by then counts as absent, or stays unsaid */
	uint64_t ttl_ms;     /* PUT; 0: for ever */
	uint8_t key[SKV_STORE_KEY]; /* the tenant's, of AES-256-GCM */
	char url[SKV_STORE_URL];    /* store/config.h */
	char nixl[SKV_STORE_URL];   /* NIXL's library (store/nixl.h), by which hosts read values from each other; "": the store has them all */
	uint64_t nixl_window;       /* PUT: bytes of this host's values that others may read */
	uint8_t agents_key[SKV_STORE_KEY]; /* of what agents say of themselves: the hosts' that share the store */
	struct skv_made made; /* how tokens are compressed; GET: and what the sequence is to say of them */
};

/* See disk/job.h. What goes wrong with the store is an error, with a text, only if nothing was done; else less was done. */
int skv_store_put_job(struct skv_disk_work *);
int skv_store_find_job(struct skv_disk_work *);
int skv_store_get_job(struct skv_disk_work *);

#endif
