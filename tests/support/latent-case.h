/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/latent-case.h - a case whose tokens can be compressed: two layers' worth of codes beside the case's
 * one layer of rows.
 *
 * Both layers compress the same rows, each with weights and tables of its own. Pages for records lie behind the
 * case's own.
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
	struct skv_kseq seq[CASE_SEQS]; /* as on the backend, without any compressed token */
};

#define CODE_FORMS 14 /* ways to pack */
#define CODE_SHAPES 18 /* dtypes and head counts */

void code_init(struct code_case *, int shape, int form, uint32_t n, const uint32_t *len);
void code_deinit(struct code_case *);

/*
 * Put it on a backend, all rows written, nothing compressed. False: the backend does not support the shape or the
 * codec.
 */
bool code_on(struct code_case *, const struct test_backend *);
void code_off(struct code_case *);

/* Sequences [from, from + n) as a batch, with n_compressed and max_compress of each as given. */
struct skv_batch code_batch(struct code_case *, uint32_t from, uint32_t n, const uint32_t *coded, const uint32_t *pack);

/* The whole pool; the caller's to free. And put it back. */
uint8_t *code_pool(const struct code_case *);
void code_pool_to(const struct code_case *, const uint8_t *pool);

/* In a copy of the pool: the record of a compressed token. */
uint8_t *code_record(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token);

/* x of a token that is a row, from what the page holds. */
void code_x(const struct code_case *, const struct ref_codec *, uint32_t i, uint32_t token, double *x);

/* b of a code's record: the mean of the references that it names, as they are stored, each token's at or before it. */
void code_base(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t token, double *b,
               double *terms);

/*
 * Records of the compressed tokens of sequence i in layer 0, made up; their rows are gone. Or one of them alone, as
 * if there were so many references before it. Some name references that there are not.
 */
void code_make_up(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t coded);
void code_make_up_record(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t token, uint32_t usable);

/*
 * One page has all records, again and again, so sequence 0 may be of `last` tokens. Before code_on(); and with the
 * case on a backend, made up records in that page.
 */
void code_far(struct code_case *, uint32_t last);
void code_far_records(const struct code_case *, uint8_t *pool, uint32_t last);

/*
 * What a compressed token of layer 0 is decompressed to, its K with RoPE, from its record; `terms` as of
 * ref_decode().
 */
void code_decompressed(const struct code_case *, uint8_t *pool, uint32_t i, uint32_t token, double *x, double *terms);

/* The x that a reference's number names. */
void code_reference(const struct code_case *, uint8_t *pool, uint32_t layer, uint32_t i, uint32_t number, double *x);

#endif
