/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/oracle.h - what each policy must attend to, in double precision and plain loops.
 *
 * Written from the papers' rules (sparsekv-policy(7) names the papers), without code of policies, kernels or library: a
 * file for each policy, which reads like its rule. It knows nothing of hooks, plans or primitives.
 *
 * Kernels round. So every score comes with the range in which a kernel's score may be, and an entry whose selection
 * depends on rounding is in a class of its own (ORACLE_MAY). Scores that are equal because keys are equal are equal in
 * every arithmetic, and the lower index wins; inputs are made so that there are no other equal scores (case.c).
 */
#ifndef SKV_ORACLE_H
#define SKV_ORACLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/types.h>

#define ORACLE_PAGE 16u /* tokens */

struct oracle_score {
	double lo, is, hi; /* a kernel's score is at least lo and at most hi */
};

/* One sequence in one step: all that a policy may know. */
struct oracle_step {
	const struct skv_model *model;
	uint32_t n;            /* tokens, including the one being decoded */
	const float *const *k; /* [layer]: [n][n_kv_heads][head_dim] as stored in pages */
	const float *const *v; /* [layer]: [n][n_kv_heads][head_dim] as stored in pages */
	const float *const *q; /* [layer]: [n][n_heads][head_dim] of all tokens */
	bool *const *hole;     /* [layer]: [pages] that were evicted */
	const bool *there;     /* [n]: if not NULL, the tokens in memory, regardless of `hole` */
	struct oracle_kept *kept; /* for policies that evict from each kv head on its own, else NULL */
	double logit_slack;    /* a kernel's q·k is off by at most this much of Σ |q_d k_d| */
	double kept_slack;     /* and, scaled, also by this much of its distance to the largest one */
	bool ties_hold;        /* scores that are equal here are equal in the kernel, too */
	/* rounds as a device: quantized K and V to the pool's type, products of sketches to 16 bits */
	bool device_rounds;
	bool weight_steps;     /* weights are rounded, too: see oracle_stepped() */
	uint32_t width;        /* numbers in a compressed token's code; 0: unknown */
};

enum oracle_how { ORACLE_DENSE, ORACLE_WINDOW, ORACLE_PAGES, ORACLE_TOKENS }; /* as enum skv_attend_mode */
enum oracle_class { ORACLE_OUT, ORACLE_MAY, ORACLE_IN };

/* What one layer attends to: lists of entries; these are pages for ORACLE_DENSE and ORACLE_PAGES, else tokens. */
struct oracle_set {
	enum oracle_how how;
	uint32_t rows;   /* 1, n_kv_heads or n_heads */
	uint32_t units;  /* entries of the sequence */
	uint8_t *class;  /* [rows][units], enum oracle_class */
	/* [rows]: how many entries are attended to, whichever they are; UINT32_MAX: depends on rounding */
	uint32_t *count;
};

/* A layer stores tokens [first, coded) of a sequence compressed, in pages of their own; coded 0: none. */
struct oracle_compress {
	uint32_t first, coded;
	uint32_t pages; /* UINT32_MAX: depends on the compressor */
	/* Quantization of K and V, which are stored only in this form; 0: the tokens went through a compressor. */
	uint32_t bits, group;
};

struct oracle_policy {
	const char *name;
	/*
	 * Fills set[n_layers] for a policy with the parameters of `spec`, which contains all of them (skv_policy_spec).
	 */
	void (*attend)(const struct oracle_step *, const char *spec, struct oracle_set *set);
	/* Evicts at the end of the step, into step->hole or step->kept; NULL: evicts nothing. */
	void (*evict)(const struct oracle_step *, const char *spec);
	/* for policies that evict from each kv head on its own: tokens evicted at once, 1 or a page; else 0 */
	uint32_t granularity;
	/* For these: the last `rows` tokens were read as a prompt. May be NULL. */
	void (*prompt)(const struct oracle_step *, const char *spec, uint32_t rows);
	/* What the layer has compressed once the step's tokens are committed, if none is evicted; NULL: nothing. */
	struct oracle_compress (*compress)(const struct oracle_step *, const char *spec, uint32_t layer);
};

