/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy.h - the ABI between libsparsekv-client and policy plugins.
 *
 * A policy is one C file. It is built into a shared object that exports one symbol,
 *
 *     const struct skv_policy *sparsekv_policy(void);
 *
 * and links no library. sparsekv_policy() returns a constant block: the ABI that the policy was built for, its name,
 * parameters and hooks. Hooks never touch K, V or attention scores themselves. They call primitives (struct skv_prims),
 * which every backend implements, so the same policy file runs in host memory and on a GPU. Only the backend knows the
 * length of each sequence: a policy passes budgets, and the backend computes the numbers of tokens or pages from them.
 *
 * Life of a policy in a process:
 *   dlopen → sparsekv_policy() → the spec `name:variant?key=value&…` is parsed into a config → check() →
 *   plan() once for each layer → then in each step: before(l), attention as planned and after(l) for each layer l,
 *   step_end(). adopt() is called for every sequence that another policy handled before.
 * before() and after() are called only for decode rows; rows of a prompt attend as plan.prefill says.
 *
 * Hooks run on the thread that calls the library (skv_step_begin, skv_attend, skv_step_end, or a call that adopts a
 * sequence); two hooks of one policy instance never run at the same time. Hooks must not allocate, block, or make
 * system calls. On a device, before() and after() run when a layer is captured into a graph, not when the graph is
 * replayed: before() and after() must derive the primitives that they call from the config and the layer alone.
 */
#ifndef SPARSEKV_POLICY_H
#define SPARSEKV_POLICY_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_POLICY_ABI 12u
#define SKV_POLICY_SYMBOL "sparsekv_policy"
#define SKV_POLICY_MAX_PARAMS 64u
/* maximum bytes of a summary or a help line, NUL included; the text is printable ASCII */
#define SKV_POLICY_MAX_TEXT 256u

/* ---- taxonomy: what a policy declares of itself ---------------------------------------------- */

/* Evidence is the data that the policy decides by: from POSITION (positions alone) to WEIGHTS (attention weights). */
enum skv_action { SKV_ACT_NONE, SKV_ACT_SELECT, SKV_ACT_EVICT, SKV_ACT_COMPRESS };
enum skv_granularity { SKV_GRAN_TOKEN, SKV_GRAN_PAGE };
enum skv_evidence_kind { SKV_EVID_NONE, SKV_EVID_POSITION, SKV_EVID_KEYS, SKV_EVID_QUERY, SKV_EVID_WEIGHTS };
enum skv_scope { SKV_SCOPE_REQUEST, SKV_SCOPE_STEP, SKV_SCOPE_LAYER };
enum skv_sharing { SKV_SHARE_ALL_HEADS, SKV_SHARE_KV_HEAD, SKV_SHARE_Q_HEAD };

/* ---- parameters ------------------------------------------------------------------------------ */

enum skv_param_type {
	SKV_PARAM_BUDGET = 1, /* struct skv_budget: a number below 1 is a share, a number from 1 on is a count */
	SKV_PARAM_UINT = 2,   /* uint32_t */
	SKV_PARAM_FLOAT = 3,  /* float */
	SKV_PARAM_BOOL = 4,   /* uint32_t 0 or 1; written 0, 1, false or true in a spec */
	/*
	 * struct skv_layer_set; written like 2,7,12, or auto: then the set is empty, and the policy chooses the layers
	 */
	SKV_PARAM_LAYERS = 5,
	/*
	 * uint32_t, the index of a word in `def` (for instance paper,eval,shared; characters a-z, 0-9, _, - and +); the
	 * first word is the default. In a spec, name:eval is short for name?variant=eval (the parameter "variant").
	 */
	SKV_PARAM_CHOICE = 6,
	SKV_PARAM_PROFILE = 7, /* struct skv_profile; written as the absolute path of the profile's file, or none */
	/*
	 * struct skv_codec_file, the codec of layers with SKV_COMPRESS_LATENT; written as the absolute path of the
	 * codec's file, or auto: POLICY.safetensors in the model's directory. A policy has at most one parameter of
	 * type CODEC.
	 */
	SKV_PARAM_CODEC = 8,
};

