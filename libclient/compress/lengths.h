/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/lengths.h - which tokens of a layer are compressed, from lengths and the plan alone. */
#ifndef SKV_CLIENT_COMPRESS_LENGTHS_H
#define SKV_CLIENT_COMPRESS_LENGTHS_H

#include <stdint.h>

#include <sparsekv/policy.h>

#include "common/seqmem.h"
#include "kernels/compress.h"
#include "kernels/kernels.h"

uint32_t compress_first(const struct skv_compress *k); /* the first tokens, which are never compressed */
/* In a sequence of n tokens all below this one are compressed, except the first ones; 0: none are. */
uint32_t compress_end(const struct skv_compress *k, uint32_t n);
/* How they are stored, in sequences of up to max_tokens tokens; the plan must compress. */
struct skv_form compress_form(const struct skv_compress *k, uint32_t max_tokens);

/* The number of a layer's codes or references when the tokens below `end` are compressed as sh->codec says. */
struct records {
	uint32_t n, each; /* in total, and in a page */
};
struct records compress_records(const struct skv_shape *sh, enum skv_page_kind group, uint32_t end);
static inline uint32_t records_pages(struct records x)
{
	return (x.n + x.each - 1) / x.each;
}

#endif
