/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/parked-case.h - a random sequence to park, and checks that the same sequence comes back. */
#ifndef SKV_TEST_PARKED_CASE_H
#define SKV_TEST_PARKED_CASE_H

#include "daemon/disk/job.h"

#define PARKED_UID 1234u

struct parked_case {
	struct skv_disk_job job; /* PARK */
	struct skv_seqmem_layout layout;
	int seq;           /* memfd of its sequence memory */
	skv_pte *entries;  /* [job.n_entries] */
	uint32_t *ids;     /* [job.n_pages], in the order of the file */
	int pages;         /* memfd of job.max_pages pages */
};

/*
 * Makes a model with these dimensions and dtype, and a sequence of `len` tokens. About `percent` of 100 entries are
 * pages; everything else is random.
 */
struct skv_wire_model parked_model(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, uint32_t dtype);
void parked_case_make(struct parked_case *, const struct skv_wire_model *, uint32_t max_tokens, uint32_t len, uint32_t percent);
/* A random model and sequence of a few hundred KiB. */
void parked_case_random(struct parked_case *);
void parked_case_free(struct parked_case *);

/*
 * parked_target() makes an empty sequence memory and other pages, into which the case can be resumed. parked_expect()
 * checks that the resumed sequence equals the parked one, holes included, and that no other page was written.
 */
struct parked_case *parked_target(const struct parked_case *);
void parked_expect(const struct parked_case *was, const struct parked_case *is);

#endif