/* The policy that a spec names, or NULL; also NULL if the spec leaves layers to a profile. */
const struct oracle_policy *oracle_find(const char *spec);

/* Pages of n records of `bytes` bytes each; no record crosses a page. */
uint32_t oracle_record_pages(const struct skv_model *, uint32_t n, uint32_t bytes);
/* Bytes of n numbers of 16 bits, or of fewer bits with two 16-bit numbers for each group. */
uint32_t oracle_numbers_bytes(uint32_t n, uint32_t bits, uint32_t bytes_of_16, uint32_t group);

void oracle_sets_free(struct oracle_set *set, uint32_t n_layers);

/* K and V quantized, except for the last `residual` tokens, `block` tokens at a time. */
struct oracle_compress oracle_quantized(const struct oracle_step *, uint32_t bits, uint32_t group, uint32_t residual,
                                   uint32_t block);

/* ---- parameters (spec.c) ---------------------------------------------------------------------- */

double oracle_number(const char *spec, const char *key); /* 0 if the key is missing */
bool oracle_is(const char *spec, const char *key, const char *value);
bool oracle_layer_in(const char *spec, const char *key, uint32_t layer); /* is the layer in a list such as 2,7,12? */
/* Is the layer at 2/5 or 3/5 of the depth, to the nearest? */
bool oracle_fifths(const struct skv_model *, uint32_t layer);
/* Is it layer `first`, or a later one at 2/5 or 3/5 of the depth? */
bool oracle_guessed(const struct skv_model *, uint32_t first, uint32_t layer);
/* The parameter `budget` for n entries: a count, or a share of n, rounded up and at least `least`; at most n. */
uint32_t oracle_budget(const char *spec, uint32_t n, uint32_t least);

/* ---- scores (scores.c) ------------------------------------------------------------------------ */


/* score[n] of one q head: q·k unscaled. Scores of holes are not written. */
void oracle_logits(const struct oracle_step *, uint32_t layer, uint32_t head, struct oracle_score *score);
/* score[n]: softmax of scale·q·k over all tokens in memory. */
void oracle_weights(const struct oracle_step *, uint32_t layer, uint32_t head, struct oracle_score *score);
/* The same for heads [from, to), reduced. */
enum oracle_reduce { ORACLE_MAX, ORACLE_SUM };
void oracle_reduced(const struct oracle_step *, uint32_t layer, uint32_t from, uint32_t to, enum oracle_reduce,
                   struct oracle_score *score);
/*
 * A weight that a device uses for selection as soon as it is computed: there weights are rounded to steps of 2^-10 in
 * log2, from 2^-31 to 2^33 times the uniform weight, and weights of one step are equal.
 */
struct oracle_score oracle_stepped(const struct oracle_step *, struct oracle_score);
/* score[n] of one q head by the keys' sketches of `bits` bits: scaled, before the softmax. The step has 16 tokens or more. */
void oracle_sketch_logits(const struct oracle_step *, uint32_t layer, uint32_t head, uint32_t bits, struct oracle_score *score);
/*
 * Computes the newest token's output for one q head: ret[head_dim]. Tokens with listed[t] take part with their K and V.
 * The other tokens in memory take part with their sketches and with values of 2 bits. slack[head_dim] gets the possible
 * error of each element.
 */
void oracle_sketched_output(const struct oracle_step *, uint32_t layer, uint32_t head, const bool *listed, double *ret, double *slack);
/* Like oracle_reduced(), with the weights of the keys' sketches of `bits` bits. */
void oracle_sketched(const struct oracle_step *, uint32_t layer, uint32_t bits, uint32_t from, uint32_t to, enum oracle_reduce,
                     struct oracle_score *score);
/* U of a page for q[head_dim] of a kv head: Σ_d max(q_d kmin_d, q_d kmax_d). */
struct oracle_score oracle_bound(const struct oracle_step *, uint32_t layer, uint32_t kv, const double *q,
                                 uint32_t page);