struct skv_layer_set {
	uint64_t bits[SKV_MAX_LAYERS / 64];
};
SKV_INLINE int skv_layer_in(const struct skv_layer_set *s, uint32_t layer)
{
	return layer < SKV_MAX_LAYERS && (s->bits[layer / 64] >> (layer % 64)) & 1;
}

SKV_INLINE int skv_layer_set_empty(const struct skv_layer_set *s)
{
	uint64_t any = 0;
	for (uint32_t i = 0; i < SKV_MAX_LAYERS / 64; i++)
		any |= s->bits[i];
	return !any;
}

/*
 * A model's profile: sparsekv-calibrate(1) measures it; the library reads it from a file and checks it against the
 * model's shape. If no profile is given, all fields are zero. A layer set that the file lacks is empty. A policy takes
 * a layer set from the profile only if its own parameter is auto: layers named in the spec take precedence.
 */
struct skv_profile {
	char path[SKV_PROFILE_PATH];
	struct skv_layer_set delta;   /* the dense layers of the policy DELTA, which select pages */
	struct skv_layer_set filters; /* the dense layers of OmniKV and similar policies, which select tokens */
	struct skv_layer_set anchors; /* Kascade's anchor layers */
	/*
	 * Kascade's head maps, valid for the layer set `anchors`: kv head h of a layer uses the selection that kv head
	 * map[layer][h] made in the last anchor layer at or before it. In layers before the first anchor all entries
	 * are zero. The profile's file has the maps of all ranks' heads, `map` only those of this rank.
	 */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
	/*
	 * 1 + a layer whose head map leads from a kv head of one rank to one of another, which makes all maps unusable;
	 * 0: none
	 */
	uint32_t crosses;
};

/* The file of a codec. The library loads the codec, and refuses a codec that does not fit the model. */
struct skv_codec_file {
	char path[SKV_PROFILE_PATH]; /* path of the file; "": auto */
};

/* One row of a policy's parameter table. The parameter's value is stored at `offset` of the policy's config. */
struct skv_param {
	const char *name; /* [a-z0-9_]+ */
	uint32_t type;    /* enum skv_param_type */
	uint32_t offset;  /* offsetof(struct my_config, field) */
	const char *def; /* default as written in a spec, NULL: none; of a choice: all words, the default first */
	const char *help;
};

/* ---- plan: how one layer attends ------------------------------------------------------------- */

/*
 * Modes of attention (enum skv_attend_mode). DENSE: to all resident tokens. WINDOW: see struct skv_window. PAGES,
 * TOKENS: to the pages or tokens that layer `source` selected in this step. A layer may be its own source if its plan
 * has SKV_SCORES_SKETCHES, or PAGES and SKV_SCORES_PAGE_BOUNDS. Without sketches, a layer with TOKENS that is its own
 * source scores all its keys, selects by their weights as its before() requests, and reads only the selected tokens' V.
 */

/*
 * Window attention (StreamingLLM): to tokens [0, sinks) and the last max(1, skv_budget_of(budget, n, floor) - sinks).
 */
struct skv_window {
	uint32_t sinks;
	uint32_t floor;
	struct skv_budget budget;
};

/*
 * A policy does not apply to layers with a sliding window (skv_model_window): such a layer attends to its window, the
 * library ignores the policy's plan for it and calls no before() and after(), and it cannot be a source. All other
 * layers are full layers. skv_full_layers() counts the full layers in [from, to); skv_full_layer() returns the index of
 * the i-th full layer (from 0) at or after layer `first`, or n_layers if there is none.
 */
SKV_INLINE uint32_t skv_full_layers(const struct skv_model *m, uint32_t from, uint32_t to)
{
	uint32_t n = 0;
	for (uint32_t layer = from; layer < to; layer++)
		n += !skv_model_window(m, layer);
	return n;
}
SKV_INLINE uint32_t skv_full_layer(const struct skv_model *m, uint32_t first, uint32_t i)
{
	for (; first < m->n_layers; first++)
		if (!skv_model_window(m, first) && i-- == 0)
			return first;
	return m->n_layers;
}

