/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/parked-case.h - a made-up sequence that is parked, and that it is what comes back. */
#ifndef SKV_TEST_PARKED_CASE_H
#define SKV_TEST_PARKED_CASE_H

#include "daemon/disk/job.h"

#define PARKED_UID 1234u

struct parked_case {
	struct skv_disk_job job; /* PARK */
	struct skv_seqmem_layout layout;
	int seq;           /* its memory */
	skv_pte *entries;  /* [job.n_entries] */
	uint32_t *ids;     /* [job.n_pages] of its pages, in the order of the file */
	int pages;         /* memory of pages, of job.max_pages */
};

/*
 * Of this many layers, q heads, kv heads, head_dim and dtype; with so many tokens. Of 100 entries about so many are pages; all
 * else is random.
 */
struct skv_wire_model parked_model(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t dtype);
void parked_case_make(struct parked_case *, const struct skv_wire_model *, uint32_t max_tokens, uint32_t len, uint32_t percent);
/* Of any shape, of a few hundred KiB. */
void parked_case_random(struct parked_case *);
void parked_case_free(struct parked_case *);

/*
 * Somewhere for it to be resumed into: fresh sequence memory, other pages. Then that this is the sequence that was parked: what
 * is the same, what is a hole, and that no other page was written to.
 */
struct parked_case *parked_target(const struct parked_case *);
void parked_expect(const struct parked_case *was, const struct parked_case *is);

#endif
