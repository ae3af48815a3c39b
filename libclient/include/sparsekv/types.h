/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/types.h - types shared by engines, policies and kernels.
 *
 * Terms. Each of them has exactly this meaning everywhere in the project:
 *
 *   token      one position of a sequence; it has one K and one V row per layer and kv head
 *   page       SKV_PAGE_TOKENS tokens of ONE layer, all kv heads; vLLM calls it a block
 *   slot       position of a K and V row in the pages of its layer and kv head, see slot mapping in kernels/evict.h
 *   sequence   one request's context: a page table (block table) per layer, a length, the token ids
 *   kv head    a head of K and V; a GQA group of n_heads / n_kv_heads q heads shares it
 *   budget     the number or share of a sequence's tokens or pages that a policy may attend to or retain
 *   dense      attention over every resident token of the sequence
 *
 * Memory layout of a page: all K rows, then all V rows, each [kv head][token][head_dim], so the K rows of one kv head
 * are contiguous, and so are its V rows. With SKV_FP8 the rows' scales follow, one byte each, in the same order.
 */
#ifndef SPARSEKV_TYPES_H
#define SPARSEKV_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Qualifiers of inline functions in the public headers. CUDA device code calls these functions, too. */
#ifdef __CUDACC__
#define SKV_INLINE static inline __host__ __device__
#else
#define SKV_INLINE static inline
#endif

#define SKV_PAGE_TOKENS 16u   /* number of tokens in a page; part of every ABI */
#define SKV_MAX_LAYERS 256u
#define SKV_MAX_HEADS 256u    /* maximum number of q heads */
#define SKV_MAX_HEAD_DIM 256u /* maximum of head_dim, which is a multiple of 16 */
#define SKV_MAX_TOKENS (1u << 24)
/* number of tokens in a block of a sealed prefix (client.h): a multiple of SKV_PAGE_TOKENS */
#define SKV_BLOCK_TOKENS 256u
#define SKV_ALL UINT32_MAX /* as a number of tokens: all tokens of the sequence */
#define SKV_NAME_MAX 64u /* bytes of a name, including the final NUL */
#define SKV_MAX_DEVICES 16u

/* The memory that holds a model's pages: host memory, or the memory of CUDA device i. */
#define SKV_DEVICE_HOST 0u
#define SKV_DEVICE_CUDA(i) (1u + (uint32_t)(i))

/* Element type of the K and V rows in pages, and of the q, k, v and out rows of an engine. */
enum skv_dtype {
	SKV_F32 = 0,
	SKV_F16 = 1,
	SKV_BF16 = 2,
	/*
	 * For pages only. The value of an element is an e4m3 number (4 bits of exponent, 3 of mantissa) times 2^(x -
	 * 127), where x is the scale of the element's row, a byte as in the MX formats (E8M0). The e4m3 number of a
	 * row's largest element is 224 to 448, so elements down to 2^-13 of the largest element keep three bits of
	 * mantissa. x = 255: the row has an element that is not finite, or is 2^120 or more, and the whole row is read
	 * as NaN.
	 */
	SKV_FP8 = 3,
};

/* Bytes of one element of this dtype, or 0 for an unknown dtype. */
SKV_INLINE size_t skv_dtype_bytes(uint32_t dtype)
{
	return dtype == SKV_F32 ? 4u : dtype == SKV_F16 || dtype == SKV_BF16 ? 2u : dtype == SKV_FP8 ? 1u : 0u;
}

/* Bytes of the scale of one row of K or V, or 0 if the dtype has no scales. Scales are stored apart from the rows. */
SKV_INLINE size_t skv_dtype_scale_bytes(uint32_t dtype)
{
	return dtype == SKV_FP8 ? 1u : 0u;
}

/*
 * Types of rotary position embedding (RoPE). A pair (x, y) of a head's elements at position p becomes (x cos a - y sin
 * a, x sin a + y cos a) * skv_rope_scale(), with the angle a = p * skv_rope_frequency().
 */
enum skv_rope_type {
	SKV_ROPE_UNKNOWN = 0, /* the engine does not say: a policy that needs to know RoPE refuses the model */
	SKV_ROPE_NONE = 1,    /* no rotation */
	SKV_ROPE_DEFAULT = 2, /* frequency of pair i: theta^(-2i / dims) */
	SKV_ROPE_LINEAR = 3,  /* the frequency of SKV_ROPE_DEFAULT, divided by `factor` */
	SKV_ROPE_LLAMA3 = 4,  /* frequencies as in Llama 3.1 */
	SKV_ROPE_YARN = 5,
};

