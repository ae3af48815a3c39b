/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/oracle.h - what each policy must attend to, in double precision and plain loops.
 *
 * Written from the papers' rules (sparsekv-policy(7) names the papers) and sharing no code with policies, kernels
 * or library: a file a policy, which reads like its rule. It knows nothing of hooks, plans or primitives.
 *
 * Kernels round. So every score comes with the range that a kernel's may be in, and an entry that is chosen or not as
 * roundings go is in a class of its own. Equal scores that come of equal keys are equal in every arithmetic, and the
 * lower index wins; inputs are made so that there are no others (case.c).
 */
#ifndef SKV_ORACLE_H
#define SKV_ORACLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/types.h>

#define ORACLE_PAGE 16u /* tokens */

struct oracle_score {
	double lo, is, hi; /* the least and the most that a kernel's may be */
};

/* One sequence in one step: all that a policy may know. */
struct oracle_step {
	const struct skv_model *model;
	uint32_t n;            /* tokens, the one being decoded included */
	const float *const *k; /* [layer]: [n][n_kv_heads][head_dim] as the pages keep it */
	const float *const *q; /* [layer]: [n][n_heads][head_dim] of all tokens */
	bool *const *hole;     /* [layer]: [pages] that were evicted */
	const bool *there;     /* [n]: if not NULL the tokens that are there, whatever `hole` says */
	struct oracle_kept *kept; /* of policies that evict from each kv head alone, else NULL */
	double logit_slack;    /* a kernel's q·k is off by at most this much of Σ |q_d k_d|, */
	double kept_slack;     /* and, scaled, by this much of its distance to the largest one besides */
	bool ties_hold;        /* scores that are equal here are equal there */
	bool device_rounds;    /* as a device does: quantized K and V to the pool's type, products of sketches to 16 bits */
	bool weight_steps;     /* so are the weights: see oracle_stepped() */
	uint32_t width;        /* numbers of a compressed token's code; 0: it is not known how many */
};

enum oracle_how { ORACLE_DENSE, ORACLE_WINDOW, ORACLE_PAGES, ORACLE_TOKENS }; /* as enum skv_attend_mode */
enum oracle_class { ORACLE_OUT, ORACLE_MAY, ORACLE_IN };

/* What one layer attends to: lists of entries, of pages for ORACLE_DENSE and ORACLE_PAGES, else of tokens. */
struct oracle_set {
	enum oracle_how how;
	uint32_t rows;   /* 1, n_kv_heads or n_heads */
	uint32_t units;  /* of the sequence */
	uint8_t *class;  /* [rows][units], enum oracle_class */
	uint32_t *count; /* [rows]: how many entries are attended to, whichever they are; UINT32_MAX: rounding decides */
};

/* Of a sequence's tokens a layer stores [first, coded) compressed, in pages of its own; coded 0: none. */
struct oracle_compress {
	uint32_t first, coded;
	uint32_t pages; /* UINT32_MAX: that depends on the compressor */
	uint32_t bits, group; /* of K and V, of which there is nothing else then; 0: it went through a compressor */
};

struct oracle_policy {
	const char *name;
	/* Fill set[n_layers] for a policy with the parameters of `spec`, which has them all (skv_policy_spec). */
	void (*attend)(const struct oracle_step *, const char *spec, struct oracle_set *set);
	/* What the step evicts at its end, into step->hole or step->kept; NULL: nothing. */
	void (*evict)(const struct oracle_step *, const char *spec);
	/* Of policies that evict from each kv head alone: tokens of what goes at once, 1 or a page; else 0. */
	uint32_t granularity;
	/* Of these: the last `rows` tokens were read as a prompt. May be NULL. */
	void (*prompt)(const struct oracle_step *, const char *spec, uint32_t rows);
	/* What the layer has compressed of the step's tokens when they are committed and all there; NULL: nothing. */
	struct oracle_compress (*compress)(const struct oracle_step *, const char *spec, uint32_t layer);
};

extern const struct oracle_policy oracle_full, oracle_streaming, oracle_delta, oracle_omnikv, oracle_kascade,
	oracle_tidal, oracle_lessismore, oracle_quest, oracle_h2o, oracle_snapkv, oracle_pyramidkv, oracle_rkv,
	oracle_raas, oracle_adakv, oracle_deltakv, oracle_kivi, oracle_palu, oracle_sketch;

/* The policy that a spec names, or NULL, also where the spec leaves layers to a profile. */
const struct oracle_policy *oracle_find(const char *spec);

/* Pages of n records of so many bytes, none of which lies in two (deltakv.c). */
uint32_t oracle_record_pages(const struct skv_model *, uint32_t n, uint32_t bytes);
/* Bytes of n numbers in 16 bits, or in fewer with two shared by each group. */
uint32_t oracle_numbers_bytes(uint32_t n, uint32_t bits, uint32_t bytes_of_16, uint32_t group);

void oracle_sets_free(struct oracle_set *set, uint32_t n_layers);

