/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-case.h - a random sealed prefix that a disk worker (disk-fixture.h) writes to a prefix store,
 * and checks that the same prefix comes back.
 *
 * Any failure fails the test.
 */
#ifndef SKV_TEST_PREFIX_CASE_H
#define SKV_TEST_PREFIX_CASE_H

#include "daemon/store/values.h"
#include "tests/support/parked-case.h"

#define PREFIX_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* of one layer */
#define PREFIX_PART ((size_t)4 << 20) /* maximum bytes of pages in a part, unless a single page is larger */
#define PREFIX_OVERHEAD 36u /* per value: magic, nonce, tag */

struct prefix_case {
	struct skv_disk_job job;
	struct skv_seqmem_layout layout;
	struct skv_store_what what;
	uint8_t (*names)[SKV_STORE_NAME];
	int32_t *tokens;
	struct prefix_page {
		uint32_t table, page;
		uint32_t used; /* bytes in use, from the start of the page */
	} *place;
	uint64_t n_places; /* for each block and layer: pages that earlier blocks do not have */
	uint32_t *ids;     /* page ids of these places */
	int seq, pages;
};

/*
 * Makes a prefix for the store at `url` with random contents, in rows or with compressed layers; or of random shape, in
 * rows, of a few hundred KiB.
 */
void prefix_make(struct prefix_case *, const char *url, struct skv_wire_model model, uint32_t n_blocks);
void prefix_make_so(struct prefix_case *, const char *url, struct skv_wire_model model, uint32_t n_blocks, const struct skv_made *made);
void prefix_random(struct prefix_case *, const char *url, uint32_t max_blocks);
/* Random forms, so that layers of all kinds occur. */
struct skv_made prefix_random_forms(const struct skv_wire_model *model);
void prefix_free(struct prefix_case *);
/* Returns fresh memory with other pages, into which the prefix can be read. The rest refers to the original's data. */
struct prefix_case prefix_target(const struct prefix_case *);
void prefix_free_target(struct prefix_case *);
/* A model whose blocks have four parts of the same size. */
struct skv_wire_model prefix_wide_model(void);

uint64_t prefix_pages(const struct prefix_case *);
uint32_t prefix_parts(const struct prefix_case *); /* of a block */
uint64_t prefix_value_bytes(const struct prefix_case *); /* of all values */

/* Posts a job and returns the worker's error; checks that it took no longer than its timeout. */
int prefix_ask(const struct prefix_case *, uint32_t kind);
/*
 * The same with another list, and with only the first what_bytes of the store data. The functions below return the
 * correct sizes and list; the caller frees the list.
 */
int prefix_ask_with(const struct prefix_case *, uint32_t kind, size_t what_bytes, const uint32_t *list, size_t list_bytes);
size_t prefix_what_bytes(const struct prefix_case *, uint32_t kind);
uint32_t *prefix_list(const struct prefix_case *, uint32_t kind);
size_t prefix_list_bytes(const struct prefix_case *, uint32_t kind);

/* Run a job and check its result: bytes sent, blocks found, blocks read into other pages unchanged. */
void prefix_expect_put(const struct prefix_case *, uint64_t bytes);
void prefix_expect_found(const struct prefix_case *, uint32_t n_blocks);
void prefix_expect_got(const struct prefix_case *, uint32_t n_blocks);
/* The first n blocks are the same, and nothing else was written. */
void prefix_expect_same(const struct prefix_case *was, const struct prefix_case *is, uint32_t n);

#endif
