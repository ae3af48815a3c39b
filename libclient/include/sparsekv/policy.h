/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy.h - the ABI between libsparsekv-client and policy plugins.
 *
 * A policy is one C file, built into one shared object that exports one symbol,
 *
 *     const struct skv_policy *sparsekv_policy(void);
 *
 * and links nothing. The function returns a constant block: the ABI that the policy was built for, its name, parameters
 * and hooks. Hooks never touch K, V or attention scores themselves. They call primitives (struct skv_prims), which
 * every backend implements, so the same file runs in host memory and on a GPU. Lengths differ per sequence and are
 * known to the backend alone: a policy passes budgets, and the backend resolves them.
 *
 * Life of a policy in a process:
 *   dlopen → sparsekv_policy() → the spec `name:variant?key=value&…` is parsed into a config → check() →
 *   plan() once a layer → then, a step: before(l), attention as planned, after(l) for each layer,
 *   step_end(). adopt() is called for every sequence that another policy handled before.
 * before() and after() are called for decode rows alone; rows of a prompt attend as plan.prefill says.
 *
 * Hooks run on the thread that calls the library (skv_step_begin, skv_attend, skv_step_end, or a call that adopts a
 * sequence); one instance is never entered twice at a time. Hooks must not allocate, block, or make system calls. On a
 * device before() and after() run when a layer is captured into a graph, not when it is replayed: the primitives that
 * they call must follow from the config and the layer alone.
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

#define SKV_POLICY_ABI 11u
#define SKV_POLICY_SYMBOL "sparsekv_policy"
#define SKV_POLICY_MAX_PARAMS 64u
#define SKV_POLICY_MAX_TEXT 256u /* bytes of a summary or a help line, NUL included; printable ASCII */

/* ---- taxonomy: what a policy declares of itself ---------------------------------------------- */

/* Evidence: what the policy decides by, from nothing but positions to the attention weights themselves. */
enum skv_action { SKV_ACT_NONE, SKV_ACT_SELECT, SKV_ACT_EVICT, SKV_ACT_COMPRESS };
enum skv_granularity { SKV_GRAN_TOKEN, SKV_GRAN_PAGE };
enum skv_evidence_kind { SKV_EVID_NONE, SKV_EVID_POSITION, SKV_EVID_KEYS, SKV_EVID_QUERY, SKV_EVID_WEIGHTS };
enum skv_scope { SKV_SCOPE_REQUEST, SKV_SCOPE_STEP, SKV_SCOPE_LAYER };
enum skv_sharing { SKV_SHARE_ALL_HEADS, SKV_SHARE_KV_HEAD, SKV_SHARE_Q_HEAD };

/* ---- parameters ------------------------------------------------------------------------------ */