/* K and V quantized, of all but the last `residual` tokens, `block` at a time (kivi.c). */
struct oracle_compress oracle_quantized(const struct oracle_step *, uint32_t bits, uint32_t group, uint32_t residual,
                                   uint32_t block);

/* ---- parameters (spec.c) ---------------------------------------------------------------------- */

double oracle_number(const char *spec, const char *key); /* 0 when it is not there */
bool oracle_is(const char *spec, const char *key, const char *value);
bool oracle_layer_in(const char *spec, const char *key, uint32_t layer); /* of a list such as 2,7,12 */
/* Is it the layer at 2/5 or 3/5 of the depth, to the nearest? */
bool oracle_fifths(const struct skv_model *, uint32_t layer);
/* Is it `first`, or after it one of these? */
bool oracle_guessed(const struct skv_model *, uint32_t first, uint32_t layer);
/* The parameter `budget` for n entries: a count, or a share of n rounded up and at least `least`; at most n. */
uint32_t oracle_budget(const char *spec, uint32_t n, uint32_t least);

/* ---- scores (scores.c) ------------------------------------------------------------------------ */


/* score[n] of one q head: q·k unscaled. Holes, which have none, are left as they were. */
void oracle_logits(const struct oracle_step *, uint32_t layer, uint32_t head, struct oracle_score *score);
/* score[n]: softmax over all tokens that are there of scale·q·k. */
void oracle_weights(const struct oracle_step *, uint32_t layer, uint32_t head, struct oracle_score *score);
/* The same of heads [from, to), reduced. */
enum oracle_reduce { ORACLE_MAX, ORACLE_SUM };
void oracle_reduced(const struct oracle_step *, uint32_t layer, uint32_t from, uint32_t to, enum oracle_reduce,
                   struct oracle_score *score);
/*
 * Of a weight that a device selects by as soon as it has made it: there weights are in steps of 2^-10 in log2, from 2^-31 to 2^33 times
 * equal ones, and those of a step are equal.
 */
struct oracle_score oracle_stepped(const struct oracle_step *, struct oracle_score);
/* As oracle_reduced(), by the weights that the keys' sketches give, of so many bits (sketch.c). */
void oracle_sketched(const struct oracle_step *, uint32_t layer, uint32_t bits, uint32_t from, uint32_t to, enum oracle_reduce,
                     struct oracle_score *score);
/* U of a page for q[head_dim] of a kv head: Σ_d max(q_d kmin_d, q_d kmax_d). */
struct oracle_score oracle_bound(const struct oracle_step *, uint32_t layer, uint32_t kv, const double *q,
                                 uint32_t page);
/* page[pages]: the sums over the tokens of each page. */
void oracle_pages(const struct oracle_score *token, uint32_t n, struct oracle_score *page);
struct oracle_score oracle_more(struct oracle_score a, struct oracle_score b); /* the larger one */
struct oracle_score oracle_add(struct oracle_score a, struct oracle_score b);
struct oracle_score oracle_sum(struct oracle_score a, struct oracle_score b); /* where a is the sum of many in fp32 */

/* ---- choosing (choose.c) ---------------------------------------------------------------------- */

uint32_t oracle_units(enum oracle_how how, uint32_t n); /* of n tokens */
bool oracle_there(const struct oracle_step *, uint32_t layer, enum oracle_how how, uint32_t entry); /* no hole */

/* A set of this form with nothing in it. */
void oracle_set_new(const struct oracle_step *, struct oracle_set *, enum oracle_how how, uint32_t rows);
/* All that is there. */
void oracle_dense(const struct oracle_step *, uint32_t layer, struct oracle_set *);
/* What `from` chose, of that what is there in this layer. map[rows], which may be NULL: the row of `from`. */
void oracle_reuse(const struct oracle_step *, uint32_t layer, const struct oracle_set *from, const uint8_t *map,
                  struct oracle_set *);
/*
 * Entries [first, end) of a row that are there become chosen. Those of another layer's set too, which is why it
 * is asked with the layer that chooses.
 */
void oracle_take(const struct oracle_step *, uint32_t layer, struct oracle_set *, uint32_t row, uint32_t first,
                 uint32_t end);
/* The best k of entries [first, end) that are there and not chosen so far; ties to the lower index. */
void oracle_best(const struct oracle_step *, uint32_t layer, struct oracle_set *, uint32_t row, uint32_t first,
                 uint32_t end, const struct oracle_score *score, uint32_t k);
/*
 * A set of the last `recent` units (of the k), the first `pin`, and the best k - recent of the rest by the weights of
 * the heads of each row, reduced; of pages by their sums. `bits`: weights are of the keys' sketches; 0: of the keys.
 */
void oracle_select(const struct oracle_step *, uint32_t layer, struct oracle_set *, enum oracle_how how, uint32_t rows,
                   enum oracle_reduce pool, uint32_t bits, uint32_t k, uint32_t recent, uint32_t pin);