/*
 * Index of the i-th (from 0) of n evenly spaced full layers, the first of which is the first full layer at or after
 * layer `first`. Returns n_layers if there is no full layer.
 */
SKV_INLINE uint32_t skv_layer_spaced(const struct skv_model *m, uint32_t first, uint32_t n, uint32_t i)
{
	uint32_t full = first < m->n_layers ? skv_full_layers(m, first, m->n_layers) : 0;
	return full ? skv_full_layer(m, first, (i * full + n - 1) / n) : m->n_layers;
}

/* Is `layer` one of the n evenly spaced layers of skv_layer_spaced()? */
SKV_INLINE int skv_layer_even(const struct skv_model *m, uint32_t first, uint32_t n, uint32_t layer)
{
	for (uint32_t i = 0; i < n && layer < m->n_layers; i++)
		if (layer == skv_layer_spaced(m, first, n, i))
			return 1;
	return 0;
}

/* Kinds of attention scores that a layer makes for a selection, as the layer's plan requests. */
enum skv_score_bits {
	SKV_SCORES_TOKENS = 1u << 0, /* softmax weight of each token, reduced over heads */
	SKV_SCORES_PAGES = 1u << 1,  /* sum of the tokens' softmax weights over each page */
	/*
	 * Scores of pages: an upper bound of q·k over the page's keys (Quest). score_pages() makes these scores in
	 * before(), before the layer attends; the layer has no scores of another kind. The library stores the bounds.
	 */
	SKV_SCORES_PAGE_BOUNDS = 1u << 2,
	/*
	 * With SKV_SCORES_TOKENS, SKV_SCORES_PAGES or both: score_sketches() makes these scores in before(), before the
	 * layer attends, from the softmax weights of sketches of the keys: copies with plan.sketch_bits bits an
	 * element. The library stores the sketches.
	 */
	SKV_SCORES_SKETCHES = 1u << 3,
};
/* How the scores of all q heads that share one row of scores are reduced to one score. */
enum skv_reduce {
	SKV_REDUCE_MAX = 0,
	SKV_REDUCE_SUM = 1,
	/* SKV_SCORES_PAGE_BOUNDS: q is averaged over each GQA group; then scores are summed over kv heads */
	SKV_REDUCE_MEAN_Q = 2,
};

/*
 * An eviction plan: each kv head of the layer retains its best tokens, or its best pages, and frees the memory of the
 * rest. In this struct, n is a number of tokens or pages, as `granularity` says.
 *
 * The budget C = skv_budget_of(budget, n, floor) is the number of tokens (pages) that a decode step attends to, its new
 * token included. evict_to_budget() runs in every decode step, and evicts if at least C' + slack - 1 tokens (pages)
 * remain after the step, where C' is the C of the next step: then C' - 1 of them stay. Pages are evicted only in steps
 * that fill a page. Rows of a prompt, and the first decode step after it, attend to the whole prompt; at the end of
 * that decode step the layer shrinks to its budget.
 */
struct skv_evict {
	/* 1: tokens are evicted; SKV_PAGE_TOKENS: single kv heads' pages are evicted; 0: nothing is evicted */
	uint32_t granularity;
	uint32_t floor;
	struct skv_budget budget; /* at least 2 */
	uint32_t slack; /* at least 1: the layer evicts once it is this many tokens (pages) above its budget */
	uint32_t at_prompt_end;   /* 1: the first decode step after a prompt evicts without waiting for the slack */
	/*
	 * 1: the tokens (pages) of the sequence's prompt are never evicted, and at least one other stays. Unless
	 * `pinned` is zero, only P = skv_budget_of(pinned, n, pinned_floor) of the prompt's pages count towards the
	 * budget, and a decode step attends to the best P of them.
	 */
	uint32_t pin_prompt;
	uint32_t pinned_floor;
	struct skv_budget pinned;
	/*
	 * 1, tokens only: a token's score is the sum of the attention weights that queries give it, each weight
	 * averaged over the GQA group. accumulate_scores() adds the weights of a decode step, the library those of a
	 * prompt. With a window, only the last `window` queries before an eviction count (SnapKV's observation window);
	 * of a prompt, the last queries of each skv_attend() call count.
	 */
	uint32_t accumulate;
	uint32_t window; /* number of queries of the observation window; 0: all queries count */
	/*
	 * Tokens only, with `accumulate`. If at least 1, kv heads share the budget (Ada-KV): the budget is the mean
	 * over the heads, and one head has at most max_head_ratio times the mean. A page holds all kv heads, so each
	 * head has slots for that maximum: tokens beyond a head's own share stay inactive in their slots, neither
	 * attended to nor scored, until a prompt is appended or the policy changes.
	 */
	float max_head_ratio;
};