enum skv_param_type {
	SKV_PARAM_BUDGET = 1, /* struct skv_budget: 0 < x < 1 a share, x >= 1 a count */
	SKV_PARAM_UINT = 2,   /* uint32_t */
	SKV_PARAM_FLOAT = 3,  /* float */
	SKV_PARAM_BOOL = 4,   /* uint32_t 0 or 1; written 0, 1, true, false */
	/* struct skv_layer_set; written 2,7,12, or auto: the set is empty, and the policy chooses */
	SKV_PARAM_LAYERS = 5,
	/*
	 * uint32_t, the index of a word in `def` (for instance paper,eval,shared; characters a-z, 0-9, _, - and +); the
	 * first word is the default. If the parameter is called "variant", name:eval is short for name?variant=eval.
	 */
	SKV_PARAM_CHOICE = 6,
	SKV_PARAM_PROFILE = 7, /* struct skv_profile; written as the absolute path of its file, or none */
	/*
	 * struct skv_codec_file, the codec of layers with SKV_COMPRESS_LATENT; written as the absolute path of its
	 * file, or auto: NAME.safetensors in the model's directory, where NAME is the policy's. A policy has at most
	 * one such parameter.
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
 * A model's profile: measured by sparsekv-calibrate(1), read from a file and checked against the model's shape. Without
 * a file all fields are zero. A set that the file lacks is empty. A policy takes a set from here if its own parameter
 * is auto: layers named in the spec take precedence.
 */
struct skv_profile {
	char path[SKV_PROFILE_PATH];
	struct skv_layer_set delta;   /* DELTA's dense layers, which select pages */
	struct skv_layer_set filters; /* dense layers that select tokens, for OmniKV and similar policies */
	struct skv_layer_set anchors; /* Kascade's anchor layers */
	/*
	 * Kascade's head maps, valid for these anchors: kv head h of a layer uses the selection of kv head
	 * map[layer][h] of the last anchor at or before it. All zero in layers before the first anchor. The file's maps
	 * cover all ranks' heads; these cover the rank's own.
	 */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
	/* 1 + a layer whose head map leads from one rank's kv heads to another's: the maps cannot be used; 0: none */
	uint32_t crosses;
};

/* The file of a codec. The library loads it, and refuses one that does not fit the model. */
struct skv_codec_file {
	char path[SKV_PROFILE_PATH]; /* "": auto */
};

/* One row of the parameter table. The value is stored at `offset` of the policy's config. */
struct skv_param {
	const char *name; /* [a-z0-9_]+ */
	uint32_t type;    /* enum skv_param_type */
	uint32_t offset;  /* offsetof(struct my_config, field) */
	const char *def; /* default as written in a spec, NULL: must be given; of a choice all words */
	const char *help;
};

/* ---- plan: how one layer attends ------------------------------------------------------------- */

/*
 * Modes of attention (enum skv_attend_mode): DENSE; WINDOW, see skv_window; PAGES and TOKENS, those that layer `source`
 * selected in this step. A layer may be its own source if it has SKV_SCORES_SKETCHES; one with PAGES, if it has
 * SKV_SCORES_PAGE_BOUNDS. Without these, a layer with TOKENS that is its own source scores all of its keys, selects by
 * their weights as its before() requests, and reads only the selected tokens' values.
 */

/*
 * Attends to tokens [0, sinks) and the last W - sinks, at least 1; W = skv_budget_of(budget, n, floor).
 * (StreamingLLM.)
 */
struct skv_window {
	uint32_t sinks;
	uint32_t floor;
	struct skv_budget budget;
};

/*
 * Layers with a sliding window (skv_model_window) are not a policy's: the library attends to their window, drops the
 * plan that the policy makes for them, and calls no before() and after(). They cannot be a source. The others are full
 * layers. skv_full_layers() counts the full layers in [from, to); skv_full_layer() returns full layer number i from
 * `first` on, or n_layers if there are fewer.
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
 * Number i of n evenly spaced full layers, the first of which is the first full layer from `first` on; n_layers: none.
 */
SKV_INLINE uint32_t skv_layer_spaced(const struct skv_model *m, uint32_t first, uint32_t n, uint32_t i)
{
	uint32_t full = first < m->n_layers ? skv_full_layers(m, first, m->n_layers) : 0;
	return full ? skv_full_layer(m, first, (i * full + n - 1) / n) : m->n_layers;
}

/* Is `layer` one of these n layers? */
SKV_INLINE int skv_layer_even(const struct skv_model *m, uint32_t first, uint32_t n, uint32_t layer)
{
	for (uint32_t i = 0; i < n && layer < m->n_layers; i++)
		if (layer == skv_layer_spaced(m, first, n, i))
			return 1;
	return 0;
}

/* Attention scores that a layer makes for selection, as its plan requests. */
enum skv_score_bits {
	SKV_SCORES_TOKENS = 1u << 0, /* softmax weight of each token, reduced over heads */
	SKV_SCORES_PAGES = 1u << 1,  /* sum of these over each page */
	/*
	 * Scores of pages: an upper bound of q·k over the keys of the page (Quest). score_pages() makes them in
	 * before(), so they exist before the layer attends; the layer has no other scores then. The library keeps the
	 * bounds.
	 */
	SKV_SCORES_PAGE_BOUNDS = 1u << 2,
	/*
	 * With SKV_SCORES_TOKENS, SKV_SCORES_PAGES or both: score_sketches() makes these scores in before(), from the
	 * softmax weights of sketches of the keys, which are copies in plan.sketch_bits bits an element. Like scores by
	 * page bounds they exist before the layer attends. The library keeps the sketches.
	 */
	SKV_SCORES_SKETCHES = 1u << 3,
};
/* How the scores of the q heads that share a row of scores are reduced to one. */
enum skv_reduce {
	SKV_REDUCE_MAX = 0,
	SKV_REDUCE_SUM = 1,
	SKV_REDUCE_MEAN_Q = 2, /* SKV_SCORES_PAGE_BOUNDS: the mean of q over each GQA group; then the sum over kv heads */
};

/*
 * An eviction plan: each kv head of the layer retains the best of its tokens, or of its pages, and frees the memory of
 * the rest. n below counts tokens or pages, as `granularity` says.
 *
 * The budget is what a decode step attends to, its new token included: C = skv_budget_of(budget, n, floor).
 * evict_to_budget() runs in every step. It evicts in steps that leave at least C' + slack - 1, where C' is the C of the
 * next step: then C' - 1 stay. With pages these are the steps that fill a page. A prompt is attended to as a whole,
 * also by the first decode step after it, at whose end the layer shrinks to its budget.
 */
struct skv_evict {
	uint32_t granularity; /* 1: tokens are evicted; SKV_PAGE_TOKENS: pages of a kv head; 0: nothing is evicted */
	uint32_t floor;
	struct skv_budget budget; /* at least 2 */
	uint32_t slack;           /* at least 1: how far above the budget eviction runs */
	uint32_t at_prompt_end;   /* the first decode step after a prompt evicts without waiting for the slack */
	/*
	 * The sequence's prompt is never evicted, and at least one more token (page) stays. Unless `pinned` is zero,
	 * the budget counts at most skv_budget_of(pinned, n, pinned_floor) of the prompt, and as many of its pages, the
	 * best ones, are attended to.
	 */
	uint32_t pin_prompt;
	uint32_t pinned_floor;
	struct skv_budget pinned;
	/*
	 * Tokens only: their score is accumulated, as the sum of the attention weights that queries give them, each
	 * weight the mean over the GQA group. accumulate_scores() adds those of a decode step, the library those of a
	 * prompt. With a window only the last `window` queries before an eviction count (SnapKV's observation window);
	 * of a prompt the last ones of each call count.
	 */
	uint32_t accumulate;
	uint32_t window; /* 0: all queries */
	/*
	 * Tokens only, with `accumulate`. If at least 1, heads share the budget, which is their mean (Ada-KV), and a
	 * head has at most max_head_ratio times the mean. A page holds all heads, so there is memory for that many
	 * tokens of each: a head's tokens beyond its share stay inactive in their slots, neither attended to nor
	 * scored, until a prompt or another policy comes.
	 */
	float max_head_ratio;
};

/*
 * KV cache compression of a layer: tokens older than the residual window are stored in a smaller form, in blocks, from
 * which nearly the same K and V are computed. Which tokens are compressed follows from the sequence's length alone. The
 * layer evicts nothing (plan.evict is zero).
 */
enum skv_compress_kind {
	SKV_COMPRESS_NONE = 0,
	/*
	 * Latent: a codec's code of the difference between the token and the mean of its nearest references (DeltaKV),
	 * or of the token itself (Palu). The layer is DENSE, or attends to TOKENS of an earlier layer that selects for
	 * all heads at once, and makes no scores.
	 */
	SKV_COMPRESS_LATENT = 1,
	/*
	 * KV quantization to 4 or 2 bits, without a codec (KIVI): K per channel in blocks of 32 tokens, V per token in
	 * scale blocks. The layer is DENSE, with any scores but page bounds. It has neither references nor sinks.
	 */
	SKV_COMPRESS_QUANT = 2,
};
struct skv_compress {
	uint32_t kind;        /* enum skv_compress_kind */
	uint32_t bits;        /* of each element of a code: 16, 8, 4, or 0: no code, a token is the mean of its references */
	uint32_t scale_block; /* elements that share a scale: 32 or 64; QUANT: elements of V, a divisor of head_dim */
	uint32_t stride;      /* every stride-th token is a reference; at most 255; 0: no references */
	uint32_t n_refs;      /* references of a token, at most 4; 0 without references */
	uint32_t ref_bits;    /* of an element of a reference: 16, 8 or 4; 0 without references */
	uint32_t sinks;       /* so many first tokens, up to 240, stay uncompressed, rounded up to whole pages */
	uint32_t residual;    /* at least so many last tokens stay uncompressed: the residual window */
	uint32_t block;       /* tokens compressed at once: whole pages; QUANT: a multiple of 32 */
};

/*
 * How rows of a prompt attend. A row is at its token's position p; P is the position where its prompt began, which is
 * where the sequence last decoded, was forked or was truncated. Rows form tiles of the sequence's positions, [i tile,
 * (i + 1) tile). What a tile attends to beside its neighbourhood follows from its representative row, the first one,
 * which is begin(p, tile), with begin(p, x) = max(P, p - p % x): so chunking a prompt changes no result.
 *
 *   STREAMING   row p attends to t < sinks and t > p - window.
 *   HIP         tiles of 64: t < sinks, t >= p - p % 64 - window, and of the tokens between, for each q head, those
 *               that the row begin(p, 64) selects in three stages: the best chunks of 64 tokens, keep[0] tokens in all;
 *               of these the best chunks of 32, keep[1] tokens; of these the best chunks of 8, keep[2] tokens. The
 *               score of a chunk is that of its representative token, found by bisection: of two halves the one whose
 *               first token scores higher, down to one token. (Lee et al., InfiniteHiP.)
 *   MINFERENCE  segments of `segment` tokens, whose first SKV_MINFERENCE_ROWS rows are dense. The softmax weights of
 *               these rows choose, for each q head, the heaviest `vertical` tokens (always with the first
 *               SKV_MINFERENCE_FORCED) and the heaviest `slash` distances (likewise). The segment's other rows attend,
 *               in tiles of 64, to the blocks of 64 tokens that a chosen distance touches, and to the chosen tokens.
 *               (Jiang et al., MInference 1.0.)
 *   KASCADE     tiles of 128 rows of a GQA group (skv_kascade_tile() tokens): the tile itself, and of the tokens before
 *               it the best skv_budget_of(top, tile's start, top_floor) of each kv head by the softmax weights of
 *               the row begin(p, tile) in layer `source`, summed over the group. (Kascade, 3.4.)
 *
 * With a correction the rows begin(p, gamma) are dense, and so are the prompt's last s % gamma + tail rows, where s is
 * its end. DELTA adds to each other row the difference, dense - sparse, of the last such row before it (Delta
 * Attention, Eq. 6); with MINFERENCE, of the segment's last dense row if that is later. RECOMPUTE adds nothing (Eq. 5).
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
	uint32_t correct;    /* enum skv_correction; with DENSE: NONE */
	uint32_t gamma;      /* rows; a power of two from 2 to 4,096 */
	uint32_t tail;       /* rows, at least gamma */
	uint32_t sinks;      /* STREAMING, HIP; with HIP multiples of 64, both */
	uint32_t window;     /* STREAMING: at least 1 */
	uint32_t keep[SKV_HIP_STAGES]; /* tokens: multiples of 64, 32, 8, none above the one before */
	uint32_t segment;    /* tokens: a power of two, at least 128 */
	uint32_t vertical, slash; /* at least SKV_MINFERENCE_FORCED */
	struct skv_budget top; /* KASCADE: tokens */
	uint32_t top_floor;
	uint32_t source;     /* KASCADE: this layer, or the last one before it that is its own source */
	/* its own source: it attends densely and selects for later layers only, as layer 0 in the paper */
	uint32_t dense;
	uint32_t mapped;     /* of an earlier layer: kv head h uses the tokens of that layer's kv head map[h] */
	uint8_t map[SKV_MAX_HEADS];
};

