/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/types.h - types shared by engines, policies and kernels.
 *
 * Terms, used with exactly these meanings everywhere in the project:
 *
 *   token      one position of a sequence; it has one K and one V row per layer and kv head
 *   page       SKV_PAGE_TOKENS tokens of ONE layer, all kv heads; vLLM calls it a block
 *   slot       the position of a KV row in the pages of its layer and kv head, see slot mapping in kernels/evict.h
 *   sequence   one request's context: a page table (block table) per layer, a length, the token ids
 *   kv head    a head of K and V; a GQA group of n_heads / n_kv_heads q heads shares it
 *   budget     how much of a sequence a policy may attend to or retain
 *   dense      attention over every resident token of the sequence
 *
 * Memory layout of a page: all K, then all V, each `[kv head][token][head_dim]`, so the K rows of one kv head are
 * contiguous, and so are its V rows. With SKV_FP8 the scales of these rows follow, one byte each, in the same order.
 */
#ifndef SPARSEKV_TYPES_H
#define SPARSEKV_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inline functions of these headers. Device code calls them, too. */
#ifdef __CUDACC__
#define SKV_INLINE static inline __host__ __device__
#else
#define SKV_INLINE static inline
#endif

#define SKV_PAGE_TOKENS 16u   /* tokens in a page, part of every ABI */
#define SKV_MAX_LAYERS 256u
#define SKV_MAX_HEADS 256u    /* q heads */
#define SKV_MAX_HEAD_DIM 256u /* head_dim is a multiple of 16 up to this */
#define SKV_MAX_TOKENS (1u << 24)
#define SKV_BLOCK_TOKENS 256u /* tokens of a block of a sealed prefix (client.h): whole pages */
#define SKV_ALL UINT32_MAX /* as a count of tokens: all that there are */
#define SKV_NAME_MAX 64u /* bytes of a name, with the final NUL */
#define SKV_MAX_DEVICES 16u

/* The memory that holds a model's pages: host memory, or the memory of CUDA device i. */
#define SKV_DEVICE_HOST 0u
#define SKV_DEVICE_CUDA(i) (1u + (uint32_t)(i))

/* Element type of the K and V rows in the pool. */
enum skv_dtype {
	SKV_F32 = 0,
	SKV_F16 = 1,
	SKV_BF16 = 2,
	/*
	 * For pages only. An element is an e4m3 number (4 bits of exponent, 3 of mantissa) times a power of two for its
	 * row, 2^(x - 127); x, the row's scale, is a byte as in the MX formats (E8M0). The largest element is 224 to
	 * 448 times that power of two, so elements down to 2^-13 of the largest keep three bits of mantissa. x = 255:
	 * the row has elements that are not finite, or 2^120 or more, and all of it is NaN.
	 */
	SKV_FP8 = 3,
};

/* Bytes of one element, 0 for an unknown type. */
SKV_INLINE size_t skv_dtype_bytes(uint32_t dtype)
{
	return dtype == SKV_F32 ? 4u : dtype == SKV_F16 || dtype == SKV_BF16 ? 2u : dtype == SKV_FP8 ? 1u : 0u;
}

/* Bytes of the scale of a row of K or V. Scales are stored apart from the rows. */
SKV_INLINE size_t skv_dtype_scale_bytes(uint32_t dtype)
{
	return dtype == SKV_FP8 ? 1u : 0u;
}

/*
 * Rotary position embedding (RoPE) of a model. A pair (x, y) of a head's elements at position p becomes
 * (x cos a - y sin a, x sin a + y cos a) * skv_rope_scale(), with a = p * skv_rope_frequency().
 */
enum skv_rope_type {
	SKV_ROPE_UNKNOWN = 0, /* not given: a policy that needs it refuses the model */
	SKV_ROPE_NONE = 1,    /* no rotation */
	SKV_ROPE_DEFAULT = 2, /* frequency of pair i: theta^(-2i / dims) */
	SKV_ROPE_LINEAR = 3,  /* the default frequency, divided by factor */
	SKV_ROPE_LLAMA3 = 4,  /* as in Llama 3.1 */
	SKV_ROPE_YARN = 5,
};

struct skv_rope {
	uint32_t type;        /* enum skv_rope_type */
	uint32_t dims;        /* the first `dims` elements of a head are rotated; 0: all */
	uint32_t interleaved; /* pairs are (2i, 2i + 1); else (i, i + dims / 2) */
	uint32_t reserved;    /* must be 0 */
	double theta;         /* base of the frequencies */
	double factor;    /* linear, llama3, yarn: divides the frequency of slow pairs */
	double low, high; /* llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast */
	double original;  /* llama3, yarn: context length of the original training */
	double attention; /* yarn: factor of cos and sin; 0: 0.1 ln(factor) + 1 */
};