/*
 * KV cache compression of a layer: blocks of tokens older than the residual window are stored in a smaller form, from
 * which K and V are reconstructed approximately. The sequence's length alone determines which tokens are compressed. A
 * layer that compresses evicts nothing (plan.evict is zero).
 */
enum skv_compress_kind {
	SKV_COMPRESS_NONE = 0,
	/*
	 * Latent: a codec encodes the difference between a token and the mean of its nearest reference tokens
	 * (DeltaKV), or the token itself (Palu). The layer is DENSE, or attends to TOKENS of an earlier layer that
	 * selects for all heads at once; the layer makes no scores.
	 */
	SKV_COMPRESS_LATENT = 1,
	/*
	 * KV quantization to 4 or 2 bits, without a codec (KIVI): K per channel in blocks of 32 tokens, V per token in
	 * scale blocks. The layer is DENSE, with any scores but page bounds, and without references and sinks.
	 */
	SKV_COMPRESS_QUANT = 2,
};
struct skv_compress {
	uint32_t kind;        /* enum skv_compress_kind */
	/* bits of each element of a code: 16, 8, 4; 0: no codes, a token is stored as the mean of its references */
	uint32_t bits;
	/* number of elements that share a scale: 32 or 64; QUANT: elements of V, a divisor of head_dim */
	uint32_t scale_block;
	uint32_t stride;      /* every stride-th token is a reference token; at most 255; 0: no references */
	uint32_t n_refs;      /* number of references of a token, at most 4; 0 if there are no references */
	uint32_t ref_bits;    /* bits of an element of a reference: 16, 8 or 4; 0 if there are no references */
	uint32_t sinks;       /* number of first tokens that stay uncompressed, up to 240, rounded up to whole pages */
	uint32_t residual;    /* minimum number of last tokens that stay uncompressed: the residual window */
	/* number of tokens that are compressed at once: a multiple of the page; QUANT: a multiple of 32 */
	uint32_t block;
};

/*
 * How rows of a prompt attend. Row p is the row of the token at position p; P is the position where the current prompt
 * began: where the sequence last decoded, was forked or was truncated. Rows form tiles by position, [i tile, (i + 1)
 * tile). Beside its neighbourhood, a tile attends to tokens that its first row, the representative row, selects. That
 * row is begin(p, tile), where begin(p, x) = max(P, p - p % x), so splitting a prompt into chunks changes no result.
 *
 *   STREAMING   row p attends to tokens t < sinks and t > p - window.
 *   HIP         tiles of 64 rows attend to tokens t < sinks, to t >= p - p % 64 - window, and for each q head to tokens
 *               between these that row begin(p, 64) selects in three stages: the best chunks of 64 tokens, keep[0]
 *               tokens in all; of these the best chunks of 32, keep[1] tokens; of these the best chunks of 8, keep[2]
 *               tokens. A chunk's score is the score of its representative token, which bisection finds: of two halves,
 *               take the one whose first token scores higher, until one token is left. (Lee et al., InfiniteHiP.)
 *   MINFERENCE  segments of `segment` tokens, whose first SKV_MINFERENCE_ROWS rows are dense. For each q head, the
 *               softmax weights of these rows choose the heaviest `vertical` tokens, always with the first
 *               SKV_MINFERENCE_FORCED, and the heaviest `slash` distances, always with the SKV_MINFERENCE_FORCED
 *               smallest. The segment's other rows attend, in tiles of 64, to the chosen tokens and to each block of 64
 *               tokens that a chosen distance touches. (Jiang et al., MInference 1.0.)
 *   KASCADE     tiles of 128 rows of a GQA group (skv_kascade_tile() tokens) attend to themselves, and for each kv head
 *               to the best skv_budget_of(top, tile's start, top_floor) of the tokens before the tile, by the softmax
 *               weights of row begin(p, tile) in layer `source`, summed over the group. (Kascade, 3.4.)
 *
 * With a correction, the rows begin(p, gamma) are dense, and so are the last s % gamma + tail rows of a prompt that
 * ends at position s. DELTA adds to each other row the difference, dense - sparse, of the last dense row before it, or
 * of the MINFERENCE segment's last dense row if that is later (Delta Attention, Eq. 6). RECOMPUTE adds nothing (Eq. 5).
 */
