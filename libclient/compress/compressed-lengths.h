/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/compressed-lengths.h - which tokens of a layer are compressed, computed from the sequence's length
 * and the plan alone.
 */
#ifndef SKV_CLIENT_COMPRESS_COMPRESSED_LENGTHS_H
#define SKV_CLIENT_COMPRESS_COMPRESSED_LENGTHS_H

#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "kernels/compress.h"
#include "kernels/kernels.h"

/* number of tokens at the start of a sequence that are never compressed: whole pages */
uint32_t compress_first(const struct skv_compress *k);
/* In a sequence of n tokens, the tokens [compress_first(k), compress_end(k, n)) are compressed; 0: no token is. */
uint32_t compress_end(const struct skv_compress *k, uint32_t n);
/*
 * The form in which the plan stores compressed tokens, in sequences of up to max_tokens tokens; the plan must compress.
 */
struct skv_form compress_form(const struct skv_compress *k, uint32_t max_tokens);

/*
 * The number of records (codes or references) in a layer when the tokens below `end` are compressed as sh->codec says.
 */
struct records {
	uint32_t n, each; /* records in total; records that fit in a page */
};
struct records compress_records(const struct skv_shape *sh, enum skv_page_kind group, uint32_t end);
static inline uint32_t records_pages(struct records x)
{
	return (x.n + x.each - 1) / x.each;
}

#endif
