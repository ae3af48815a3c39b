/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv/policy.h - the ABI between libsparsekv-client and policy plugins.
 *
 * A policy is one C file, built into one shared object that exports one symbol,
 *
 *     const struct skv_policy *sparsekv_policy(void);
 *
 * and links nothing. It returns a constant block that says which ABI it was built for, what the
 * policy is called, what can be set, and which hooks it has. Hooks never touch K, V or scores
 * themselves: they ask for primitives (struct skv_prims), which exist on every backend. So the same
 * file runs on host memory and on a GPU, and it must not depend on values it cannot see: lengths
 * differ per sequence and live with the backend, budgets are passed as budgets and resolved there.
 *
 * Life of a policy in a process:
 *   dlopen → sparsekv_policy() → the spec `name:variant?key=value&…` is parsed into a config → check() →
 *   plan() once a layer → then, a step: before(l), attention as planned, after(l) for each layer,
 *   step_end(). adopt() is called for every sequence that another policy handled before.
 * before() and after() are called for decode rows alone; rows of a prompt attend as plan.prefill says.
 *
 * Hooks run on the thread that calls skv_attend; one instance is never entered twice at a time.
 * Hooks must not allocate, block, or make system calls. On a device before() and after() run when a layer is recorded and
 * not when it is replayed: what they ask for follows from the config and the layer, the same in every step.
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

#define SKV_POLICY_ABI 6u
#define SKV_POLICY_SYMBOL "sparsekv_policy"
#define SKV_POLICY_MAX_PARAMS 64u
#define SKV_POLICY_MAX_TEXT 256u /* bytes of a summary or a help line, NUL included; printable ASCII */

/* ---- taxonomy: what a policy declares of itself ---------------------------------------------- */

enum skv_action { SKV_ACT_NONE, SKV_ACT_VISIBILITY, SKV_ACT_EVICT, SKV_ACT_COMPRESS };
enum skv_granularity { SKV_GRAN_TOKEN, SKV_GRAN_PAGE };
enum skv_evidence_kind { SKV_EVID_NONE, SKV_EVID_POSITION, SKV_EVID_KEYS, SKV_EVID_QUERY, SKV_EVID_WEIGHTS };
enum skv_scope { SKV_SCOPE_REQUEST, SKV_SCOPE_STEP, SKV_SCOPE_LAYER };
enum skv_sharing { SKV_SHARE_ALL_HEADS, SKV_SHARE_KV_HEAD, SKV_SHARE_Q_HEAD };

/* ---- parameters ------------------------------------------------------------------------------ */