enum skv_prefill_how {
	SKV_PREFILL_DENSE = 0,
	SKV_PREFILL_STREAMING = 1,
	SKV_PREFILL_HIP = 2,
	SKV_PREFILL_MINFERENCE = 3,
	SKV_PREFILL_KASCADE = 4,
};
enum skv_correction { SKV_CORRECT_NONE = 0, SKV_CORRECT_DELTA = 1, SKV_CORRECT_RECOMPUTE = 2 };

#define SKV_MINFERENCE_ROWS 64u
#define SKV_MINFERENCE_FORCED 30u
#define SKV_HIP_STAGES 3u

struct skv_prefill {
	uint32_t how;        /* enum skv_prefill_how */
	uint32_t correct;    /* enum skv_correction; NONE if `how` is DENSE */
	uint32_t gamma;      /* with a correction: one row in every gamma is dense; a power of two from 2 to 4,096 */
	uint32_t tail;       /* with a correction: number of dense rows at a prompt's end, at least gamma */
	uint32_t sinks;      /* STREAMING, HIP: number of attention sinks; with HIP a multiple of 64, as is window */
	uint32_t window;     /* STREAMING, HIP: tokens of the window; at least 1 with STREAMING */
	/* HIP: tokens kept by each stage; multiples of 64, 32, 8, none above the one before */
	uint32_t keep[SKV_HIP_STAGES];
	uint32_t segment;    /* MINFERENCE: tokens of a segment; a power of two, at least 128 */
	uint32_t vertical, slash; /* MINFERENCE: at least SKV_MINFERENCE_FORCED */
	struct skv_budget top; /* KASCADE: budget of selected tokens */
	uint32_t top_floor;
	uint32_t source;     /* KASCADE: this layer, or the last layer before it that is its own source */
	/* 1: the layer, its own source, attends densely and selects only for later layers, as layer 0 in the paper */
	uint32_t dense;
	/* 1, if `source` is an earlier layer: kv head h uses the tokens of that layer's kv head map[h] */
	uint32_t mapped;
	uint8_t map[SKV_MAX_HEADS];
};

/* Number of tokens of a Kascade tile, which has 128 rows of a GQA group; a power of two, at least 16. */
SKV_INLINE uint32_t skv_kascade_tile(uint32_t group)
{
	uint32_t tile = 128;

	while (tile > 16 && tile * group > 128)
		tile /= 2;
	return tile;
}

