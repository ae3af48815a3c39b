/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/latent-case.h - a case whose tokens can be compressed: codes of two layers beside the case's one layer
 * of rows.
 *
 * Both layers compress the same rows, each with its own weights and tables. Pages for records lie behind the case's own
 * pages.
 */
#ifndef SKV_CODE_CASE_H
#define SKV_CODE_CASE_H

#include "tests/support/kernel-case.h"
#include "tests/ref/compress.h"

#define CODE_LAYERS 2u

struct code_layer {
	struct ref_codec codec;
	struct skv_codec code; /* on the backend that the case is on */
	skv_pte *codes[CASE_SEQS], *refs[CASE_SEQS];
};

struct code_case {
	struct kernel_case c;
	struct code_layer layer[CODE_LAYERS];
	struct skv_shape sh[CODE_LAYERS];
	uint32_t stride;                /* of the tables */
	struct skv_kseq seq[CASE_SEQS]; /* as on the backend, without compressed tokens */
};

#define CODE_FORMS 14 /* ways to compress */
#define CODE_SHAPES 18 /* dtypes and head counts */

void code_init(struct code_case *, int shape, int form, uint32_t n, const uint32_t *len);
void code_deinit(struct code_case *);

/*
 * Puts the case on a backend, with all rows written and nothing compressed. Returns false if the backend does not
 * support the shape or the codec.
 */
bool code_on(struct code_case *, const struct test_backend *);
void code_off(struct code_case *);

/* Returns sequences [from, from + n) as a batch, with n_compressed and max_compress of each as given. */
struct skv_batch code_batch(struct code_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack);

/* code_pool() returns a copy of the whole pool, which the caller frees; code_pool_to() writes it back. */
uint8_t *code_pool(const struct code_case *);
void code_pool_to(const struct code_case *, const uint8_t *pool);

/* Returns the record of a compressed token in a copy of the pool. */
uint8_t *code_record(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token);

/* x of an uncompressed token, from its row in the page. */
void code_x(const struct code_case *, const struct ref_codec *, uint32_t i, uint32_t token, double *x);

/*
 * b of a code's record: the mean of the references that it names, as stored. Only references at or before the token
 * count.
 */
void code_base(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, double *b,
               double *terms);

/*
 * code_make_up() makes random records of the compressed tokens of sequence i in layer 0, and overwrites their rows.
 * code_make_up_record() makes one record, as if there were `usable` references before it. Some records name references
 * that do not exist.
 */
void code_make_up(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t coded);
void code_make_up_record(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t token, uint32_t usable);

/*
 * Lets one page hold all records repeatedly, so that sequence 0 may have `last` tokens. code_far() is called before
 * code_on(); code_far_records() makes random records in that page when the case is on a backend.
 */
void code_far(struct code_case *, uint32_t last);
void code_far_records(const struct code_case *, uint8_t *pool, uint32_t last);

/*
 * The decompressed value of a compressed token of layer 0, its K with RoPE, from its record; `terms` as in
 * ref_decode().
 */
void code_decompressed(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t token, double *x, double *terms);

/* x of the reference with this number. */
void code_reference(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t number, double *x);

#endif