/* page[pages]: sums over the tokens of each page. */
void oracle_pages(const struct oracle_score *token, uint32_t n, struct oracle_score *page);
struct oracle_score oracle_more(struct oracle_score a, struct oracle_score b); /* the larger one */
struct oracle_score oracle_add(struct oracle_score a, struct oracle_score b);
struct oracle_score oracle_sum(struct oracle_score a, struct oracle_score b); /* a is a sum of many numbers in fp32 */

/* ---- selection (choose.c) --------------------------------------------------------------------- */

uint32_t oracle_units(enum oracle_how how, uint32_t n); /* number of entries for n tokens */
/* is the entry in memory? */
bool oracle_there(const struct oracle_step *, uint32_t layer, enum oracle_how how, uint32_t entry);

/* Makes an empty set of this form. */
void oracle_set_new(const struct oracle_step *, struct oracle_set *, enum oracle_how how, uint32_t rows);
/* Selects everything in memory. */
void oracle_dense(const struct oracle_step *, uint32_t layer, struct oracle_set *);
/* The same in all layers. */
void oracle_attend_all(const struct oracle_step *, const char *spec, struct oracle_set *);
/*
 * Copies what `from` selected, as far as it is in memory in this layer. map[rows], or NULL: the row of `from` for each
 * row.
 */
void oracle_reuse(const struct oracle_step *, uint32_t layer, const struct oracle_set *from, const uint8_t *map,
                  struct oracle_set *);
/*
 * Selects entries [first, end) of a row that are in memory. `layer` is the layer that selects; the set may be another
 * layer's.
 */
void oracle_take(const struct oracle_step *, uint32_t layer, struct oracle_set *, uint32_t row, uint32_t first,
                 uint32_t end);
/* Selects the best k of entries [first, end) that are in memory and not selected yet; ties go to the lower index. */
void oracle_best(const struct oracle_step *, uint32_t layer, struct oracle_set *, uint32_t row, uint32_t first,
                 uint32_t end, const struct oracle_score *score, uint32_t k);
/*
 * Makes a set of the last `recent` entries (part of the k), the first `pin` ones, and the best k - recent of the rest
 * by the weights of the heads of each row, reduced; pages by the sums of their tokens. `bits`: weights are those of the
 * keys' sketches; 0: of the keys.
 */
void oracle_select(const struct oracle_step *, uint32_t layer, struct oracle_set *, enum oracle_how how, uint32_t rows,
                   enum oracle_reduce pool, uint32_t bits, uint32_t k, uint32_t recent, uint32_t pin);
/* Bits of the sketches by which the layer selects: with scores=sketch in layers from `dense` on; else 0. */
uint32_t oracle_sketch_bits(const char *spec, uint32_t layer);
/*
 * Fills the sets of layers that follow selecting layers. A selecting layer runs dense, or, if it selects by sketches,
 * attends to its selection; other layers from `dense` on attend to the selection of the last selecting layer, and are
 * dense before the first.
 */
void oracle_followers(const struct oracle_step *, const char *spec, struct oracle_set *set,
                      bool (*chooses)(const struct oracle_step *, const char *spec, uint32_t layer),
                      void (*choose)(const struct oracle_step *, const char *spec, uint32_t layer,
                                     struct oracle_set *));
/*
 * Does the layer select, where two layers do: one in `layers`; with `auto`, the first after the dense ones, and the one
 * at 13/32 of the depth.
 */
bool oracle_chooses_twice(const struct oracle_step *, const char *spec, uint32_t layer);
/* Is the layer a filter, which selects? With `auto`: see oracle_guessed(), from the first layer that is not dense. */
bool oracle_is_filter(const struct oracle_step *, const char *spec, uint32_t layer);
/* What layers attend to if filters select; `more` is 0 if the spec has none. */
void oracle_attend_filters(const struct oracle_step *, const char *spec, struct oracle_set *);
/* For each candidate, how many candidates certainly rank before it, and how many may. */
void oracle_ranks(const struct oracle_step *, const struct oracle_score *score, const bool *candidate, uint32_t n,
                  uint32_t *ret_sure, uint32_t *ret_may);

/* ---- what kv heads retain (evict.c) --------------------------------------------------------------- */

