/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/quant-case.h - a case whose tokens can be quantized: two layers' worth of records beside the case's one
 * layer of rows. Pages for records lie behind the case's own.
 */
#ifndef SKV_QUANT_CASE_H
#define SKV_QUANT_CASE_H

#include "tests/support/kernel-case.h"

#define LOW_LAYERS 2u
#define LOW_FORMS 4   /* bits and groups */
#define LOW_SHAPES 18 /* dtypes and head counts */

struct low_case {
	struct kernel_case c;
	struct skv_codec code;
	struct skv_shape sh[LOW_LAYERS]; /* on the backend that the case is on */
	skv_pte *codes[LOW_LAYERS][CASE_SEQS];
	uint32_t stride; /* of the tables */
};

/* false: the shape's heads cannot be quantized in this form */
bool low_init(struct low_case *, int shape, int form, uint32_t n, const uint32_t *len);
void low_deinit(struct low_case *);

/*
 * Put it on a backend, all rows written, nothing compressed. False: the backend has no such kernels, or not this
 * shape.
 */
bool low_on(struct low_case *, const struct test_backend *);
void low_off(struct low_case *);

/*
 * Sequences [from, from + n) as a batch, with n_compressed and max_compress of each as given. With `gone` the pages
 * of compressed rows are holes, their entries junk.
 */
struct skv_batch low_batch(struct low_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack,
                           bool gone);

void low_pack(struct low_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack, int threads);

/* The whole pool; the caller's to free. And put it back. */
uint8_t *low_pool(const struct low_case *);
void low_pool_to(const struct low_case *, const uint8_t *pool);

/* Of a record: bytes, and where its K and V begin. */
uint32_t low_record_bytes(const struct low_case *);
uint32_t low_values_at(const struct low_case *);
/* In a copy of the pool: the record of a token's block and a kv head. */
uint8_t *low_record(const struct low_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, uint32_t h);

/* K or V of a token's kv head as its record says, x[head_dim]. */
void low_read(const struct low_case *, const uint8_t *record, uint32_t token, bool v, double *x);

#endif