struct skv_rope {
	uint32_t type;        /* enum skv_rope_type */
	uint32_t dims;        /* the first `dims` elements of a head are rotated; 0: all elements */
	uint32_t interleaved; /* 1: a pair is the elements (2i, 2i + 1); 0: a pair is (i, i + dims / 2) */
	uint32_t reserved;    /* must be 0 */
	double theta;         /* base of the frequencies */
	double factor;    /* linear, llama3, yarn: frequencies of slowly rotating pairs are divided by this factor */
	double low, high; /* llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast */
	double original;  /* llama3, yarn: context length of the original training */
	double attention; /* yarn: factor of cos and sin; 0: the factor is 0.1 ln(factor) + 1 */
};

/*
 * Attributes of one layer's attention that the model as a whole does not have; a layer with all attributes zero is
 * called plain. Initialise with SKV_MODEL_LAYER(…) or skv_model_layer_init(). The score of a token for a row is s =
 * scale q·k, or with a softcap: softcap tanh(s / softcap). The softmax is over the tokens that the row attends to and
 * the learned sink, which adds to the denominator and has no V.
 */
struct skv_model_layer {
	/* sizeof(struct skv_model_layer) as the caller compiled it: the distance of two layers in an array */
	uint32_t size;
	/*
	 * sliding window: a row attends to the last `window` tokens, its own included; 0: a row attends to all tokens
	 */
	uint32_t window;
	/*
	 * 1 + the index of an earlier layer, which has K and V of its own and whose K and V this layer attends to; 0:
	 * none
	 */
	uint32_t shares_kv;
	float scale;        /* softmax scale of the layer; 0: the model's scale */
	float softcap;      /* softcap of the scores (Gemma 2); 0: no softcap */
	/* [n_heads] learned sinks, each a logit in a q head's softmax (gpt-oss); host memory; NULL: none */
	const float *sinks;
};
#define SKV_MODEL_LAYER(...) ((struct skv_model_layer){.size = sizeof(struct skv_model_layer), __VA_ARGS__})

#define SKV_PROFILE_PATH 256u /* bytes of the path of a profile or of a model's directory, including the NUL */

/*
 * The shape of a model's KV cache, as the daemon and the library need it. `size` is sizeof(struct skv_model) as the
 * caller compiled it; a newer library takes the missing tail of a shorter struct as zeros. Initialise with
 * SKV_MODEL_INIT.
 */
struct skv_model {
	uint32_t size;
	uint32_t n_layers;   /* number of layers, 1 … SKV_MAX_LAYERS */
	uint32_t n_heads;    /* number of q heads; a multiple of n_kv_heads, at most SKV_MAX_HEADS */
	uint32_t n_kv_heads;
	uint32_t head_dim;   /* a multiple of 16, at most SKV_MAX_HEAD_DIM */
	uint32_t kv_dtype;   /* enum skv_dtype of the pages */
	uint32_t max_tokens; /* tokens of the longest sequence, at most SKV_MAX_TOKENS */
	float scale;         /* softmax scale; 0 means 1/sqrt(head_dim) */
	uint32_t rank;       /* this process's rank in the tensor-parallel group */
	uint32_t n_ranks;    /* number of ranks (1: no tensor parallelism); n_heads and n_kv_heads are of one rank */
	/*
	 * The model's name: 1 … SKV_NAME_MAX-1 bytes of printable ASCII without space, '/' allowed, NUL-terminated. The
	 * name identifies the model to which sequences belong.
	 */
	char name[SKV_NAME_MAX];
	uint32_t device;         /* SKV_DEVICE_HOST, or SKV_DEVICE_CUDA(i) with i below SKV_MAX_DEVICES */
	uint32_t io_dtype;       /* enum skv_dtype of the q, k, v and out rows; not SKV_FP8 */
	struct skv_rope rope;    /* RoPE, for policies that undo the rotation of keys; not sent to the daemon */
	/* absolute path of the model's directory, in which policies find profiles and codecs; "": none */
	char files[SKV_PROFILE_PATH];
	/*
	 * [n_layers] attributes of each layer, or NULL if all layers are plain. skv_open copies the array and the sinks
	 * in it. The array is not sent to the daemon. Policies read it with skv_model_window() and
	 * skv_model_kv_layer().
	 */
	const struct skv_model_layer *layers;
	/*
	 * all_reduce_max() is required if n_ranks > 1 and the policy selects by the scores of all heads, or compresses
	 * all heads together: without it skv_open refuses such a policy. NULL: none. all_reduce_max() reduces `count`
	 * fp32 numbers in the model's memory, in place: each number becomes the largest of the numbers of all ranks
	 * (for instance ncclAllReduce with ncclMax). On a device the function queues the all-reduce on `stream`, which
	 * may be capturing; on the host `stream` is NULL, and the all-reduce is done when the function returns. All
	 * ranks call the function equally often, in the same order and with the same counts, if they step with the same
	 * sequences in the same order. Returns 0, or a negative errno, which makes skv_attend() fail. Not sent to the
	 * daemon.
	 */
	int (*all_reduce_max)(void *ctx, float *data, size_t count, void *stream);
	void *all_reduce_ctx; /* first argument of all_reduce_max */
};
#define SKV_MODEL_INIT {.size = sizeof(struct skv_model), .n_ranks = 1}

