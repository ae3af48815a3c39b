/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/batch.h - arguments common to all kernels: the shape of a layer, a batch of sequences with their page tables,
 * and the workspace.
 *
 * Memory. Unless a field says otherwise, every pointer in these structs leads to the backend's memory: host memory, or
 * the memory of one device. On a device the functions queue work on skv_workspace.stream and return. The device reads
 * lengths, page tables, index lists and counts when the queued work runs; the host code of a device's kernels never
 * reads them. So the calls of a step can be captured into a CUDA graph and replayed while sequences grow. The size of a
 * kernel launch depends only on arguments that the host code reads: struct skv_shape, the bounds in struct skv_batch,
 * plans.
 *
 * Shapes. T = SKV_PAGE_TOKENS, G = n_heads / n_kv_heads (the GQA group). Rows of q, k, v and out have the element type
 * and the strides that struct skv_shape gives (io_dtype, q_stride …): q and out are [row][n_heads][head_dim], k and v
 * are [row][n_kv_heads][head_dim]. Host kernels take only contiguous fp32 rows (see load_rows). A page holds all K,
 * then all V, each [kv head][token][head_dim] in the pool's dtype; with fp8 the scales of these rows follow. The page
 * with id p is at pool + p * page_bytes. Kernels accumulate sums in fp32.
 *
 * Tables. A layer has one page table (block table) for its pages of K and V, and further page tables for other data of
 * the layer: state pages (select.h), slot metadata (evict.h), codes and references (compress.h), saved prefill queries
 * (prefill.h). All tables of a sequence are in skv_kseq.table, layer_stride entries each; struct skv_shape gives the
 * index of each of the layer's tables among them.
 */
#ifndef SKV_BATCH_H
#define SKV_BATCH_H

#include <stdbool.h>
#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skv_codec;

/* The shape of the layer, which all sequences of a call have in common. */
struct skv_shape {
	uint32_t n_heads, n_kv_heads, head_dim;
	uint32_t dtype;    /* enum skv_dtype: element type of the pool's pages */
	uint32_t io_dtype; /* enum skv_dtype: element type of q, k, v and out */
	uint32_t layer;    /* index of the layer's page table in skv_kseq.table */
	uint32_t state;    /* index of the table of state pages, which hold page bounds or sketches */
	uint32_t sketch_bits; /* bits of a sketch's element, 1 to 4; 0: state pages hold page bounds */
	uint32_t value_bits; /* with sketches: 2: state pages also hold the values in so many bits an element; else 0 */
	uint32_t slot_meta; /* index of the table of slot metadata */
	uint32_t codes;    /* index of the table of codes (compressed tokens) */
	uint32_t refs;     /* index of the table of references */
	uint32_t saved;    /* index of the table of saved prefill queries */
	const struct skv_codec *codec; /* in host memory, read during the call; NULL: the layer compresses nothing */
	float scale;       /* softmax scale, the factor of q·k: the number itself, never 0 for a default */
	/* c: a score s = scale q·k becomes c tanh(s / c) before the softmax (Gemma 2); 0: no softcap */
	float softcap;
	/*
	 * Sinks: [n_heads] logits in the backend's memory, or NULL. With sinks, each q head's softmax has one more term
	 * besides those of its tokens, with no value row (gpt-oss). All weights that kernels compute (attention,
	 * scores, recall) are weights of that softmax.
	 */
	const float *sinks;
	/*
	 * Output: log-sum-exp, [row][n_heads] fp32 in the backend's memory, or NULL. The natural logarithm of the sum
	 * of exp(score) over the tokens that a row attends to, without the sink's term; -infinity if the row attends to
	 * no token.
	 */
	float *lse;
	/*
	 * Strides of q, k, v and out: number of elements from one row to the next; 0: rows are contiguous. On a device
	 * a stride is a multiple of 16 bytes. If out is the same buffer as q, their strides must be equal.
	 */
	uint32_t q_stride, k_stride, v_stride, out_stride;
	uint8_t *pool;
	size_t page_bytes;
};

/*
 * One sequence of a batch. The sequence's page table has an entry for every page up to `len`; every function skips
 * entries that are not resident (holes). Query row i of the sequence belongs to token len - n_q + i, and is row `row +
 * i` of q, k, v and out.
 *
 * A batch may be padded with empty sequences. In an empty sequence len, n_tokens, n_q and n_state are 0, `row` is any
 * existing row, the page table has one entry, a hole, and layer_stride is 0. The functions that append, score, select
 * and decode accept empty sequences, and write for them only their own entries in lists and scores.
 */