/* Tokens of a Kascade tile: 128 rows of a GQA group; a power of two, at least 16. */
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
	uint32_t source;   /* PAGES, TOKENS: the layer that selects, an earlier one or this one */
	uint32_t scores;   /* set of skv_score_bits; softmax weights need a layer that is dense, or its own source */
	uint32_t reduce;   /* enum skv_reduce: over the heads that share one row of scores */
	uint32_t sharing;  /* enum skv_sharing: one row of scores, and one selection, per sequence, kv head or q head */
	uint32_t sketch_bits; /* SKV_SCORES_SKETCHES: 1 to 4; head_dim is a multiple of 32 */
	struct skv_window window;
	/* PAGES, TOKENS of an earlier layer that shares by kv head: if `mapped`, kv head h uses its row map[h]. */
	uint32_t mapped;
	uint8_t map[SKV_MAX_HEADS];
	/*
	 * A layer that evicts tokens is DENSE; with evict.accumulate its scores are SKV_SCORES_TOKENS, SKV_REDUCE_SUM,
	 * SKV_SHARE_KV_HEAD, else it has none. With evict.max_head_ratio it attends to TOKENS, is its own source and
	 * has no scores: it attends to the active tokens. A layer that evicts pages attends to PAGES of its own, by
	 * SKV_SCORES_PAGE_BOUNDS, SKV_SHARE_Q_HEAD. A layer that evicts is no other layer's source.
	 */
	struct skv_evict evict;
	struct skv_compress compress;
	struct skv_prefill prefill;
};