struct skv_plan {
	uint32_t size;     /* set by the library */
	uint32_t attend;   /* enum skv_attend_mode */
	uint32_t source;   /* PAGES, TOKENS: index of the layer that selects, an earlier layer or this one */
	uint32_t scores; /* bits of enum skv_score_bits; softmax weights need a layer that is dense or its own source */
	uint32_t reduce;   /* enum skv_reduce: how scores of the heads that share one row of scores are reduced */
	/* enum skv_sharing: one row of scores, and one selection, for each sequence, kv head or q head */
	uint32_t sharing;
	uint32_t sketch_bits; /* SKV_SCORES_SKETCHES: bits of an element, 1 to 4; head_dim must be a multiple of 32 */
	/*
	 * 2, of a layer with TOKENS that selects by its own sketches, for all heads or each kv head: the layer attends
	 * to the other tokens, too, by the sketches of their keys and by values with so many bits an element; 0: it
	 * attends to what it selects alone
	 */
	uint32_t value_bits;
	struct skv_window window;
	/* 1, with an earlier `source` that selects for each kv head: kv head h uses selection number map[h] */
	uint32_t mapped;
	uint8_t map[SKV_MAX_HEADS];
	/*
	 * A layer that evicts tokens is DENSE; with evict.accumulate its scores are SKV_SCORES_TOKENS, SKV_REDUCE_SUM,
	 * SKV_SHARE_KV_HEAD, else it has none. With evict.max_head_ratio a layer has TOKENS, is its own source and has
	 * no scores: it attends to its active tokens. A layer that evicts pages has PAGES, is its own source and has
	 * SKV_SCORES_PAGE_BOUNDS, SKV_SHARE_Q_HEAD. A layer that evicts is no other layer's source.
	 */
	struct skv_evict evict;
	struct skv_compress compress;
	struct skv_prefill prefill;
};

/* ---- primitives ------------------------------------------------------------------------------ */

struct skv_policy_ctx;

/*
 * Top-k by a layer's scores: one selection for each row of scores (see skv_plan.sharing), out of the sequence's n
 * tokens or pages, the current one included.
 *   K = skv_budget_of(budget, n, floor); R = min(K, max(recent_floor, recent or K/8 when zero)), or 0 with no_recent
 * A selection has the last R tokens (pages), the first `pin` in addition to the budget, and the best K - R of the rest.
 * With pin_counts, pinned tokens count towards the budget: the first min(pin, K - R) are selected, and the best of the
 * rest up to K. Of equal scores the one with the lower index is selected. Evicted tokens and pages are never selected.
 */
struct skv_select {
	uint32_t layer; /* index of the layer whose scores are used, and under which the selection is stored */
	struct skv_budget budget;
	uint32_t floor;
	uint32_t recent;
	uint32_t recent_floor;
	uint32_t pin;
	uint32_t pin_counts;
	uint32_t no_recent;
	/* with SKV_SHARE_Q_HEAD: one selection for each kv head, the union of the K that each of its q heads selects */
	uint32_t unite;
};

/*
 * What each kv head retains: the latest tokens, then pinned ones, then the best by score (of equal ones the earlier).
 */
struct skv_evict_to_budget {
	uint32_t layer;
	/* budget of latest tokens (pages) that stay, out of the next step's tokens with its new one; zero: none */
	struct skv_budget recent;
	/* tokens; odd, at most 63. Above 1: the mean score of this many positions replaces the score at their middle */
	uint32_t smooth;
	/*
	 * Tokens only. Above 0: lambda * importance - (1 - lambda) * redundancy replaces the score (R-KV). Importance
	 * is the token's share of the sum of the head's scores; redundancy is the softmax, over the head's tokens, of
	 * the mean cosine similarity of a token's key to the keys of all these tokens.
	 */
	float lambda;
	uint32_t evict_older;  /* 1: of two tokens with equal scores the earlier one is evicted */
	uint32_t reset_scores; /* 1: after an eviction the scores of the retained tokens become 0 */
	/*
	 * If heads share a budget: in each head the latest and best tokens stay active up to this share of the mean
	 * budget; the rest of the budget goes to the best tokens of all heads (AdaKV's safeguard).
	 */
	float safeguard;
};

/*
 * A page's weight is the softmax of the page's score over all resident pages, averaged over the GQA group. A page that
 * matters is touched: its score becomes the sequence's length, so pages are evicted by the time of their last touch
 * (RaaS).
 */
