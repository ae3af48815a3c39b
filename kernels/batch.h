/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/batch.h - arguments common to all kernels: the shape of a layer, a batch of sequences with their page tables,
 * and the workspace.
 *
 * Memory. Every pointer in these structs leads to the backend's memory: host memory, or the memory of one device. On a
 * device the functions queue work on skv_workspace.stream and return. The host never reads what the device reads when
 * the work runs: lengths, page tables, index lists, counts. So the calls of a step can be captured into a CUDA graph
 * and replayed while sequences grow. The size of a launch depends only on the arguments themselves: struct skv_shape,
 * the bounds in struct skv_batch, plans.
 *
 * Shapes. T = SKV_PAGE_TOKENS, G = n_heads / n_kv_heads (the GQA group). Rows of q, k, v and out have the type io_dtype
 * and the strides of struct skv_shape: q and out are [row][n_heads][head_dim], k and v are [row][n_kv_heads][head_dim].
 * Host kernels take only contiguous fp32 rows (see load_rows). A page holds all K, then all V, each
 * [kv head][token][head_dim] in the pool's dtype; with fp8 the scales of these rows follow. Page id p is at
 * pool + p * page_bytes. Sums are accumulated in fp32.
 *
 * Tables. A layer has one page table (block table) for K and V, and further ones for the data that it keeps beside
 * them: state pages (select.h), slot metadata (evict.h), codes and references (compress.h), saved prefill queries
 * (prefill.h). All of them are in skv_kseq.table, layer_stride entries each. struct skv_shape gives the number of each
 * table.
 */
#ifndef SKV_BATCH_H
#define SKV_BATCH_H

#include <stdbool.h>
#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skv_codec;

/* What all sequences of a call have in common. */
struct skv_shape {
	uint32_t n_heads, n_kv_heads, head_dim;
	uint32_t dtype;    /* enum skv_dtype of the pool */
	uint32_t io_dtype; /* enum skv_dtype of q, k, v and out */
	uint32_t layer;    /* number of the layer's page table */
	uint32_t state;    /* number of the table of state pages: page bounds or sketches */
	uint32_t sketch_bits; /* bits of a sketch's element, 1 to 4; 0: state pages hold page bounds */
	uint32_t slot_meta; /* number of the table of slot metadata */
	uint32_t codes;    /* numbers of the tables of codes and of references */
	uint32_t refs;
	uint32_t saved;    /* number of the table of saved prefill queries */
	const struct skv_codec *codec; /* host memory, read during the call; NULL: the layer compresses nothing */
	float scale;       /* softmax scale, resolved (never 0) */
	float softcap;     /* c: a score s = scale q·k becomes c tanh(s / c) before the softmax (Gemma 2); 0: none */
	/*
	 * [n_heads] logits in the backend's memory, or NULL. Each softmax then has one more term besides its tokens,
	 * whose value is zero (gpt-oss). All weights that kernels compute (attention, scores, recall) are weights of
	 * that softmax.
	 */
	const float *sinks;
	/*
	 * [row][n_heads] fp32 in the backend's memory, or NULL: natural logarithm of the sum of exp(score) over the
	 * tokens that a row attends to, without the sink's term; -infinity if the row attends to no token.
	 */
	float *lse;
	/*
	 * Elements from one row to the next; 0: contiguous. On a device a multiple of 16 bytes. If out is q, their
	 * strides are equal.
	 */
	uint32_t q_stride, k_stride, v_stride, out_stride;
	uint8_t *pool;
	size_t page_bytes;
};

/*
 * One sequence of a batch. Its page table has an entry for every page up to `len`; every function skips entries that
 * are not resident (holes). Query row i of the sequence is token len - n_q + i and row `row + i` of q, k, v and out.
 *
 * A batch may be padded with empty sequences: len, n_tokens, n_q and n_state are 0, `row` is any existing row, the
 * table is a single hole, and layer_stride is 0. The functions that append, score, select and decode accept such
 * sequences; for them they write only the sequence's own entries in lists and scores.
 */
struct skv_kseq {
	const skv_pte *table; /* table 0; table x begins x * layer_stride entries further on */
	uint64_t *attended;   /* decode adds the number of tokens attended to, once for each q head; may be NULL */
	uint32_t layer_stride;
	uint32_t len; /* tokens, including those of this call; with slots: slots in use */
	uint32_t n_q; /* query rows; 1 when decoding */
	uint32_t row;
	/*
	 * update_bounds() makes the bounds of the pages of the last n_state tokens, update_sketches() the sketches of
	 * these tokens; at least n_q
	 */
	uint32_t n_state;

