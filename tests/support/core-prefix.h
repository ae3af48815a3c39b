/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-prefix.h - sealed prefixes in a core without a daemon. Each letter of a text stands for a block,
 * and the block's tokens follow from the letter. Two clients of UID 1000 open and seal prefixes. Any failure fails the
 * test.
 */
#ifndef SKV_TESTS_CORE_PREFIX_H
#define SKV_TESTS_CORE_PREFIX_H

#include "daemon/core/operations/prefix.h"
#include "tests/support/core-peer.h"

#define TEXT_LAYERS 2u
#define TEXT_PAGES (TEXT_LAYERS * SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* pages of a block */

extern struct skv_model text_model;
extern struct peer text_a, text_b;
extern const uint8_t text_origin[SKV_PREFIX_ORIGIN];

void text_begin(uint32_t account_sequences);
void text_end(void);
/*
 * Keys of a text: one block for each letter; blocks are equal up to the first letter that differs. Returns their
 * number.
 */
uint32_t text_keys(const char *text, struct skv_block_key *ret);
/* A sequence of the peer with that text, and 40 more tokens. */
void text_write(struct held *h, struct peer *p, const char *name, const char *text);
int text_seal(struct held *h, struct peer *p, const char *text); /* as skv_core_prefix_seal() */
uint32_t text_find(struct peer *p, const char *text); /* returns how many blocks of it are known */
/* The same, in a new sequence that gets these blocks. */
uint32_t text_open(struct held *h, struct peer *p, const char *name, uint32_t max_tokens, const char *text);

#endif