/* Entries of one kv head of one layer: tokens or pages by their position in the sequence. */
struct oracle_head {
	uint8_t *lives;             /* [units], enum oracle_class: MAY if rounding decided, until observed */
	struct oracle_score *value; /* [units] */
	uint32_t units;             /* entries so far */
	uint32_t n;                 /* how many of them are retained, whichever they are */
	/* if heads share a budget: how many are in memory; else 0: those that are retained */
	uint32_t stored;
	/* with a window: decode steps since the last eviction, and rows of a prompt before them */
	uint32_t steps, queries;
};

struct oracle_kept {
	struct oracle_head *head; /* [n_layers][n_kv_heads] */
	uint32_t n_heads;         /* of these */
	uint32_t granularity;            /* tokens of an entry */
	uint32_t first;           /* earlier layers evict nothing */
	uint32_t prompt;          /* tokens of the sequence's first prompt */
	bool prompted;            /* no token has been decoded since the last prompt */
};

/*
 * Everything in memory of the step's tokens, for a sequence that no policy of this kind has had yet. For up to `cap`
 * tokens.
 */
struct oracle_kept *oracle_kept_new(const struct oracle_step *, uint32_t granularity, uint32_t first, uint32_t cap);
void oracle_kept_free(struct oracle_kept *);
struct oracle_head *oracle_head(const struct oracle_step *, uint32_t layer, uint32_t kv);

/* The layer attends to what each kv head retains, and to the newest entry. */
void oracle_kept_attend(const struct oracle_step *, uint32_t layer, enum oracle_how how, struct oracle_set *);
/* The same for layers from `dense` on, by tokens; earlier layers are dense. */
void oracle_kept_tokens(const struct oracle_step *, const char *spec, struct oracle_set *set);
/* Entries of the sequence's first n tokens that heads do not have yet become retained. */
void oracle_kept_add(struct oracle_kept *, uint32_t n);
/* Records what a head was observed to attend to, including the newest entry: in[units]. */
void oracle_kept_seen(struct oracle_head *, const bool *in, uint32_t units);
/*
 * score[at + 1]: attention scores that the query of token `at` gives to the retained tokens up to its own, averaged
 * over the kv head's group. Scores of other tokens are not written.
 */
void oracle_attn_scores(const struct oracle_step *, uint32_t layer, uint32_t kv, uint32_t at,
                        struct oracle_score *score);
/*
 * What is retained of entries [0, n): the `recent` latest, those before `pinned`, and the best of the rest by score;
 * `keep` in all.
 */
struct oracle_stay {
	uint32_t keep, recent, pinned;
	bool old_first; /* of equal entries the later one is retained, not the earlier one */
	bool ties_hold;
};
void oracle_stay(struct oracle_head *, uint32_t n, const struct oracle_score *score, const struct oracle_stay *);

/*
 * Evicts like SnapKV: when more than `most` tokens would be in memory in the next step, or, unless the last step was
 * the first after a prompt, `again` more than that, retains the last `window` tokens and the best ones by attention
 * scores of the last queries.
 */
struct oracle_snap {
	uint32_t most;   /* tokens that the next step attends to, including its own */
	uint32_t window;
	uint32_t again;  /* at least 1 */
	uint32_t pool;
	double lambda;   /* above 0: R-KV's score */
};
struct oracle_snap oracle_snap_of(const char *spec); /* all but `most` */
void oracle_snap(const struct oracle_step *, uint32_t layer, const struct oracle_snap *);
/* The same in every layer that is not dense, with the spec's budget. */
void oracle_snap_evict(const struct oracle_step *, const char *spec);
/* Its scores of the head's tokens, [n]: accumulated since the last eviction, over at most the last `window` queries. */
void oracle_snap_scores(const struct oracle_step *, uint32_t layer, uint32_t kv, const struct oracle_snap *,
                        struct oracle_score *score);
/* Which queries count after a prompt of `rows` rows: its last ones of a window, or all of them and earlier ones. */
void oracle_snap_prompt(const struct oracle_step *, const char *spec, uint32_t rows);

#endif