	/* layers that evict: see evict.h */
	uint32_t n_tokens; /* tokens of the sequence: the last query row is at position n_tokens - 1 */
	uint32_t slot_end; /* slots from here on are free as of the last commit; at least len - n_q */
	uint32_t set;    /* the set of slot metadata or of saved queries that this step writes: 0 or 1 */
	uint32_t accumulate; /* enum skv_accumulate: does this step's query add to the accumulated scores? */
	uint32_t n_retained; /* tokens (pages) retained by this step's eviction; none is evicted if there are no more */
	uint32_t pinned; /* tokens at positions below this are never evicted */
	uint32_t n_active; /* active tokens of a kv head after this step, averaged over heads; UINT32_MAX: unchanged */

	/* layers that compress: see compress.h */
	uint32_t n_compressed; /* as of the last commit tokens [codec->first, n_compressed) are compressed; 0: none */
	/*
	 * tokens [codec->first, compress_to) are compressed after this step; if not above n_compressed, it compresses
	 * none
	 */
	uint32_t compress_to;

	/* prompts with sparse prefill: see prefill.h */
	uint32_t prompt_start; /* position of the prompt's first row: at most len - n_q */
	uint32_t dense_from; /* rows from this position on are dense, the prompt's tail; UINT32_MAX: none */
	/* not 0: the prompt continues in another call, for which this one saves queries in `set` */
	uint32_t prompt_continues;
};

/* The sequences of a call, and bounds on them. A captured call may be replayed as long as the bounds hold. */
struct skv_batch {
	const struct skv_kseq *seq; /* [n] */
	uint32_t n;
	/*
	 * 0 or 1: one row a sequence. Otherwise seq is [rows][n / rows]: the same sequences `rows` times. Each entry is
	 * a sequence that ends with its row: one token longer, and one row of q and out further, than its predecessor.
	 */
	uint32_t rows;
	uint32_t max_len; /* >= every len */
	uint32_t max_q;   /* >= every n_q */
	uint32_t max_state; /* >= every n_state */
	uint32_t max_compress;   /* >= the tokens that this call compresses, for every sequence */
};

/* Workspace of a call, sized with skv_kernels.workspace_bytes. Only one call at a time may use it. */
struct skv_workspace {
	void *mem; /* 64-byte aligned; on a device: zeroed once, before its first use */
	size_t bytes;
	int threads;  /* threads that a host kernel may use, >= 1 */
	void *stream; /* the device stream to queue work on; NULL on the host */
	/* streams that run concurrently; if not 0, the call takes no more of the device than it needs */
	uint32_t beside;
};

/* Elements from one row to the next of q, k, v and out. */
SKV_INLINE uint32_t skv_q_stride(const struct skv_shape *sh)
{
	return sh->q_stride ? sh->q_stride : sh->n_heads * sh->head_dim;
}
SKV_INLINE uint32_t skv_k_stride(const struct skv_shape *sh)
{
	return sh->k_stride ? sh->k_stride : sh->n_kv_heads * sh->head_dim;
}
SKV_INLINE uint32_t skv_v_stride(const struct skv_shape *sh)
{
	return sh->v_stride ? sh->v_stride : sh->n_kv_heads * sh->head_dim;
}
SKV_INLINE uint32_t skv_out_stride(const struct skv_shape *sh)
{
	return sh->out_stride ? sh->out_stride : sh->n_heads * sh->head_dim;
}

/* Bytes of a page's rows, without fp8 scales. Pages that hold other data than rows can use all of these bytes. */
SKV_INLINE size_t skv_page_room(const struct skv_shape *sh)
{
	return (size_t)2 * sh->n_kv_heads * SKV_PAGE_TOKENS * sh->head_dim * skv_dtype_bytes(sh->dtype);
}
/* Each kv head's share of these bytes; the shares are in the order of the heads. */
SKV_INLINE size_t skv_head_room(const struct skv_shape *sh)
{
	return skv_page_room(sh) / sh->n_kv_heads;
}

/* The sequence's page table for the layer of the call. */
SKV_INLINE const skv_pte *skv_layer_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->layer * s->layer_stride;
}

#ifdef __cplusplus
}
#endif
#endif
