/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/pool.h - pools of pages, and the addresses at which their segments are mapped. */
#ifndef SKV_CLIENT_CONN_POOL_H
#define SKV_CLIENT_CONN_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"
#include "kernels/device.h"

struct pool {
	struct pool *next;
	uint32_t id, pages_per_segment, max_segments;
	uint64_t page_bytes, segment_bytes;
	uint64_t again; /* device: offset of the second, read-only mapping of the pool; host: 0 */
	uint32_t sessions;
	uint8_t *base; /* address of page 0, even if it is not mapped; NULL: host memory that is not announced yet */
	bool reserved; /* addresses for all segments are reserved, beginning at base */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* number of the device in the backend */
	uint32_t announced; /* number of segments that the daemon can announce: device: all; host: 1 */
	struct pool_segment {
		bool mapped;
		uint64_t held; /* number of this segment's pages that are in stocks and page tables of this process */
		/* device: kernels' number of the segment's first page, in the writable and in the read-only mapping */
		uint32_t own, shared;
		void *ipc; /* device: address of the memory of an older (IPC) handle, else NULL */
		/* since a reconnect: the daemon may announce it again, or withdraw it though it is unmapped */
		bool uncertain;
	} *segments;
	uint64_t *on_lease;      /* bitmap: pages that the daemon has leased to this client */
	uint64_t on_lease_words; /* number of words of on_lease, after which all words are 0 */
};

struct early_segment;

/* All pools of a connection. */
struct pools {
	struct pool *first;
	struct early_segment *early; /* segments that the daemon announced before it described their pool */
};

/* A fault that must break the connection. Pool functions report a fault, and never break the connection themselves. */
struct pool_fault {
	int error; /* 0: no fault, or a negative errno */
	char text[SKV_TEXT_MAX]; /* why the fault occurred */
};

/* All pool functions except pool_kernel_page() need client->lock. */
/*
 * Add a session to the pool that the daemon describes, and map the pool's segments that were announced before. `device`
 * is as in struct skv_model; the device's backend must be loaded. Returns 0, or -EPROTO or -ENOMEM with a text. With a
 * return of 0, *fault is of a segment.
 */
int pool_open(struct pools *pools, const struct skv_msg_open_ok *ok, uint32_t device, struct pool **ret,
              struct pool_fault *fault);
/* Remove a session from its pool. With the last one the daemon considers all segments unmapped. NULL is ignored. */
void pool_close(struct pools *pools, struct pool *p);
/* Handle the announcement of a segment. Consumes fd; if fd is -1, `m` has an IPC handle. */
void pool_segment_add(struct pools *pools, const struct skv_msg_segment_ipc *m, int fd, struct pool_fault *fault);
/* Handle the withdrawal of a segment. Without a fault the caller tells the daemon that the segment is unmapped. */
void pool_segment_gone(struct pools *pools, const struct skv_msg_segment *m, struct pool_fault *fault);
void pools_free(struct pools *pools);

bool pool_has(const struct pool *p, uint32_t page); /* is the page in a mapped segment? */
bool pool_hold(struct pool *p, uint32_t page);      /* counts the page as held; returns false if it is not mapped */
void pool_unhold(struct pool *p, uint32_t page);
/* Record that pages are on lease to this client, or no longer are. Pages beyond the pool's end are ignored. */
void pool_lease(struct pool *p, uint32_t first, uint64_t n);
void pool_unlease(struct pool *p, uint32_t page);
/* Find the next run of at most `most` leased pages from *page on, and set *page to its end. False: there is none. */
bool pool_next_lease(const struct pool *p, uint64_t *page, uint32_t most, struct skv_wire_run *ret);
/* Call when the connection is lost: the next daemon will announce segments again. */
void pools_uncertain(struct pools *pools);
/* Discard announcements of segments for pools in which this client has no session. */
void pools_forget_early(struct pools *pools);
/* The number by which kernels address the page: base + number * page_bytes. The page must be held. Needs no lock. */
uint32_t pool_kernel_page(const struct pool *p, uint32_t page, bool shared);

#endif