struct skv_kseq {
	const skv_pte *table; /* table 0 of the sequence; table x begins x * layer_stride entries after table 0 */
	/* counter of tokens attended to, to which each decode adds, once for each q head; NULL: not counted */
	uint64_t *attended;
	uint32_t layer_stride;
	uint32_t len; /* number of tokens, including those of this call; in layers that evict: number of slots in use */
	uint32_t n_q; /* number of query rows in this call; 1 when decoding */
	uint32_t row;
	/*
	 * update_bounds() makes the bounds of the pages of the last n_state tokens, and update_sketches() makes the
	 * sketches of these tokens; n_state is at least n_q
	 */
	uint32_t n_state;

	/* The following fields are for layers that evict, see evict.h. */
	/* number of tokens of the sequence, evicted ones included: the last query row is at position n_tokens - 1 */
	uint32_t n_tokens;
	/* number of slots: as of the last commit, slot slot_end and those after it are free; at least len - n_q */
	uint32_t slot_end;
	uint32_t set;    /* the set of slot metadata or of saved queries (0 or 1) that this step writes */
	/* enum skv_accumulate: does this step's query add its attention weights to the accumulated scores? */
	uint32_t accumulate;
	/*
	 * number of tokens (pages) that this step's eviction retains; if there are no more than that, none is evicted
	 */
	uint32_t n_retained;
	uint32_t pinned; /* tokens at positions below `pinned` are never evicted */
	/* number of active tokens of a kv head after this step, averaged over heads; UINT32_MAX: unchanged */
	uint32_t n_active;

	/* The following fields are for layers that compress, see compress.h. */
	uint32_t n_compressed; /* as of the last commit, tokens [codec->first, n_compressed) are compressed; 0: none */
	/*
	 * after this step, tokens [codec->first, compress_to) are compressed; if compress_to is not above n_compressed,
	 * this step compresses none
	 */
	uint32_t compress_to;

	/* The following fields are for prompts with sparse prefill, see prefill.h. */
	uint32_t prompt_start; /* position of the prompt's first row; at most len - n_q */
	/* rows at this position and after it (the prompt's tail) use dense attention; UINT32_MAX: no tail */
	uint32_t dense_from;
	/* not 0: the prompt continues in a later call, for which this call saves queries in `set` */
	uint32_t prompt_continues;
};

/*
 * The sequences of a call, and upper bounds of their sizes. A call that was captured into a CUDA graph may be replayed
 * as long as the bounds hold.
 */
struct skv_batch {
	const struct skv_kseq *seq; /* [n]: the sequences */
	uint32_t n;
	/*
	 * 0 or 1: each sequence has its own entry in seq. Above 1 (several query rows of each sequence are decoded):
	 * seq is [rows][n / rows], which has the same sequences `rows` times. Each entry is then a sequence that ends
	 * with its row: one token longer, and one row of q and out further on, than the sequence's entry before.
	 */
	uint32_t rows;
	uint32_t max_len; /* upper bound of every sequence's len */
	uint32_t max_q;   /* upper bound of every sequence's n_q */
	uint32_t max_state; /* upper bound of every sequence's n_state */
	uint32_t max_compress;   /* upper bound of the tokens that this call compresses in a sequence */
};

/*
 * The workspace of a call, whose size comes from skv_kernels.workspace_bytes. Only one call at a time may use a
 * workspace.
 */
struct skv_workspace {
	void *mem; /* aligned to 64 bytes; on a device, zeroed once before its first use */
	size_t bytes;
	int threads;  /* number of threads that a host kernel may use, >= 1 */
	void *stream; /* the device stream to queue work on; NULL on the host */
	/*
	 * number of other streams that run work at the same time; if not 0, the call uses no more of the device's SMs
	 * than it needs
	 */
	uint32_t beside;
};

/* Number of elements from one row of q, k, v or out to the next. */
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

/*
 * Bytes of a page's rows of K and V, without fp8 scales. Pages that hold other data than K and V can use all of these
 * bytes.
 */
SKV_INLINE size_t skv_page_room(const struct skv_shape *sh)
{
	return (size_t)2 * sh->n_kv_heads * SKV_PAGE_TOKENS * sh->head_dim * skv_dtype_bytes(sh->dtype);
}
/*
 * Bytes of one kv head's share of a page that holds other data than K and V; the shares are in the order of the kv
 * heads.
 */
SKV_INLINE size_t skv_head_room(const struct skv_shape *sh)
{
	return skv_page_room(sh) / sh->n_kv_heads;
}

/* The sequence's page table of K and V for the layer of the call. */
SKV_INLINE const skv_pte *skv_layer_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->layer * s->layer_stride;
}

#ifdef __cplusplus
}
#endif
#endif
