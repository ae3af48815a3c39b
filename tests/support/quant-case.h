/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/quant-case.h - a case whose tokens can be quantized: records of two layers beside the case's one layer
 * of rows. Pages for records lie behind the case's own pages.
 */
#ifndef SKV_QUANT_CASE_H
#define SKV_QUANT_CASE_H

#include "tests/support/kernel-case.h"

#define LOW_LAYERS 2u
#define LOW_FORMS 4   /* combinations of bits and scale block */
#define LOW_SHAPES 18 /* dtypes and head counts */

struct low_case {
	struct kernel_case c;
	struct skv_codec code;
	struct skv_shape sh[LOW_LAYERS]; /* on the current backend */
	skv_pte *codes[LOW_LAYERS][CASE_SEQS];
	uint32_t stride; /* of the tables */
};

/* Returns false if the shape's heads cannot be quantized in this form. */
bool low_init(struct low_case *, int shape, int form, uint32_t n, const uint32_t *len);
void low_deinit(struct low_case *);

/*
 * Puts the case on a backend, with all rows written and nothing compressed. Returns false if the backend has no such
 * kernels, or does not support the shape.
 */
bool low_on(struct low_case *, const struct test_backend *);
void low_off(struct low_case *);

/*
 * Returns sequences [from, from + n) as a batch, with n_compressed and max_compress of each as given. With `gone` the
 * pages of compressed rows are holes whose entries have random ids.
 */
struct skv_batch low_batch(struct low_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack,
                           bool gone);

void low_pack(struct low_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack, int threads);

/* low_pool() returns a copy of the whole pool, which the caller frees; low_pool_to() writes it back. */
uint8_t *low_pool(const struct low_case *);
void low_pool_to(const struct low_case *, const uint8_t *pool);

/* Size of a record, and where V begins in it. */
uint32_t low_record_bytes(const struct low_case *);
uint32_t low_values_at(const struct low_case *);
/* The record of a token's block and a kv head, in a copy of the pool. */
uint8_t *low_record(const struct low_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, uint32_t h);

/* Decodes K or V of a token's kv head from its record, x[head_dim]. */
void low_read(const struct low_case *, const uint8_t *record, uint32_t token, bool v, double *x);

#endif
