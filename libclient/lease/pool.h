/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/lease/pool.h - pools of pages, and where their segments are mapped. */
#ifndef SKV_CLIENT_LEASE_POOL_H
#define SKV_CLIENT_LEASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"
#include "kernels/device.h"

struct pool {
	struct pool *next;
	uint32_t id, pages_per_segment, max_segments;
	uint64_t page_bytes, segment_bytes;
	uint64_t again; /* on a device: where in these addresses everything is mapped once more, to read only; else 0 */
	uint32_t sessions;
	uint8_t *base; /* where page 0 is, or would be; NULL: host memory that was not announced yet */
	bool reserved; /* from there on, addresses for all segments */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* of the backend */
	uint32_t announced; /* numbers that may be announced: all segments of a device; 1, host memory as a whole */
	struct pool_segment {
		bool mapped;
		uint64_t held; /* pages in it that stocks and tables of this process refer to */
		/* on a device: page numbers of its first page for kernels, to write and to read only */
		uint32_t own, shared;
		void *ipc; /* where an older handle was opened, else NULL */
		bool uncertain; /* since the client reconnects: it may be announced once more, or its end be told that is known */
	} *segments;
	uint64_t *on_lease;      /* a bit a page: the daemon has it on lease to this client */
	uint64_t on_lease_words; /* the others are 0 */
};

struct early_segment;

/* Those of a connection. */
struct pools {
	struct pool *first;
	struct early_segment *early; /* announced before the pool's shape was known */
};

/* What breaks a connection; a pool never does so itself. */
struct pool_fault {
	int error; /* 0, or a negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
};

/* All need client->lock. */
/* One more session on the pool that the daemon describes. 0, or -EPROTO, -ENOMEM with a text. */
/* `device` as in struct skv_model; its backend is loaded. */
int pool_open(struct pools *pools, const struct skv_msg_open_ok *ok, uint32_t device, struct pool **ret,
              struct pool_fault *fault);
/* Map what was announced of the pool before its shape was known. */
void pool_map_early(struct pools *pools, struct pool *p, struct pool_fault *fault);
/* One less; with the last the daemon takes all segments as unmapped. NULL is ignored. */
void pool_close(struct pools *pools, struct pool *p);
/* A segment is announced. Consumes fd; without one, `m` has a handle. */
void pool_segment_add(struct pools *pools, const struct skv_msg_segment_ipc *m, int fd, struct pool_fault *fault);
/* A segment is withdrawn; without a fault the daemon is to be told that it is unmapped. */
void pool_segment_gone(struct pools *pools, const struct skv_msg_segment *m, struct pool_fault *fault);
void pools_free(struct pools *pools);

bool pool_has(const struct pool *p, uint32_t page); /* in a mapped segment? */
bool pool_hold(struct pool *p, uint32_t page);      /* false: it is not */
void pool_unhold(struct pool *p, uint32_t page);
/* The daemon has pages on lease to this client, or has not any more. Pages beyond the pool are ignored. */
void pool_lease(struct pool *p, uint32_t first, uint64_t n);
void pool_unlease(struct pool *p, uint32_t page);
/* The next run of pages on lease at or after *page, which moves behind it; at most `most`. False: there is none. */
bool pool_next_lease(const struct pool *p, uint64_t *page, uint32_t most, struct skv_wire_run *ret);
struct pool *pools_find(struct pools *pools, uint32_t id);
/* The connection is lost: what was announced will be announced again. */
void pools_uncertain(struct pools *pools);
/* What was announced of pools without a session of ours is of no interest. */
void pools_forget_early(struct pools *pools);
/* The page's number for kernels, which have it at base + number * page_bytes; it must be held. Needs no lock then. */
uint32_t pool_kernel_page(const struct pool *p, uint32_t page, bool shared);

#endif