/* Bytes of the rows of one page of this model: K and V, all kv heads, SKV_PAGE_TOKENS tokens, one layer. */
SKV_INLINE size_t skv_page_rows_bytes(const struct skv_model *m)
{
	return (size_t)2 * m->n_kv_heads * SKV_PAGE_TOKENS * m->head_dim * skv_dtype_bytes(m->kv_dtype);
}
/* Bytes of a whole page: the page's rows, and with SKV_FP8 the rows' scales. */
SKV_INLINE size_t skv_page_bytes(const struct skv_model *m)
{
	return skv_page_rows_bytes(m) + (size_t)2 * m->n_kv_heads * SKV_PAGE_TOKENS * skv_dtype_scale_bytes(m->kv_dtype);
}

/* Attributes of layer number `layer`, or NULL if all layers are plain. */
SKV_INLINE const struct skv_model_layer *skv_model_layer(const struct skv_model *m, uint32_t layer)
{
	return m->layers ? (const struct skv_model_layer *)((const char *)m->layers + (size_t)layer * m->layers->size) : NULL;
}

/* The sliding window of a layer, in tokens. 0: the layer has no window, or one of at least the model's max_tokens. */
SKV_INLINE uint32_t skv_model_window(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);
	return l && l->window < m->max_tokens ? l->window : 0;
}

/* Index of the layer whose K and V the layer attends to: the layer itself, unless it shares another layer's. */
SKV_INLINE uint32_t skv_model_kv_layer(const struct skv_model *m, uint32_t layer)
{
	const struct skv_model_layer *l = skv_model_layer(m, layer);
	return l && l->shares_kv ? l->shares_kv - 1 : layer;
}

/* Does this layer attend to the K and V of another layer, or another layer to the K and V of this one? */
SKV_INLINE int skv_model_kv_shared(const struct skv_model *m, uint32_t layer)
{
	for (uint32_t i = 0; m->layers && i < m->n_layers; i++)
		if (skv_model_kv_layer(m, i) != i && (i == layer || skv_model_kv_layer(m, i) == layer))
			return 1;
	return 0;
}

/* Number of pages of one layer that `tokens` tokens take. */
SKV_INLINE uint32_t skv_pages_of(uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + SKV_PAGE_TOKENS - 1) / SKV_PAGE_TOKENS);
}

/*
 * A page table entry: refers to the page that holds SKV_PAGE_TOKENS tokens of one layer. The top four bits are the
 * entry's kind, the others are the id of a page in the pool. Entries are plain integers because kernels read them.
 */
typedef uint32_t skv_pte;
#define SKV_PTE_KIND_SHIFT 28
#define SKV_PTE_ID_MASK 0x0fffffffu
enum skv_pte_kind {
	SKV_PTE_NONE = 0,    /* no page yet, because the entry is beyond the end of the sequence */
	SKV_PTE_PRIVATE = 1, /* a writable page that belongs to this sequence alone */
	SKV_PTE_SHARED = 2,  /* a read-only page that forks share */
	SKV_PTE_HOLE = 3,    /* the page was evicted: attention skips its tokens */
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

/* How a layer attends in a decode step. */
enum skv_attend_mode {
	SKV_ATTEND_DENSE = 0,  /* to every resident token */
	SKV_ATTEND_WINDOW = 1, /* to attention sinks and the most recent tokens, see struct skv_window in policy.h */
	SKV_ATTEND_PAGES = 2,  /* to selected pages */
	SKV_ATTEND_TOKENS = 3, /* to selected tokens */
};

/*
 * A budget: either a count or a share of the sequence, in the policy's granularity (pages or tokens). Exactly one of
 * `share` and `count` is nonzero. A spec writes a budget as one number: a number below 1 is a share, any other a count.
 */
struct skv_budget {
	float share;
	uint32_t count;
};

/* The budget in tokens or pages of a sequence that has `n` of them: max(floor, count or ceil(share * n)), at most n. */
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