struct skv_touch_pages {
	uint32_t layer;
	float scale; /* factor of the scores in the softmax; 0: the model's softmax scale */
	float alpha; /* a page matters if its weight is above alpha */
	float ratio; /* if above 0: the pages that matter are instead the best pages, this share of all pages */
};

/*
 * Functions that the library passes to hooks. Each function works on all sequences of the context at once, and returns
 * nothing (except seq_state). To call a function that does not fit the plan (with scores that the plan does not
 * request, or a layer out of range) is a bug of the policy: `sparsekvctl policy load` reports it when the probe runs
 * the hooks, and skv_step_end() fails with -ENOTRECOVERABLE.
 */
struct skv_prims {
	uint32_t size;
	/*
	 * Select pages by SKV_SCORES_PAGES or page bounds, or tokens by SKV_SCORES_TOKENS. Called in after() of the
	 * layer or in before() of a later layer; if the layer is its own source, only in its before().
	 */
	void (*select_pages)(const struct skv_policy_ctx *, const struct skv_select *);
	void (*select_tokens)(const struct skv_policy_ctx *, const struct skv_select *);
	/*
	 * Like select_tokens, for a layer with SKV_SHARE_Q_HEAD, but selects one set of tokens for all heads: the best
	 * K - R tokens are the first ones when the heads' rankings are interleaved (every head's best token, then every
	 * head's second, and so on), each token once (LessIsMore).
	 */
	void (*select_union)(const struct skv_policy_ctx *, const struct skv_select *);
	/*
	 * Called in step_end(): evict the pages of `layer` that are wholly outside the window of the NEXT step. Nothing
	 * is evicted if the layer has a sliding window in the model, or shares K and V with another layer.
	 */
	void (*evict_outside)(const struct skv_policy_ctx *, uint32_t layer, const struct skv_window *);
	/*
	 * Called in adopt() and step_end(): get the state of sequence i, seq_state_bytes bytes, zero at first adoption.
	 */
	void *(*seq_state)(const struct skv_policy_ctx *, uint32_t i);
	/*
	 * Called in before() of a layer with SKV_SCORES_PAGE_BOUNDS: score the layer's pages, Σ_d max(q_d kmin_d, q_d
	 * kmax_d) for each q head (kmin, kmax: element-wise minimum and maximum of the page's keys), reduced as the
	 * plan says (Quest). select_pages() may follow at once.
	 */
	void (*score_pages)(const struct skv_policy_ctx *, uint32_t layer);
	/*
	 * Called in before() of a layer with SKV_SCORES_SKETCHES: make the layer's scores; select_...() may be called
	 * directly afterwards. With more than 512 tokens a sample gives the softmax denominators.
	 */
	void (*score_sketches)(const struct skv_policy_ctx *, uint32_t layer);
	/* In after() of a layer with plan.evict.accumulate: add the step's attention weights, if its query counts. */
	void (*accumulate_scores)(const struct skv_policy_ctx *, uint32_t layer);
	/* Called last in after() of a layer with plan.evict: evict if the plan says that it is time. */
	void (*evict_to_budget)(const struct skv_policy_ctx *, const struct skv_evict_to_budget *);
	/*
	 * In before() of a layer that evicts pages, after score_pages(): touch pages that matter, list pages to attend
	 * to.
	 */
	void (*touch_pages)(const struct skv_policy_ctx *, const struct skv_touch_pages *);
};

struct skv_policy_ctx {
	uint32_t size;
	uint32_t n_seqs; /* number of sequences of this call: those of the step that run this policy with this config */
	const struct skv_prims *prims;
	const struct skv_model *model;
	const void *config; /* the policy's config struct, filled from the spec */
	void *library;      /* the library's data; policies do not use it */
};

/* ---- the block ------------------------------------------------------------------------------- */

struct skv_policy {
	/* The sizes are first: the loader compares them one by one, and its error text names the size that differs. */
	uint32_t size;        /* sizeof(struct skv_policy) */
	uint32_t abi;         /* SKV_POLICY_ABI */
	uint32_t page_tokens; /* SKV_PAGE_TOKENS */
	uint32_t param_size;  /* sizeof(struct skv_param) */
	uint32_t plan_size;   /* sizeof(struct skv_plan) */
	uint32_t prims_size;  /* sizeof(struct skv_prims): the primitives that the policy may call */

