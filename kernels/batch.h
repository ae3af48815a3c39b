/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/batch.h - what every kernel is called with: a layer's shape, a batch of sequences with their page tables, a
 * workspace.
 *
 * Memory. Everything that a pointer of these structs leads to lies in the backend's memory: host memory, or one
 * device's, where the functions queue work on skv_workspace.stream and return. What a device reads when the work runs
 * - lengths, page tables, index lists, counts - is never read by the host, so the calls of a step can be captured into a CUDA graph
 * and replayed while sequences grow. What determines the size of a launch is in the arguments themselves: struct
 * skv_shape, the bounds of struct skv_batch, plans.
 *
 * Shapes. T = SKV_PAGE_TOKENS, G = n_heads / n_kv_heads (the GQA group). Rows of q, k, v and out are of io_dtype, so
 * many elements apart as struct skv_shape says: q and out [row][n_heads][head_dim], k and v [row][n_kv_heads][head_dim].
 * The host's kernels take fp32 without gaps alone (load_rows). A page is all K, then all V,
 * each [kv head][token][head_dim] in the pool's dtype, then the scales of these rows if that is fp8; page id p is at
 * pool + p * page_bytes. Sums are accumulated in fp32.
 *
 * Tables. A layer has one page table (block table) for K and V and further ones for what it keeps beside them: state
 * pages (select.h), slot metadata (evict.h), codes and references (compress.h), saved prefill queries (prefill.h).
 * All lie in skv_kseq.table, layer_stride entries each; struct skv_shape says which number each has.
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
	uint32_t state;    /* of its table of state pages: page bounds, or sketches ... */
	uint32_t sketch_bits; /* ... of keys, with so many bits an element: 1, 2, 3 or 4; 0: page bounds */
	uint32_t slot_meta; /* of its table of slot metadata */
	uint32_t codes;    /* of its tables of codes and of references */
	uint32_t refs;
	uint32_t saved;    /* of its table of saved prefill queries */
	const struct skv_codec *codec; /* host memory, read during the call; NULL: the layer compresses nothing */
	float scale;       /* softmax scale, resolved (never 0) */
	float softcap;     /* c: a score s = scale q·k becomes c tanh(s / c) before the softmax (Gemma 2); 0: none */
	/*
	 * [n_heads] logits in the backend's memory, or NULL: besides its tokens, each softmax has one more term, whose
	 * value is zero (gpt-oss). Every weight that a kernel computes - attention, scores, recall - is of that softmax.
	 */
	const float *sinks;
	/*
	 * [row][n_heads] fp32 in the backend's memory, or NULL: natural logarithm of the sum of exp(score) over the tokens
	 * that a row attends to, the sink's term left out; -infinity where it attends to none.
	 */
	float *lse;
	/* elements from one row to the next, on a device a multiple of 16 bytes; 0: contiguous. The same where out is q. */
	uint32_t q_stride, k_stride, v_stride, out_stride;
	uint8_t *pool;
	size_t page_bytes;
};

/*
 * One sequence of a batch. Its page table has an entry for every page up to `len`; every function skips the entries
 * that are not resident (holes). Query row i of the sequence is token len - n_q + i and row `row + i` of q, k, v and
 * out.
 *
 * A batch may be padded with empty sequences: no tokens (len, n_tokens), no rows (n_q, n_state), `row` any that there is, the table one
 * entry, a hole, layer_stride 0. What appends, scores, selects and decodes takes these, and writes nothing for them but what is their own
 * in lists and scores.
 */
struct skv_kseq {
	const skv_pte *table; /* number 0; number x begins x * layer_stride entries further */
	uint64_t *attended;   /* decode adds the tokens attended to, once for each q head; may be NULL */
	uint32_t layer_stride;
	uint32_t len; /* tokens, those of this call included; with slots: slots in use */
	uint32_t n_q; /* query rows; 1 when decoding */
	uint32_t row;
	/* of its last n_state tokens, at least n_q, update_bounds() makes the bounds of their pages, update_sketches() sketches */
	uint32_t n_state;

	/* layers that evict: see evict.h */
	uint32_t n_tokens; /* tokens of the sequence: the position of the last query row is one less */
	uint32_t slot_end; /* slots from there on are free as of the last commit; at least len - n_q */
	uint32_t set;    /* the set of slot metadata, or of saved queries, that this step writes: 0 or 1 */
	uint32_t accumulate; /* enum skv_accumulate: does this step's query add to the accumulated scores? */
	uint32_t n_retained; /* tokens (pages) retained by this step's eviction; none is evicted if there are no more */
	uint32_t pinned; /* positions below this are never evicted */
	uint32_t n_active; /* active tokens of a kv head after this step, the mean of all heads; UINT32_MAX: unchanged */

	/* layers that compress: see compress.h */
	uint32_t n_compressed; /* tokens [codec->first, n_compressed) are compressed as of the last commit; 0: none */
	/* and [codec->first, compress_to) with this step's; none of this step's if not above n_compressed */
	uint32_t compress_to;

	/* prompts with sparse prefill: see prefill.h */
	uint32_t prompt_start; /* position of the prompt's first row: at most len - n_q */
	uint32_t dense_from; /* rows from this position on are dense, the prompt's tail; UINT32_MAX: none */
	uint32_t prompt_continues; /* not 0: the prompt continues in another call, for which `set` gets queries saved */
};

/* The sequences of a call, and bounds on them: a captured call may be replayed as long as they hold. */
struct skv_batch {
	const struct skv_kseq *seq; /* [n] */
	uint32_t n;
	/*
	 * 0 or 1, or so many: seq is [rows][n / rows], rows of the same sequences, each a sequence that ends with it: one token and
	 * one row of q and out after the one before.
	 */
	uint32_t rows;
	uint32_t max_len; /* >= every len */
	uint32_t max_q;   /* >= every n_q */
	uint32_t max_state; /* >= every n_state */
	uint32_t max_compress;   /* >= the tokens that this call compresses, of every sequence */
};

/* Workspace of a call, sized with skv_kernels.workspace_bytes; one call at a time may use it. */
struct skv_workspace {
	void *mem; /* 64-byte aligned; on a device: zeroed once, before its first use */
	size_t bytes;
	int threads;  /* that a host kernel may run on, >= 1 */
	void *stream; /* a device's: where to queue; NULL on the host */
	uint32_t beside; /* streams whose work runs beside this call's: then it takes no more of a device than it needs */
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

/* Bytes of a page's rows, the scales of fp8 left out: what a page that holds something else has for it ... */
SKV_INLINE size_t skv_page_room(const struct skv_shape *sh)
{
	return (size_t)2 * sh->n_kv_heads * SKV_PAGE_TOKENS * sh->head_dim * skv_dtype_bytes(sh->dtype);
}
/* ... and of that each kv head, one after the other. */
SKV_INLINE size_t skv_head_room(const struct skv_shape *sh)
{
	return skv_page_room(sh) / sh->n_kv_heads;
}

/* The sequence's page table of the call's layer. */
SKV_INLINE const skv_pte *skv_layer_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->layer * s->layer_stride;
}

#ifdef __cplusplus
}
#endif
#endif