/*
 * What one layer's attention has besides the model's: with all fields zero a layer is plain. Initialise with
 * SKV_MODEL_LAYER(…) or skv_model_layer_init(). The score of a token for a row is s = scale q·k, or with a softcap
 * softcap tanh(s / softcap). The softmax is over the tokens that the row attends to, and over the sink, which has no
 * value.
 */
struct skv_model_layer {
	/* sizeof(struct skv_model_layer) as the caller compiled it: the distance between two layers */
	uint32_t size;
	/* sliding window: a row attends to the last `window` tokens, its own included; 0: to all */
	uint32_t window;
	/* 1 + an earlier layer with K and V of its own, to which this layer attends; 0: it attends to its own */
	uint32_t shares_kv;
	float scale;        /* softmax scale; 0: the model's */
	float softcap;      /* of the scores (Gemma 2); 0: none */
	const float *sinks; /* [n_heads] logits, one more term of each head's softmax (gpt-oss), host memory; NULL: none */
};
#define SKV_MODEL_LAYER(...) ((struct skv_model_layer){.size = sizeof(struct skv_model_layer), __VA_ARGS__})

#define SKV_PROFILE_PATH 256u /* bytes of the path of a profile, or of a model's directory, with the NUL */

/*
 * The shape of a model's KV cache, for the daemon and the library. `size` is sizeof(struct skv_model) as the caller
 * compiled it; a newer library takes the missing tail of a shorter struct as zeros. Initialise with SKV_MODEL_INIT.
 */
struct skv_model {
	uint32_t size;
	uint32_t n_layers;   /* 1 … SKV_MAX_LAYERS */
	uint32_t n_heads;    /* q heads; a multiple of n_kv_heads, at most SKV_MAX_HEADS */
	uint32_t n_kv_heads;
	uint32_t head_dim;   /* multiple of 16, at most SKV_MAX_HEAD_DIM */
	uint32_t kv_dtype;   /* enum skv_dtype of the pages */
	uint32_t max_tokens; /* longest sequence, at most SKV_MAX_TOKENS */
	float scale;         /* softmax scale; 0 means 1/sqrt(head_dim) */
	uint32_t rank;       /* of a tensor-parallel group: this process's rank ... */
	uint32_t n_ranks;    /* ... of this many (1: no tensor parallelism); numbers of heads above are per rank */
	/*
	 * 1 … SKV_NAME_MAX-1 bytes of printable ASCII without space, '/' allowed, NUL-terminated. Sequences belong to a
	 * model by its name.
	 */
	char name[SKV_NAME_MAX];
	uint32_t device;         /* SKV_DEVICE_HOST, or SKV_DEVICE_CUDA(i) with i below SKV_MAX_DEVICES */
	uint32_t io_dtype;       /* enum skv_dtype of the q, k, v and out rows; not SKV_FP8 */
	struct skv_rope rope;    /* for policies that undo the rotation of keys; not sent to the daemon */
	/* Absolute directory of the model's files, in which policies find profiles and codecs, or "". */
	char files[SKV_PROFILE_PATH];
	/*
	 * [n_layers], or NULL if all layers are plain. skv_open copies them and their sinks. Not sent to the daemon.
	 * Policies get them with the model, and read them with skv_model_window() and skv_model_kv_layer().
	 */
	const struct skv_model_layer *layers;
	/*
	 * For one of several ranks, else NULL: an all-reduce of `count` fp32 numbers in the model's memory, in place.
	 * Each number becomes the largest of all ranks' (for instance ncclAllReduce with ncclMax). On a device the
	 * function queues it on `stream`, which may be capturing; on the host it is done on return, and stream is NULL.
	 * All ranks call it equally often, in the same order and with the same counts, if they step with the same
	 * sequences in the same order. Returns 0, or a negative errno, which makes the layer fail. Policies that select
	 * by the scores of all heads, or compress all heads together, need it: skv_open refuses them without it. Not
	 * sent to the daemon.
	 */
	int (*all_reduce_max)(void *ctx, float *data, size_t count, void *stream);
	void *all_reduce_ctx; /* its first argument */
};
#define SKV_MODEL_INIT {.size = sizeof(struct skv_model), .n_ranks = 1}