	const char *name;    /* [a-z0-9_-]+, shorter than SKV_NAME_MAX; a spec begins with it */
	const char *version;
	const char *summary; /* one line that describes the policy and names its paper */

	uint32_t action, granularity, evidence, scope, sharing; /* the taxonomy: an enum value for each */

	const struct skv_param *params;
	uint32_t n_params;
	uint32_t config_size;
	/* bytes of policy state of each sequence, in the daemon's memory: the state outlives the engine */
	uint32_t seq_state_bytes;
	uint32_t state_version;   /* changes whenever the layout of the policy state changes */

	/* Every hook except plan may be NULL. */

	/* check(): is the config valid for this model? Returns 0, or -1 with a text that names the parameter. */
	int (*check)(const void *config, const struct skv_model *, char *err, size_t err_len);
	/*
	 * plan(): how does `layer` attend? `plan` is zeroed (dense) before the call. The plan is constant for the life
	 * of the policy instance. Plans of layers with a sliding window are ignored.
	 */
	void (*plan)(const void *config, const struct skv_model *, uint32_t layer, struct skv_plan *plan);
	void (*before)(const struct skv_policy_ctx *, uint32_t layer);
	void (*after)(const struct skv_policy_ctx *, uint32_t layer);
	/* step_end(): runs for the sequences that decoded in this step. */
	void (*step_end)(const struct skv_policy_ctx *);
	/*
	 * adopt(): take over sequences that another policy left, maybe with evicted pages (holes). 0, or -1 and a text.
	 */
	int (*adopt)(const struct skv_policy_ctx *, char *err, size_t err_len);
};

/* Sets the sizes of struct skv_policy; write it as the first initialiser of the block. */
#define SKV_POLICY_HEADER                                                                                   \
	.size = sizeof(struct skv_policy), .abi = SKV_POLICY_ABI, .page_tokens = SKV_PAGE_TOKENS,           \
	.param_size = sizeof(struct skv_param), .plan_size = sizeof(struct skv_plan),                       \
	.prims_size = sizeof(struct skv_prims)

#define SKV_POLICY_EXPORT __attribute__((visibility("default")))
SKV_POLICY_EXPORT const struct skv_policy *sparsekv_policy(void);

/*
 * Defines a plugin's block and the symbol that it exports. CONFIG is the type of the policy's config, PARAMS its
 * parameter table; the remaining arguments initialise fields of struct skv_policy.
 */
#define SKV_POLICY_DEFINE(NAME, CONFIG, PARAMS, ...)                                                        \
	static const struct skv_policy skv_policy_block = {                                                 \
	        SKV_POLICY_HEADER,                                                                          \
	        .name = NAME,                                                                               \
	        .version = "1",                                                                             \
	        .params = PARAMS,                                                                           \
	        .n_params = sizeof(PARAMS) / sizeof((PARAMS)[0]),                                           \
	        .config_size = sizeof(CONFIG),                                                              \
	        __VA_ARGS__};                                                                               \
	const struct skv_policy *sparsekv_policy(void)                                                      \
	{                                                                                                   \
		return &skv_policy_block;                                                                   \
	}

/* Initialises the five fields of the taxonomy, in the order of struct skv_policy. */
#define SKV_TAXONOMY(ACTION, GRANULARITY, EVIDENCE, SCOPE, SHARING)                                         \
	.action = ACTION, .granularity = GRANULARITY, .evidence = EVIDENCE, .scope = SCOPE, .sharing = SHARING

/* Code that policies of one kind share: parameters, their check, the plan. A policy uses the parts that it needs. */
#include <sparsekv/policy-prefill.h>
#include <sparsekv/policy-evict.h>
#include <sparsekv/policy-select.h>
#include <sparsekv/policy-compress.h>

#ifdef __cplusplus
}
#endif

#endif