enum skv_param_type {
	SKV_PARAM_BUDGET = 1, /* struct skv_budget: 0 < x < 1 a share, x >= 1 a whole count */
	SKV_PARAM_UINT = 2,   /* uint32_t */
	SKV_PARAM_FLOAT = 3,  /* float */
	SKV_PARAM_BOOL = 4,   /* uint32_t 0 or 1; written 0, 1, true, false */
	SKV_PARAM_LAYERS = 5, /* struct skv_layer_set; written 2,7,12, or auto: empty, the policy chooses */
	/*
	 * uint32_t, which of the words in `def` (paper,eval,shared; a-z, 0-9, _, - and +): 0 is the first, the default. If it is
	 * called "variant", name:eval is short for name?variant=eval.
	 */
	SKV_PARAM_CHOICE = 6,
	SKV_PARAM_PROFILE = 7, /* struct skv_profile; written as the absolute path of its file, or none */
	/*
	 * struct skv_codec_file, of the compressor that layers with SKV_PACK_DELTA go by; written as the absolute path of the
	 * file, or auto: NAME.safetensors beside the model, NAME being the policy's. A policy has at most one such parameter.
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
 * What sparsekv-calibrate(1) has found out about the model, read from a file and checked against the model's shape.
 * Without a file all is zero: `path` is empty, and so are the sets. A set that is not in the file is empty too. What the
 * spec says of layers wins: a policy takes a set from here where its own parameter is auto.
 */
struct skv_profile {
	char path[SKV_PROFILE_PATH];
	struct skv_layer_set delta;   /* DELTA's: dense, and selecting pages */
	struct skv_layer_set filters; /* OmniKV's and its like: dense, and selecting tokens */
	struct skv_layer_set anchors; /* Kascade's */
	/*
	 * Kascade's head maps, for these anchors and no others: kv head h of a layer does best with what head
	 * map[layer][h] of the last anchor at or before it selected. All zero in layers before the first anchor.
	 */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
};

/* Where a compressor is. The library loads it, and refuses a file that does not fit the model. */
struct skv_codec_file {
	char path[SKV_PROFILE_PATH]; /* "": auto */
};

/* One row of the parameter table. The value is stored at `offset` of the policy's config. */
struct skv_param {
	const char *name; /* [a-z0-9_]+ */
	uint32_t type;    /* enum skv_param_type */
	uint32_t offset;  /* offsetof(struct my_config, field) */
	const char *def; /* default as it would be written in a spec, NULL: must be given; of a choice all words */
	const char *help;
};

/* ---- plan: how one layer attends ------------------------------------------------------------- */

enum skv_attend_how {
	SKV_ATTEND_DENSE = 0,  /* every resident token */
	SKV_ATTEND_WINDOW = 1, /* the first `sinks` tokens and the most recent ones, see skv_window */
	SKV_ATTEND_PAGES = 2,  /* the pages that `source` selected in this step; this layer, if it has SKV_EV_BOUNDS */
	/*
	 * The tokens that `source` selected in this step. With `source` the layer itself it reads all of its keys, selects
	 * by their weights as its before() asks for, and reads the values of the selected tokens alone.
	 */
	SKV_ATTEND_TOKENS = 3,
};

/* Visible: tokens [0, sinks) and the last (W - sinks), at least 1; W = skv_budget_of(budget, n, floor). */
struct skv_window {
	uint32_t sinks;
	uint32_t floor;
	struct skv_budget budget;
};

/* Is this one of the n layers that divide those from `first` on evenly, and of which `first` is one? */
SKV_INLINE int skv_layer_even(const struct skv_model *m, uint32_t first, uint32_t n, uint32_t layer)
{
	for (uint32_t i = 0; i < n && first < m->n_layers; i++)
		if (layer == first + (i * (m->n_layers - first) + n - 1) / n)
			return 1;
	return 0;
}

/* Evidence that attention leaves behind, as asked for in a plan. */
enum skv_evidence_bits {
	SKV_EV_TOKENS = 1u << 0, /* pooled softmax weight of each token */
	SKV_EV_PAGES = 1u << 1,  /* sum of the pooled token weights of each page */
	/*
	 * Scores of pages by bounds of their keys, which score_pages() makes in before(): the only kind that a
	 * layer has ahead of its attention, and then it has no other. The library keeps bounds of its pages.
	 */
	SKV_EV_BOUNDS = 1u << 2,
};
enum skv_pool {
	SKV_POOL_MAX = 0,
	SKV_POOL_SUM = 1,
	SKV_POOL_MEAN_Q = 2, /* SKV_EV_BOUNDS: q is averaged over each kv head's group; sum over kv heads */
};

/*
 * A layer that keeps the best of what it has seen, each kv head its own, and gives the rest of its memory back. What it
 * decides about is a unit: a token, or a page of one kv head.
 *
 * The budget is what a decode step may look at, its new unit included: C = skv_budget_of(budget, n, floor) of a sequence
 * of n units. keep_best() runs in every step and lets units go in those that leave u >= C' + slack - 1 of them, C' being
 * the next step's C: then C' - 1 stay. With pages these are steps that fill one. A prompt is attended to as a whole,
 * and so is it by the first decode step after it, at whose end the layer shrinks.
 */
struct skv_keep {
	uint32_t unit; /* tokens of a unit: 1 or SKV_PAGE_TOKENS; 0: nothing goes */
	uint32_t floor;
	struct skv_budget budget; /* at least 2 units */
	uint32_t slack;           /* at least 1: units that may come on top before those go that are too many */
	uint32_t at_prompt_end;   /* the first decode step after a prompt need not wait for the slack to be used up */
	/*
	 * What the sequence began with, before it decoded, never goes, and one unit more stays at least. Unless `pinned` is
	 * zero the budget counts at most skv_budget_of(pinned, n, pinned_floor) of it, and no more of its pages are attended
	 * to, the best ones.
	 */
	uint32_t pin_prompt;
	uint32_t pinned_floor;
	struct skv_budget pinned;
	/*
	 * Tokens: their value is the sum of the attention weights that queries give them, means over the kv head's group.
	 * tally() adds those of a decode step, the library those of prompts. With a window only the last so many queries
	 * before a choice count, of each call of a prompt its last ones.
	 */
	uint32_t votes;
	uint32_t window; /* 0: all */
	/*
	 * Tokens, with votes. At least 1: the heads share the budget, which is the mean of what they have; a head has at most
	 * `spread` times as much. As pages are of all heads, memory is for that much of each: what a head has not been given
	 * sleeps in its place, and is neither attended to nor asked for votes until a prompt or another policy comes.
	 */
	float spread;
};

/*
 * A layer that keeps its older tokens in less than rows of K and V, and nearly the same: they are packed. Which are follows
 * from the sequence's length alone: blocks, as soon as `raw` tokens are behind them. It lets go of none (keep is zero).
 */
enum skv_pack_kind {
	SKV_PACK_NONE = 0,
	/*
	 * What is left of a token beside the mean of the references nearest to it, by a compressor. The layer is DENSE, or it
	 * attends to TOKENS of an earlier layer that selects for all heads at once, and it leaves no evidence.
	 */
	SKV_PACK_DELTA = 1,
	/*
	 * K and V themselves in 4 or 2 bits, without a compressor: K in groups of 32 tokens, each element of a head apart, V in
	 * groups of elements of a token. The layer is DENSE, with any evidence but bounds. Neither references nor sinks.
	 */
	SKV_PACK_LOW = 2,
};
struct skv_pack {
	uint32_t kind;     /* enum skv_pack_kind */
	uint32_t bits;     /* of each number of a code: 16, 8, 4, or 0: there is none, a token is its references' mean */
	uint32_t group;    /* numbers that share a scale: 32 or 64; LOW: of V, a divisor of the head's dimensions */
	uint32_t stride;   /* every so many tokens, at most 255, one is a reference; 0: no references */
	uint32_t near;     /* and so many are a token's, at most 4; 0 without references */
	uint32_t ref_bits; /* of a number of a reference: 16, 8 or 4; 0 without references */
	uint32_t sinks;    /* so many first tokens, up to 240, stay rows: whole pages of them */
	uint32_t raw;      /* and so many last ones, at least */
	uint32_t block;    /* tokens that are packed at once: whole pages; LOW: a multiple of 32 */
};

/*
 * How rows of a prompt attend. A row is a token's position p; P is where its prompt began, which is where the sequence last
 * decoded or was forked. Rows lie in tiles of the sequence's positions, [i tile, (i + 1) tile), and what a tile looks at
 * beside its neighbourhood is chosen by the queries that come first, so that a prompt may be cut anywhere.
 * begin(p, x) = max(P, p - p % x).
 *
 *   STREAMING   row p sees t < sinks and t > p - window.
 *   HIP         tiles of 64: t < sinks, t >= p - p % 64 - window, and of what is between, each q head apart, what the row
 *               begin(p, 64) found in stages: of chunks of 64 tokens the best keep[0] tokens' worth, of these in chunks of
 *               32 keep[1], of these in chunks of 8 keep[2]. A chunk scores as its representative does: from the
 *               first tokens of its halves the better one's half, down to one token. (Lee et al., InfiniteHiP.)
 *   MINFERENCE  segments of `segment` tokens: their first SKV_LINE_ROWS rows are dense, and by the softmax weights of these,
 *               each q head apart, the heaviest `vertical` tokens (the first SKV_LINES_FORCED among them) and
 *               `slash` distances (likewise) are what the segment's other rows see, in tiles of 64: blocks of 64
 *               tokens that a chosen distance touches, and the chosen tokens. (Jiang et al., MInference 1.0.)
 *   KASCADE     tiles of 128 rows, the kv head's group among them (skv_kascade_tile() tokens): the tile itself, and before
 *               it the best skv_budget_of(top, tile's start, top_floor) tokens of each kv head by the weights of
 *               the row begin(p, tile) in layer `source`, summed over the group after the softmax. (Kascade, 3.4.)
 *
 * With a correction the rows begin(p, gamma) are dense, and so are the prompt's last s % gamma + tail, s its end. DELTA:
 * to the others the last such row's difference, dense - sparse, is added (Delta Attention, Eq. 6), or with MINFERENCE that
 * of the last of the segment's dense rows, if it is later. RECOMPUTE: nothing is (Eq. 5).
 */
enum skv_prefill_how {
	SKV_PREFILL_DENSE = 0,
	SKV_PREFILL_STREAMING = 1,
	SKV_PREFILL_HIP = 2,
	SKV_PREFILL_MINFERENCE = 3,
	SKV_PREFILL_KASCADE = 4,
};
enum skv_correction { SKV_CORRECT_NONE = 0, SKV_CORRECT_DELTA = 1, SKV_CORRECT_RECOMPUTE = 2 };

#define SKV_LINE_ROWS 64u
#define SKV_LINES_FORCED 30u
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
	uint32_t vertical, slash; /* at least SKV_LINES_FORCED */
	struct skv_budget top; /* KASCADE: tokens */
	uint32_t top_floor;
	uint32_t source;     /* KASCADE: this layer, or the last one before it that is its own source */
	uint32_t dense;      /* its own source: it attends densely, and chooses for later layers alone, as the paper's layer 0 */
	uint32_t mapped;     /* of an earlier layer: kv head h goes by the tokens of its kv head map[h] */
	uint8_t map[SKV_MAX_HEADS];
};