/* Bytes of the rows of one page of this model: K and V, all kv heads, SKV_PAGE_TOKENS tokens, one layer. */
SKV_INLINE size_t skv_page_rows_bytes(const struct skv_model *m)
{
	return (size_t)2 * m->n_kv_heads * SKV_PAGE_TOKENS * m->head_dim * skv_dtype_bytes(m->kv_dtype);
}
/* Bytes of a whole page: its rows, and the scales of SKV_FP8. */
SKV_INLINE size_t skv_page_bytes(const struct skv_model *m)
{
	return skv_page_rows_bytes(m) + (size_t)2 * m->n_kv_heads * SKV_PAGE_TOKENS * skv_dtype_scale_bytes(m->kv_dtype);
}

/* A layer's attributes, or NULL if all layers are plain. */
SKV_INLINE const struct skv_model_layer *skv_model_layer(const struct skv_model *m, uint32_t layer)
{
	return m->layers ? (const struct skv_model_layer *)((const char *)m->layers + (size_t)layer * m->layers->size) : NULL;
}

/* The sliding window of a layer, in tokens. 0: the layer has none, or one that no sequence of the model outgrows. */
SKV_INLINE uint32_t skv_model_window(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);
	return l && l->window < m->max_tokens ? l->window : 0;
}

/* The layer whose K and V the layer attends to: itself, unless it shares another's. */
SKV_INLINE uint32_t skv_model_kv_layer(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);
	return l && l->shares_kv ? l->shares_kv - 1 : layer;
}

/* Does another layer attend to this layer's K and V, or this layer to another's? */
SKV_INLINE int skv_model_kv_shared(const struct skv_model *m, uint32_t layer)
{
	for (uint32_t i = 0; m->layers && i < m->n_layers; i++)
		if (skv_model_kv_layer(m, i) != i && (i == layer || skv_model_kv_layer(m, i) == layer))
			return 1;
	return 0;
}

/* Pages (of one layer) that `tokens` tokens take. */
SKV_INLINE uint32_t skv_pages_of(uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + SKV_PAGE_TOKENS - 1) / SKV_PAGE_TOKENS);
}

/*
 * A page table entry: the page that holds SKV_PAGE_TOKENS tokens of one layer. The top four bits are its kind, the
 * others are a page id of the pool. Kernels read entries, so they are plain integers.
 */
typedef uint32_t skv_pte;
#define SKV_PTE_KIND_SHIFT 28
#define SKV_PTE_ID_MASK 0x0fffffffu
enum skv_pte_kind {
	SKV_PTE_NONE = 0,    /* no page yet: beyond the end of the sequence */
	SKV_PTE_PRIVATE = 1, /* a writable page of this sequence alone */
	SKV_PTE_SHARED = 2,  /* a read-only page, shared with forks */
	SKV_PTE_HOLE = 3,    /* evicted: attention skips these tokens */
};

SKV_INLINE skv_pte skv_pte_make(enum skv_pte_kind kind, uint32_t id)
{
	return ((uint32_t)kind << SKV_PTE_KIND_SHIFT) | (id & SKV_PTE_ID_MASK);
}
SKV_INLINE enum skv_pte_kind skv_pte_kind(skv_pte e)
{
	return (enum skv_pte_kind)(e >> SKV_PTE_KIND_SHIFT);
}
SKV_INLINE uint32_t skv_pte_id(skv_pte e)
{
	return e & SKV_PTE_ID_MASK;
}
/* Can attention read the page of this entry? */
SKV_INLINE int skv_pte_resident(skv_pte e)
{
	return skv_pte_kind(e) == SKV_PTE_PRIVATE || skv_pte_kind(e) == SKV_PTE_SHARED;
}

/* How a layer attends in decode. */
enum skv_attend_mode {
	SKV_ATTEND_DENSE = 0,  /* every resident token */
	SKV_ATTEND_WINDOW = 1, /* attention sinks and the most recent tokens, see struct skv_window in policy.h */
	SKV_ATTEND_PAGES = 2,  /* selected pages */
	SKV_ATTEND_TOKENS = 3, /* selected tokens */
};

/*
 * A budget: a count, or a share of the sequence, in the policy's granularity (pages or tokens). Exactly one of the two
 * is nonzero. Specs write both as one number: from 1 on it is a count, below 1 a share.
 */
struct skv_budget {
	float share;
	uint32_t count;
};

/* The budget of a sequence of `n` tokens or pages: max(floor, count or ceil(share * n)), never more than n. */
SKV_INLINE uint32_t skv_budget_of(struct skv_budget b, uint32_t n, uint32_t floor)
{
	uint32_t k = b.count;
	if (b.share > 0) {
		/* in double: the float nearest to 0.1, times 1,000, must be 100, not 101 */
		double x = (double)b.share * n;
		k = (uint32_t)x;
		if (x - k > 1e-4)
			k++;
	}
	if (k < floor)
		k = floor;
	return k < n ? k : n;
}

#ifdef __cplusplus
}
#endif
#endif
