/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/prefix-case.h - a made-up sealed prefix that a disk worker (disk-fixture.h) puts into a prefix store, and that it is what
 * comes back.
 *
 * What fails in here fails the test.
 */
#ifndef SKV_TEST_PREFIX_CASE_H
#define SKV_TEST_PREFIX_CASE_H

#include "daemon/store/values.h"
#include "tests/support/parked-case.h"

#define PREFIX_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* of a layer */
#define PREFIX_PART ((size_t)4 << 20) /* bytes of pages, at most, if a page is not larger */
#define PREFIX_OVERHEAD 36u /* of a value: magic, nonce, tag */

struct prefix_case {
	struct skv_disk_job job;
	struct skv_seqmem_layout layout;
	struct skv_store_what what;
	uint8_t (*names)[SKV_STORE_NAME];
	int32_t *tokens;
	struct prefix_page {
		uint32_t table, page;
		uint32_t used; /* bytes, from the page's beginning on */
	} *place;
	uint64_t n_places; /* of each block, of each layer, its pages that blocks before do not have */
	uint32_t *ids;     /* of the pages at these places */
	int seq, pages;
};

/* In a store; with random contents, in rows or with compressed layers. Or of any shape, in rows, of a few hundred KiB. */
void prefix_make(struct prefix_case *, const char *url, struct skv_wire_model model, uint32_t n_blocks);
void prefix_make_so(struct prefix_case *, const char *url, struct skv_wire_model model, uint32_t n_blocks, const struct skv_made *made);
void prefix_random(struct prefix_case *, const char *url, uint32_t max_blocks);
/* Layers of all forms. */
struct skv_made prefix_random_forms(const struct skv_wire_model *model);
void prefix_free(struct prefix_case *);
/* Somewhere for it to go to: fresh memory, other pages. It refers to the rest of what it was made of. */
struct prefix_case prefix_target(const struct prefix_case *);
void prefix_free_target(struct prefix_case *);
/* With it a block has four parts of the same size. */
struct skv_wire_model prefix_wide_model(void);

uint64_t prefix_pages(const struct prefix_case *);
uint32_t prefix_parts(const struct prefix_case *); /* of a block */
uint64_t prefix_value_bytes(const struct prefix_case *); /* of all values */

/* A job, and what the worker answers, in the time that it has. */
int prefix_ask(const struct prefix_case *, uint32_t kind);
/* With another list, and so many bytes of what the daemon says; both as they should be, the list to be freed. */
int prefix_ask_with(const struct prefix_case *, uint32_t kind, size_t what_bytes, const uint32_t *list, size_t list_bytes);
size_t prefix_what_bytes(const struct prefix_case *, uint32_t kind);
uint32_t *prefix_list(const struct prefix_case *, uint32_t kind);
size_t prefix_list_bytes(const struct prefix_case *, uint32_t kind);

/* Jobs that do what is expected of them: bytes that are sent, blocks that are found, and that come to other pages as they were. */
void prefix_expect_put(const struct prefix_case *, uint64_t bytes);
void prefix_expect_found(const struct prefix_case *, uint32_t n_blocks);
void prefix_expect_got(const struct prefix_case *, uint32_t n_blocks);
/* The first n blocks are the same, and there is nothing else. */
void prefix_expect_same(const struct prefix_case *was, const struct prefix_case *is, uint32_t n);

#endif