/* Tokens of a tile of Kascade's: 128 rows of a group, a power of two, at least 16. */
SKV_INLINE uint32_t skv_kascade_tile(uint32_t group)
{
	uint32_t tile = 128;

	while (tile > 16 && tile * group > 128)
		tile /= 2;
	return tile;
}

struct skv_plan {
	uint32_t size;     /* filled in by the library */
	uint32_t attend;   /* enum skv_attend_how */
	uint32_t source;   /* PAGES, TOKENS: an earlier layer that selects, or this one */
	uint32_t evidence; /* set of skv_evidence_bits; weights: of a layer that is dense, or its own source */
	uint32_t pool;     /* enum skv_pool: over the heads that share one score row */
	uint32_t sharing;  /* enum skv_sharing: one row of evidence, and one selection, a sequence, kv head or q head */
	struct skv_window window;
	/* PAGES, TOKENS of an earlier layer that shares by kv head, if `mapped`: kv head h goes by its row map[h]. */
	uint32_t mapped;
	uint8_t map[SKV_MAX_HEADS];
	/*
	 * Tokens: the layer is DENSE, with `votes` its evidence is SKV_EV_TOKENS, SKV_POOL_SUM, SKV_SHARE_KV_HEAD, else none.
	 * With `spread` it attends to TOKENS, its own source, without evidence: what is awake.
	 * Pages: it attends to PAGES of its own by SKV_EV_BOUNDS, SKV_SHARE_Q_HEAD. It is no other layer's source.
	 */
	struct skv_keep keep;
	struct skv_pack pack;
	struct skv_prefill prefill;
};