/* The bits of the sketches by which the layer chooses: those of layers from `dense` on, with scores=sketch; else 0. */
uint32_t oracle_sketch_bits(const char *spec, uint32_t layer);
/*
 * Layers that choose run dense, but by sketches they attend to what they chose; the others, from `dense` on, attend to what
 * the last of them chose. Dense is also what comes before the first.
 */
void oracle_followers(const struct oracle_step *, const char *spec, struct oracle_set *set,
                      bool (*chooses)(const struct oracle_step *, const char *spec, uint32_t layer),
                      void (*choose)(const struct oracle_step *, const char *spec, uint32_t layer,
                                     struct oracle_set *));
/* Does the layer choose, of two that do: one of `layers`, or the first after `dense`, and the one where 13 is of 32? */
bool oracle_chooses_twice(const struct oracle_step *, const char *spec, uint32_t layer);
/* Does omnikv's filter `layer` choose? `auto`: guessed from the first that is not dense on. */
bool oracle_is_filter(const struct oracle_step *, const char *spec, uint32_t layer);
/* For each candidate, how many of the candidates surely come before it, and how many may. */
void oracle_ranks(const struct oracle_step *, const struct oracle_score *score, const bool *candidate, uint32_t n,
                  uint32_t *ret_sure, uint32_t *ret_may);

/* ---- what kv heads retain (evict.c) --------------------------------------------------------------- */

/* Entries of one kv head of one layer, tokens or pages by their place in the sequence. */
struct oracle_head {
	uint8_t *lives;             /* [units], enum oracle_class: MAY if roundings decided, until seen */
	struct oracle_score *value; /* [units] */
	uint32_t units;             /* that there have been so far */
	uint32_t n;                 /* how many of them live, whichever they are */
	uint32_t stored;            /* where heads share a budget: how many are in memory; else 0, as many as live */
	uint32_t steps, queries;     /* with a window: decode steps since tokens went, rows of a prompt before */
};

struct oracle_kept {
	struct oracle_head *head; /* [n_layers][n_kv_heads] */
	uint32_t n_heads;         /* of these */
	uint32_t granularity;            /* its tokens */
	uint32_t first;           /* layers before it keep everything */
	uint32_t prompt;          /* tokens that the sequence began with */
	bool prompted;            /* no token has been decoded since the last prompt */
};

/* All that is there of the step's tokens, as no policy of this kind has seen it so far. For up to `cap` tokens. */
struct oracle_kept *oracle_kept_new(const struct oracle_step *, uint32_t granularity, uint32_t first, uint32_t cap);
void oracle_kept_free(struct oracle_kept *);
struct oracle_head *oracle_head(const struct oracle_step *, uint32_t layer, uint32_t kv);

/* The layer attends to what each kv head keeps, and to the newest entry. */
void oracle_kept_attend(const struct oracle_step *, uint32_t layer, enum oracle_how how, struct oracle_set *);
/* The same for layers from `dense` on, tokens; others are dense. */
void oracle_kept_tokens(const struct oracle_step *, const char *spec, struct oracle_set *set);
/* All of the sequence's first n tokens that heads have not had so far live now. */
void oracle_kept_add(struct oracle_kept *, uint32_t n);
/* This is what a head was seen to attend to, the newest entry among it: in[units]. */
void oracle_kept_seen(struct oracle_head *, const bool *in, uint32_t units);
/*
 * score[at + 1]: what the query of token `at` gives to the tokens that live up to its own, a mean over the kv head's
 * group. Of others nothing is written.
 */
void oracle_attn_scores(const struct oracle_step *, uint32_t layer, uint32_t kv, uint32_t at,
                        struct oracle_score *score);
/*
 * What stays of entries [0, n): the `recent` latest, those before `pinned`, by score the best of the rest; `keep` in
 * all.
 */
struct oracle_stay {
	uint32_t keep, recent, pinned;
	bool old_first; /* of equals the later one stays, not the earlier one */
	bool ties_hold;
};
void oracle_stay(struct oracle_head *, uint32_t n, const struct oracle_score *score, const struct oracle_stay *);

/*
 * As SnapKV chooses: when more than `most` tokens would be there in the next step, or `again` more than that unless
 * the last step was the first after a prompt, the last `window` tokens stay, and by attention scores of the last
 * queries the best.
 */
struct oracle_snap {
	uint32_t most;   /* tokens that the next step attends to, its own included */
	uint32_t window;
	uint32_t again;  /* at least 1 */
	uint32_t pool;
	double lambda;   /* above 0: R-KV's score */
};
void oracle_snap(const struct oracle_step *, uint32_t layer, const struct oracle_snap *);
/* Its scores of the head's tokens, [n]: accumulated since tokens were evicted, of the last `window` queries at most. */
void oracle_snap_scores(const struct oracle_step *, uint32_t layer, uint32_t kv, const struct oracle_snap *,
                        struct oracle_score *score);
/* Which queries count behind a prompt of so many rows: its last ones, or all of them and those before. */
void oracle_snap_prompt(const struct oracle_step *, uint32_t window, uint32_t rows);

#endif
