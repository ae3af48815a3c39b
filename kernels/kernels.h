/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/kernels.h - the attention primitives, one interface for every backend.
 *
 * A backend is a table of functions (struct skv_kernels). All functions work on a batch of
 * sequences of ONE layer, are deterministic (same inputs, same ISA, any thread count: same bits),
 * make no system call and no allocation, and keep no state: scratch comes from the caller
 * (struct skv_work). They trust their arguments; callers check what came from elsewhere.
 *
 * Shapes. T = SKV_PAGE_TOKENS, G = n_heads / n_kv_heads. Rows of q, k, v and out are fp32 and
 * contiguous: q and out [row][n_heads][head_dim], k and v [row][n_kv_heads][head_dim].
 * A page is all K, then all V, each [kv head][token][head_dim] in the pool's dtype; page id p is at
 * pool + p * page_bytes. Sums are accumulated in fp32.
 */
#ifndef SKV_KERNELS_H
#define SKV_KERNELS_H

#include <stdbool.h>
#include <sparsekv/types.h>

/* What all sequences of a call have in common. */
struct skv_shape {
	uint32_t n_heads, n_kv_heads, head_dim;
	uint32_t dtype; /* enum skv_dtype of the pool */
	float scale;    /* softmax scale, resolved (never 0) */
	uint8_t *pool;
	size_t page_bytes;
};

/*
 * One sequence in a call. `table` has an entry for every page up to `len`; entries that are not
 * resident (holes) are skipped by every function. Query row i of the sequence is token
 * len - n_q + i and is row `row + i` of q, k, v and out.
 */
struct skv_kseq {
	const skv_pte *table;
	uint32_t len; /* tokens, those of this call included */
	uint32_t n_q; /* query rows; 1 when decoding */
	uint32_t row;
};

/*
 * Evidence of a decode pass. Softmax weights α of each token, one row a q head, are pooled (max or
 * sum) over all q heads (rows = 1) or over each kv head's group (rows = n_kv_heads).
 * Any of the outputs may be NULL.
 */
struct skv_evidence {
	uint32_t rows;         /* 1 or n_kv_heads */
	bool sum;              /* sum instead of max */
	uint32_t token_stride; /* >= the longest len, multiple of T */
	uint32_t page_stride;  /* >= pages of the longest len */
	/* Elements past the sequence's last page are left as they were. */
	float *token;          /* [seq][rows][token_stride]: pooled weight; 0 in holes and from len to the page's end */
	float *page;           /* [seq][rows][page_stride]: sum of the pooled weights of the page */
	float *lse;            /* [seq][n_heads]: log Σ exp(scale·q·k), natural logarithm */
};

/* A selection: ascending unit ids (pages or tokens), one list a sequence, or one a kv head. */
struct skv_list {
	uint32_t rows;       /* lists a sequence: 1, or n_kv_heads */
	uint32_t stride;     /* elements reserved for a list */
	uint32_t *ids;       /* [seq][rows][stride] */
	uint32_t *count;     /* [seq][rows] */
};

/* Scratch of a call. Sized with skv_kernels.work_bytes; one call at a time may use it. */
struct skv_work {
	void *mem; /* 64-byte aligned */
	size_t bytes;
	int threads; /* OpenMP threads to use, >= 1 */
};

struct skv_kernels {
	const char *name; /* "avx512", "avx2", "generic" */

	/*
	 * Scratch for calls of up to n_seqs sequences, n_rows query rows, max_len tokens, on `threads`
	 * threads; an upper bound for every function below.
	 */
	size_t (*work_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
	                     int threads);

	/*
	 * Write k and v rows into the pages of tokens len - n_q … len - 1, converted to the pool's dtype
	 * (round to nearest even; a NaN stays one).
	 */
	void (*append)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *k, const float *v,
	               const struct skv_work *);

	/* Copy whole pages, page src[i] to page dst[i] (copy-on-write of a shared page). */
	void (*copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n);

	/* Decode (n_q = 1) over every resident token; `ev` may be NULL. */
	void (*decode_dense)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *q, float *out,
	                     const struct skv_evidence *ev, const struct skv_work *);

	/*
	 * Decode over tokens [0, sinks[i]) and [start[i], len) of sequence i, whatever is resident of
	 * them. The two ranges may overlap; a token counts once.
	 */
	void (*decode_window)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *q, float *out,
	                      const uint32_t *sinks, const uint32_t *start, const struct skv_work *);

	/* Decode over the listed pages (tokens >= len do not count). Nothing listed that is resident: zeros. */
	void (*decode_pages)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *q, float *out,
	                     const struct skv_list *, const struct skv_work *);

	/* Decode over the listed tokens. */
	void (*decode_tokens)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *q, float *out,
	                      const struct skv_list *, const struct skv_work *);

	/*
	 * Causal attention of n_q >= 1 rows a sequence over every resident token up to each row's own.
	 * A row's bits do not depend on how a prompt is cut into calls.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_kseq *, uint32_t n, const float *q, float *out,
	                      const struct skv_work *);

	/*
	 * The k largest of score[0, n), as ascending indices into ret_ids, which has room for min(k, n);
	 * returns how many. Ties go to the lower index. -INFINITY marks what must not be chosen and never
	 * is, nor is a NaN: then there may be fewer than k. `scratch` has n elements.
	 */
	uint32_t (*topk)(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids, uint32_t *scratch);
};

/*
 * The host kernels for this processor: the best of avx512, avx2 and generic, or the one that
 * `isa` names (NULL or "": $SPARSEKV_ISA, else the best). NULL when the processor lacks it or the name is unknown.
 */
const struct skv_kernels *skv_kernels_host(const char *isa);

/* NULL when the kernels support this shape, else what they expect instead. */
const char *skv_shape_unsupported(const struct skv_shape *);

#endif