/* ---- primitives ------------------------------------------------------------------------------ */

struct skv_policy_ctx;

/*
 * Top-k of a layer's evidence, per score row (see skv_plan.sharing). n = units (pages or tokens) of
 * the sequence, the current one included.
 *   K = skv_budget_of(budget, n, floor); R = min(K, max(recent_floor, recent or K/8 when zero)), or 0 with no_recent
 * Selected: the last R units, the first `pin` units (on top of the budget), and the best K - R of
 * the rest. With pin_counts the pinned ones are of the K: the first min(pin, K - R), and the best of the rest up to K.
 * Ties go to the lower index. Evicted units are never selected.
 */
struct skv_select {
	uint32_t layer; /* whose evidence; the selection is stored under the same number */
	struct skv_budget budget;
	uint32_t floor;
	uint32_t recent;
	uint32_t recent_floor;
	uint32_t pin;
	uint32_t pin_counts;
	uint32_t no_recent;
};

/* Who stays: the latest, the pinned, the best by value, in this order, in each kv head. Of equals the earlier one. */
struct skv_keep_best {
	uint32_t layer;
	struct skv_budget recent; /* of the next step's units, its new one included: a count or a share; none if zero */
	uint32_t smooth;  /* tokens; odd, at most 63. Above 1: in place of a value the mean of so many positions around it */
	/*
	 * Tokens. Above 0: lambda * importance - (1 - lambda) * redundancy in place of the value: its share of the head's
	 * sum, and the softmax, over the head's tokens, of the key's mean cosine similarity to all of them.
	 */
	float lambda;
	uint32_t old_first; /* of equals the earlier one goes */
	uint32_t forget;    /* values of those that stay become 0 when others go */
	/*
	 * Where heads share a budget: of each the latest and its best stay awake up to this share of the mean, then the best
	 * of all heads.
	 */
	float sure;
};

/*
 * A page's weight is the softmax of its score over all pages that are there, a mean over the kv head's group. Pages that
 * matter get the length of the sequence as their value.
 */
struct skv_stamp_pages {
	uint32_t layer;
	float scale; /* of the scores; 0: the model's softmax scale */
	float alpha; /* a page matters if its weight is above this ... */
	float ratio; /* ... or, above 0, if it is among the best so large a share of the pages */
};

/*
 * Functions that the library hands to hooks. Each works on all sequences of the context at once.
 * They return nothing: a request that does not fit the plan (evidence that was not asked for, a
 * layer out of range) is a bug of the policy, is reported by `sparsekvctl policy load` when the
 * probe runs the hooks, and makes skv_step_end fail with -ENOTRECOVERABLE.
 */