/* ---- primitives ------------------------------------------------------------------------------ */

struct skv_policy_ctx;

/*
 * Top-k of a layer's scores, one selection for each row of scores (see skv_plan.sharing), out of the sequence's n
 * tokens or pages, the current one included.
 *   K = skv_budget_of(budget, n, floor); R = min(K, max(recent_floor, recent or K/8 when zero)), or 0 with no_recent
 * Selected are the last R, the first `pin` (in addition to the budget), and the best K - R of the rest. With pin_counts
 * the budget includes the pinned ones: the first min(pin, K - R) are selected, and the best of the rest up to K. Ties
 * go to the lower index. Evicted tokens and pages are never selected.
 */
struct skv_select {
	uint32_t layer; /* by whose scores; the selection is stored under the same number */
	struct skv_budget budget;
	uint32_t floor;
	uint32_t recent;
	uint32_t recent_floor;
	uint32_t pin;
	uint32_t pin_counts;
	uint32_t no_recent;
	/* with SKV_SHARE_Q_HEAD: one selection per kv head, of all that any of its q heads selects, K each */
	uint32_t unite;
};

/* What each kv head retains: the latest, then the pinned, then the best by score. Ties go to the earlier one. */
struct skv_evict_to_budget {
	uint32_t layer;
	struct skv_budget recent; /* a count or a share of the next step's tokens (pages), its new one included; none if zero */
	/* tokens; odd, at most 63. Above 1: the mean over this many positions around a token replaces its score */
	uint32_t smooth;
	/*
	 * Tokens only. Above 0: lambda * importance - (1 - lambda) * redundancy replaces the score (R-KV). Importance
	 * is the token's share of the head's sum of scores; redundancy is the softmax, over the head's tokens, of the
	 * key's mean cosine similarity to all of them.
	 */
	float lambda;
	uint32_t evict_older;  /* of equal ones the earlier one is evicted */
	uint32_t reset_scores; /* scores of retained tokens become 0 after an eviction */
	/*
	 * If heads share a budget: of each head the latest and its best stay active up to this share of the mean, then
	 * the best of all heads (AdaKV's safeguard).
	 */
	float safeguard;
};

