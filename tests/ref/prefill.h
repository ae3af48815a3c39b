/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/prefill.h - reference for prefill: which tokens the rows of a prompt see, and the outputs, in double
 * precision and plain loops.
 *
 * Written only from the description of prefill methods in policy.h and from their papers; does not know pages, chunks
 * or kernels. A prompt is the whole prompt of one sequence in one layer, however it is chunked.
 */
#ifndef SKV_REF_SPARSE_H
#define SKV_REF_SPARSE_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/policy.h>

/* Rows [from, to) of a sequence are the prompt; K and V are of all its tokens [0, to). */
struct ref_rows {
	uint32_t n_heads, n_kv_heads, dim;
	double scale, softcap;
	const float *sinks; /* [n_heads] or NULL: struct ref_softmax */
	uint32_t from, to;
	const float *q;     /* [to - from][n_heads][dim] */
	const float *k, *v; /* [to][n_kv_heads][dim] */
	const bool *there;  /* [to]: false in holes */
};

/* Returns the row whose dense output corrects row p, if every x-th row is dense. */
uint32_t ref_begin(const struct ref_rows *, uint32_t p, uint32_t x);

/* ---- outputs --------------------------------------------------------------------------------- */

/* Which rows are dense, and what is added to the others. */
struct ref_correct {
	uint32_t gamma;   /* every gamma-th row is dense; 0: none of these */
	bool delta;       /* Eq. 6, else Eq. 5 */
	uint32_t dense;   /* rows from here on are dense: the tail */
	uint32_t segment; /* the first SKV_MINFERENCE_ROWS rows of each segment are dense; 0: none of these */
};

bool ref_dense(const struct ref_rows *, const struct ref_correct *, uint32_t p);

/* Where the dense tail of a correction begins: s % gamma + tail rows before the end. */
uint32_t ref_tail(uint32_t end, uint32_t gamma, uint32_t tail);

/*
 * Sets visible[0, p], which are false, for the tokens that row p of a q head sees if it is not dense. Tokens in holes
 * may be set, too.
 */
typedef void ref_see_fn(const void *ctx, uint32_t p, uint32_t head, bool *visible);

/* Attention of one row of one q head, and its log-sum-exp; `see` NULL: dense. weight[p + 1] may be NULL. */
double ref_row(const struct ref_rows *, uint32_t p, uint32_t head, ref_see_fn *see, const void *ctx, double *out,
             double *weight);

/* All rows: out [to - from][n_heads][dim], and lse [to - from][n_heads], which may be NULL. */
void ref_prompt(const struct ref_rows *, const struct ref_correct *, ref_see_fn *see, const void *ctx, double *out,
                double *lse);

/* ---- choices --------------------------------------------------------------------------------- */

/* Kascade: weights over [0, x) of the representative row of the tile at x, summed over the group of kv head h. */
void ref_tile_weights(const struct ref_rows *, uint32_t x, uint32_t h, double *weight);

/*
 * Marks the k largest of weight[n], including the first `forced` ones. Ties go to the lower index. Only entries with
 * there[i] can be chosen (NULL: all).
 */
void ref_mark_topk(const double *weight, uint32_t n, uint32_t k, uint32_t forced, const bool *there, bool *chosen);

/* HiP: the tokens of [sinks, x - window) that the q head's row chooses for the tile of 64 at x. */
void ref_stages(const struct ref_rows *, const struct skv_prefill *, uint32_t x, uint32_t head, bool *chosen);

/*
 * MInference: sums of the weights of the first SKV_MINFERENCE_ROWS rows of the segment that begins with row `begin`,
 * over a token (column) and over a distance (diagonal), [begin + SKV_MINFERENCE_ROWS] each. The prompt must have that
 * many rows.
 */
void ref_lines(const struct ref_rows *, uint32_t begin, uint32_t head, double *column, double *diagonal);

/* ---- a plan ---------------------------------------------------------------------------------- */

/*
 * All rows as a plan says (not SKV_PREFILL_DENSE). `source`: with Kascade the prompt in layer plan->source, else NULL.
 */
void ref_prefill(const struct ref_rows *, const struct ref_rows *source, const struct skv_prefill *plan, double *out);

#endif
