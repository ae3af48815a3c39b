/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/pool.h - pools of pages, and where their segments are mapped. */
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
	uint64_t again; /* device: offset of the second, read-only mapping; host: 0 */
	uint32_t sessions;
	uint8_t *base; /* address of page 0, also if it is not mapped; NULL: host memory that was not announced yet */
	bool reserved; /* addresses for all segments are reserved from base on */
	const struct skv_backend *backend; /* NULL: host memory */
	unsigned device;                   /* of the backend */
	uint32_t announced; /* number of segments that can be announced: device: all; host: 1 */
	struct pool_segment {
		bool mapped;
		uint64_t held; /* pages of it that stocks and tables of this process refer to */
		/* device: kernels' number of its first page, in the writable and in the read-only mapping */
		uint32_t own, shared;
		void *ipc; /* device: address of an older (IPC) handle, else NULL */
		/* since a reconnect: the daemon may announce it again, or withdraw it though it is already unmapped */
		bool uncertain;
	} *segments;
	uint64_t *on_lease;      /* one bit a page: the daemon has leased it to this client */
	uint64_t on_lease_words; /* words beyond these are all 0 */
};

struct early_segment;

/* All pools of a connection. */
struct pools {
	struct pool *first;
	struct early_segment *early; /* segments that were announced before their pool was known */
};

/* A fault that breaks the connection. Pools report faults and never break it themselves. */
struct pool_fault {
	int error; /* 0, or a negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
};

/* The functions below need client->lock, except pool_kernel_page(). */
/*
 * Add a session to the pool that the daemon describes, and map the segments that were announced before. `device` is as
 * in struct skv_model; its backend must be loaded. Returns 0, or -EPROTO or -ENOMEM with a text. After 0 a fault is one
 * of the segments.
 */
int pool_open(struct pools *pools, const struct skv_msg_open_ok *ok, uint32_t device, struct pool **ret,
              struct pool_fault *fault);
/* Remove a session. With the last one the daemon considers all segments unmapped. NULL is ignored. */
void pool_close(struct pools *pools, struct pool *p);
/* Handle a segment's announcement. Consumes fd; if fd is -1, `m` has an IPC handle. */
void pool_segment_add(struct pools *pools, const struct skv_msg_segment_ipc *m, int fd, struct pool_fault *fault);
/* Handle a segment's withdrawal. Without a fault the caller tells the daemon that it is unmapped. */
void pool_segment_gone(struct pools *pools, const struct skv_msg_segment *m, struct pool_fault *fault);
void pools_free(struct pools *pools);

bool pool_has(const struct pool *p, uint32_t page); /* is the page in a mapped segment? */
bool pool_hold(struct pool *p, uint32_t page);      /* returns false if the page is not mapped */
void pool_unhold(struct pool *p, uint32_t page);
/* Record that pages are, or are no longer, on lease to this client. Pages beyond the pool are ignored. */
void pool_lease(struct pool *p, uint32_t first, uint64_t n);
void pool_unlease(struct pool *p, uint32_t page);
/* Find the next run of at most `most` leased pages from *page on, and advance *page past it. False: none is left. */
bool pool_next_lease(const struct pool *p, uint64_t *page, uint32_t most, struct skv_wire_run *ret);
/* The connection is lost: the daemon will announce segments again. */
void pools_uncertain(struct pools *pools);
/* Discard announcements for pools without a session of this client. */
void pools_forget_early(struct pools *pools);
/* The number by which kernels address the page: base + number * page_bytes. The page must be held. Needs no lock. */
uint32_t pool_kernel_page(const struct pool *p, uint32_t page, bool shared);

#endif