/*
 * A page's weight is the softmax of its score over all resident pages, the mean over the GQA group. A page that matters
 * is touched: its score becomes the sequence's length, so that eviction goes by the time of the last touch (RaaS).
 */
struct skv_touch_pages {
	uint32_t layer;
	float scale; /* of the scores; 0: the model's softmax scale */
	float alpha; /* a page matters if its weight is above this ... */
	float ratio; /* ... or, above 0, if it is among the best pages, which are this share of all */
};

/*
 * Functions that the library passes to hooks. Each works on all sequences of the context at once, and returns nothing
 * (except seq_state). A call that does not fit the plan (scores that it does not request, a layer out of range) is a
 * bug of the policy: `sparsekvctl policy load` reports it when the probe runs the hooks, and skv_step_end fails with
 * -ENOTRECOVERABLE.
 */
struct skv_prims {
	uint32_t size;
	/*
	 * In after(), or in before() of a later layer: select pages by SKV_SCORES_PAGES, tokens by SKV_SCORES_TOKENS.
	 * For a layer that is its own source: in its before() only.
	 */
	void (*select_pages)(const struct skv_policy_ctx *, const struct skv_select *);
	void (*select_tokens)(const struct skv_policy_ctx *, const struct skv_select *);
	/*
	 * As select_tokens, for a layer with SKV_SHARE_Q_HEAD, but one set for all heads: the best K - R are the first
	 * ones when the heads' rankings are interleaved (every head's best, then every head's second, and so on), no
	 * token twice (LessIsMore).
	 */
	void (*select_union)(const struct skv_policy_ctx *, const struct skv_select *);
	/*
	 * In step_end(): evict the pages of `layer` that are wholly outside the window of the NEXT step. Evicts none if
	 * the layer has a sliding window in the model, or shares K and V with another layer.
	 */
	void (*evict_outside)(const struct skv_policy_ctx *, uint32_t layer, const struct skv_window *);
	/*
	 * In adopt() and step_end(): returns the state of sequence i, seq_state_bytes bytes, zeroed at first adoption.
	 */
	void *(*seq_state)(const struct skv_policy_ctx *, uint32_t i);
	/*
	 * In before() of a layer with SKV_SCORES_PAGE_BOUNDS: score its pages, Σ_d max(q_d kmin_d, q_d kmax_d) for each
	 * q head (kmin, kmax: element-wise minimum and maximum of the page's keys), reduced as its plan says.
	 * select_pages() may follow at once. (Quest.)
	 */
	void (*score_pages)(const struct skv_policy_ctx *, uint32_t layer);
	/*
	 * In before() of a layer with SKV_SCORES_SKETCHES: make its scores; select_...() may follow at once. With more
	 * than 512 tokens the denominators of the weights are estimated from a sample.
	 */
	void (*score_sketches)(const struct skv_policy_ctx *, uint32_t layer);
	/* In after() of a layer with plan.evict.accumulate: add the step's attention weights, if its query counts. */
	void (*accumulate_scores)(const struct skv_policy_ctx *, uint32_t layer);
	/* In after() of a layer with plan.evict, as its last call: evict if the plan says so. */
	void (*evict_to_budget)(const struct skv_policy_ctx *, const struct skv_evict_to_budget *);
	/*
	 * In before() of a layer that evicts pages, after score_pages(): touch pages that matter, list those to attend
	 * to.
	 */
	void (*touch_pages)(const struct skv_policy_ctx *, const struct skv_touch_pages *);
};

