/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/values.h - blocks of a sealed prefix as values of the prefix store: jobs of a disk worker (disk/job.h).
 *
 * A block is SKV_BLOCK_TOKENS tokens: layer by layer, its pages of K and V, or records if the policy compresses
 * (part.h). A block is stored in parts, each a value of its own, because values are limited to SKV_STORE_MAX_VALUE. A
 * part is encrypted and authenticated (AES-256-GCM) with a key derived from the tenant's secret, and with its identity,
 * name and number, as additional data. So a reader of the store without the secret learns nothing but sizes. A value
 * that was forged, truncated, altered or stored under another name counts as absent and is deleted, so that the next
 * host with the block stores it again.
 *
 * With NIXL, the store has in place of a value a record of its location in the memory of the host that stored it
 * (record.h, export.h), and a reader gets it from there (import.h). A host without NIXL takes a record for an invalid
 * value.
 */
#ifndef SKV_STORE_VALUES_H
#define SKV_STORE_VALUES_H

#include "common/seqmem.h"
#include "daemon/disk/work.h"

#define SKV_STORE_NAME 32u /* bytes of a block's name */
#define SKV_STORE_KEY 32u
#define SKV_STORE_URL 2048u

/*
 * Description of the store from the daemon, in a memfd, followed by n_blocks names and, for GET, n_blocks *
 * SKV_BLOCK_TOKENS token ids.
 */
struct skv_store_what {
	uint32_t n_blocks;
	/* for the job; blocks not transferred by then count as absent (GET, FIND) or are not stored (PUT) */
	uint32_t timeout_ms;
	uint64_t ttl_ms;     /* PUT; 0: no expiry */
	uint8_t key[SKV_STORE_KEY]; /* the tenant's key for AES-256-GCM */
	char url[SKV_STORE_URL];    /* see store/config.h */
	/*
	 * path of NIXL's library (store/nixl.h), with which hosts read values from each other; "": values are in the
	 * store
	 */
	char nixl[SKV_STORE_URL];
	uint64_t nixl_window;       /* PUT: bytes of this host's memory for values that others may read */
	uint8_t agents_key[SKV_STORE_KEY]; /* key for metadata of agents, shared by all hosts of the store */
	struct skv_made made; /* how tokens are compressed; for GET also what the sequence memory says about it */
};

/*
 * See disk/job.h. A failure of the store is an error, with a text, only if nothing was transferred; otherwise the job
 * just did less.
 */
int skv_store_put_job(struct skv_disk_work *);
int skv_store_find_job(struct skv_disk_work *);
int skv_store_get_job(struct skv_disk_work *);

#endif