struct skv_prims {
	uint32_t size;
	/*
	 * after(), or before() of a later layer: choose pages by SKV_EV_PAGES, tokens by SKV_EV_TOKENS. For a layer that
	 * is its own source: in its before(), and nowhere else.
	 */
	void (*select_pages)(const struct skv_policy_ctx *, const struct skv_select *);
	void (*select_tokens)(const struct skv_policy_ctx *, const struct skv_select *);
	/*
	 * As select_tokens for a layer with SKV_SHARE_Q_HEAD, but one set for all heads: the best K - R are those that come
	 * first when the heads name theirs in turns, every head its best, then every head its second ..., no token twice.
	 */
	void (*select_union)(const struct skv_policy_ctx *, const struct skv_select *);
	/* step_end(): free the pages of `layer` wholly outside the window as the NEXT step sees it. */
	void (*evict_outside)(const struct skv_policy_ctx *, uint32_t layer, const struct skv_window *);
	/* adopt(), step_end(): the state of sequence i, seq_state_bytes of it, zeroed when first adopted. */
	void *(*seq_state)(const struct skv_policy_ctx *, uint32_t i);
	/*
	 * before() of a layer with SKV_EV_BOUNDS: score its pages, Σ_d max(q_d kmin_d, q_d kmax_d) of each q head
	 * (kmin and kmax: the least and the most of the page's keys), pooled as its plan says. select_pages() may
	 * follow at once.
	 */
	void (*score_pages)(const struct skv_policy_ctx *, uint32_t layer);
	/* after() of a layer whose plan.keep has votes: the step's query votes, if it is one that counts. */
	void (*tally)(const struct skv_policy_ctx *, uint32_t layer);
	/* after() of a layer with plan.keep, at last: if some are to go, choose who stays. */
	void (*keep_best)(const struct skv_policy_ctx *, const struct skv_keep_best *);
	/* before() of a layer that keeps pages, after score_pages(): stamp those that matter, list those to attend to. */
	void (*stamp_pages)(const struct skv_policy_ctx *, const struct skv_stamp_pages *);
};

struct skv_policy_ctx {
	uint32_t size;
	uint32_t n_seqs; /* sequences that this call is about: of a step those that run this policy with this config */
	const struct skv_prims *prims;
	const struct skv_model *model;
	const void *config; /* the policy's own struct, filled from the spec */
	void *host;         /* the library's */
};

/* ---- the block ------------------------------------------------------------------------------- */

struct skv_policy {
	/* Geometry first: a loader compares field by field and names the one that differs. */
	uint32_t size;        /* sizeof(struct skv_policy) */
	uint32_t abi;         /* SKV_POLICY_ABI */
	uint32_t page_tokens; /* SKV_PAGE_TOKENS */
	uint32_t param_size;  /* sizeof(struct skv_param) */
	uint32_t plan_size;   /* sizeof(struct skv_plan) */
	uint32_t prims_size;  /* sizeof(struct skv_prims): primitives that it may call */

	const char *name;    /* [a-z0-9_-]+, shorter than SKV_NAME_MAX; what a spec begins with */
	const char *version;
	const char *summary; /* one line; names the paper */

	uint32_t action, granularity, evidence, scope, sharing; /* the taxonomy */

	const struct skv_param *params;
	uint32_t n_params;
	uint32_t config_size;
	uint32_t seq_state_bytes; /* per sequence, in the daemon's memory: outlives the engine */
	uint32_t state_version;   /* changes when the layout of the state does */

	/* All hooks but plan may be NULL. */

	/* Is the config sensible for this model? 0, or -1 with a text that names the parameter. */
	int (*check)(const void *config, const struct skv_model *, char *err, size_t err_len);
	/* How does `layer` attend? `plan` comes zeroed (= dense). Constant for the life of the instance. */
	void (*plan)(const void *config, const struct skv_model *, uint32_t layer, struct skv_plan *plan);
	void (*before)(const struct skv_policy_ctx *, uint32_t layer);
	void (*after)(const struct skv_policy_ctx *, uint32_t layer);
	/* For the sequences that decoded in this step. */
	void (*step_end)(const struct skv_policy_ctx *);
	/* Take over sequences of another policy (holes in them are to be accepted); 0, or -1 and a text. */
	int (*adopt)(const struct skv_policy_ctx *, char *err, size_t err_len);
};

/* Fills the geometry fields; use it as the first initialiser of the block. */
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

#ifdef __cplusplus
}
#endif

/* What policies of one kind share: parameters, their check, the plan. A policy takes what it can use. */
#include <sparsekv/policy-prefill.h>
#include <sparsekv/policy-evict.h>
#include <sparsekv/policy-select.h>
#include <sparsekv/policy-compress.h>

#endif