struct skv_policy_ctx {
	uint32_t size;
	uint32_t n_seqs; /* sequences of this call: those of the step that run this policy with this config */
	const struct skv_prims *prims;
	const struct skv_model *model;
	const void *config; /* the policy's own struct, filled from the spec */
	void *library;      /* for the library alone */
};

/* ---- the block ------------------------------------------------------------------------------- */

struct skv_policy {
	/* Sizes first: the loader compares them one by one and names the one that differs. */
	uint32_t size;        /* sizeof(struct skv_policy) */
	uint32_t abi;         /* SKV_POLICY_ABI */
	uint32_t page_tokens; /* SKV_PAGE_TOKENS */
	uint32_t param_size;  /* sizeof(struct skv_param) */
	uint32_t plan_size;   /* sizeof(struct skv_plan) */
	uint32_t prims_size;  /* sizeof(struct skv_prims): primitives that it may call */

	const char *name;    /* [a-z0-9_-]+, shorter than SKV_NAME_MAX; a spec begins with it */
	const char *version;
	const char *summary; /* one line; names the paper */

	uint32_t action, granularity, evidence, scope, sharing; /* the taxonomy */

	const struct skv_param *params;
	uint32_t n_params;
	uint32_t config_size;
	uint32_t seq_state_bytes; /* per sequence, in the daemon's memory: it outlives the engine */
	uint32_t state_version;   /* changes when the layout of the state does */

