/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values.h - blocks of a sealed prefix as values of the prefix store: jobs of a disk worker (disk/job.h).
 *
 * A block of SKV_BLOCK_TOKENS tokens consists, layer by layer, of pages of K and V, or of records if the policy
 * compresses (block-part.h). Values are limited to SKV_STORE_MAX_VALUE bytes, so a block is stored in parts, each a
 * value of its own. A part is encrypted and authenticated (AES-256-GCM) with a key derived from the tenant's secret; the
 * additional data is the part's identity: the block's name and layout, and the part's number. So a reader of the store
 * without the secret learns nothing but sizes. A value that was forged, truncated, altered or stored under another name
 * counts as absent and is deleted, so that the next host that has the block stores it again.
 *
 * With NIXL, the store has in place of the value a record, which says where in the memory of the host that sent it the
 * value is (record.h, export.h); other hosts read the value from there (import.h). A host without NIXL takes a record
 * for an invalid value.
 */
#ifndef SKV_STORE_VALUES_H
#define SKV_STORE_VALUES_H

#include "common/seqmem.h"
#include "daemon/disk/run-job.h"

#define SKV_STORE_NAME 32u /* bytes of a block's name */
#define SKV_STORE_KEY 32u
#define SKV_STORE_URL 2048u

/*
 * The daemon's description of a job for the prefix store, at the beginning of the job's memfd. The memfd then has
 * n_blocks names of blocks and, for GET, n_blocks * SKV_BLOCK_TOKENS token ids.
 */
struct skv_store_what {
	uint32_t n_blocks;
	/* time for the job; blocks not transferred by then count as absent (GET, FIND) or are not stored (PUT) */
	uint32_t timeout_ms;
	uint64_t ttl_ms;     /* PUT: time after which the values expire; 0: never */
	uint8_t key[SKV_STORE_KEY]; /* the tenant's key for AES-256-GCM */
	char url[SKV_STORE_URL];    /* address and options of the store, see store/config.h */
	/* path of NIXL's library (store/nixl.h), with which hosts read values from each other; "": without NIXL */
	char nixl[SKV_STORE_URL];
	uint64_t nixl_window;       /* PUT: bytes of this host's memory for values that other hosts read */
	uint8_t agents_key[SKV_STORE_KEY]; /* key that seals the metadata of agents; all hosts of the store have it */
	struct skv_made made; /* how the tokens are compressed; GET writes it to the header of the sequence memory */
};

/*
 * The jobs of disk/job.h for the prefix store. If the store fails after some blocks were transferred or found, the job
 * succeeds with these; if there are none, it fails with an error and a text.
 */
int skv_store_put_job(struct skv_disk_work *);
int skv_store_find_job(struct skv_disk_work *);
int skv_store_get_job(struct skv_disk_work *);

#endif