	/* All hooks but plan may be NULL. */

	/* Is the config valid for this model? 0, or -1 with a text that names the parameter. */
	int (*check)(const void *config, const struct skv_model *, char *err, size_t err_len);
	/*
	 * How does `layer` attend? `plan` comes zeroed (dense). The result is constant for the life of the instance. It
	 * is ignored in layers with a sliding window.
	 */
	void (*plan)(const void *config, const struct skv_model *, uint32_t layer, struct skv_plan *plan);
	void (*before)(const struct skv_policy_ctx *, uint32_t layer);
	void (*after)(const struct skv_policy_ctx *, uint32_t layer);
	/* For the sequences that decoded in this step. */
	void (*step_end)(const struct skv_policy_ctx *);
	/* Adopt sequences that another policy left, with evicted pages (holes) if it evicts. 0, or -1 and a text. */
	int (*adopt)(const struct skv_policy_ctx *, char *err, size_t err_len);
};

/* Sets the sizes; use it as the first initialiser of the block. */
#define SKV_POLICY_HEADER                                                                                   \
	.size = sizeof(struct skv_policy), .abi = SKV_POLICY_ABI, .page_tokens = SKV_PAGE_TOKENS,           \
	.param_size = sizeof(struct skv_param), .plan_size = sizeof(struct skv_plan),                       \
	.prims_size = sizeof(struct skv_prims)

#define SKV_POLICY_EXPORT __attribute__((visibility("default")))
SKV_POLICY_EXPORT const struct skv_policy *sparsekv_policy(void);

/*
 * Defines the block and the symbol that a plugin exports. CONFIG is the policy's config, PARAMS its table; the rest are
 * fields of struct skv_policy.
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

/* The taxonomy's five answers, in the order of struct skv_policy. */
#define SKV_TAXONOMY(ACTION, GRANULARITY, EVIDENCE, SCOPE, SHARING)                                         \
	.action = ACTION, .granularity = GRANULARITY, .evidence = EVIDENCE, .scope = SCOPE, .sharing = SHARING

/* What policies of one kind share: parameters, their check, the plan. A policy uses what it needs. */
#include <sparsekv/policy-prefill.h>
#include <sparsekv/policy-evict.h>
#include <sparsekv/policy-select.h>
#include <sparsekv/policy-compress.h>

#ifdef __cplusplus
}
#endif

#endif
