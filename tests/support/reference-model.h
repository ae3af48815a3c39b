/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-model.h - a model without weights: keys, values and queries computed from numbers, and
 * attention over them in plain double precision.
 *
 * Each token of a sequence has a content number, which alone determines its K, V and q rows of every layer. Thus any
 * process can continue any sequence and check any output if it knows the content numbers. The reference model stores
 * them for each of its sequences, and computes by itself which pages a policy must evict and select.
 */
#ifndef SKV_TEST_REFERENCE_MODEL_H
#define SKV_TEST_REFERENCE_MODEL_H

#include <stdbool.h>
#include <string.h>
#include <sparsekv/client.h>

#define REFMODEL_MAX_LAYERS 16u

/* A policy as the reference computes it. */
struct refmodel_policy {
	enum { REFMODEL_FULL, REFMODEL_STREAMING, REFMODEL_DELTA, REFMODEL_QUEST } kind;
	struct skv_budget budget;
	uint32_t floor;  /* minimum of the budget */
	uint32_t sinks;  /* of a window */
	uint32_t recent, recent_floor, pin; /* of a selection of pages; by bounds: `recent` alone */
	bool mean; /* bounds of mean queries */
	uint32_t layers; /* bit set of those that select for others */
	uint32_t dense;
};

/* The expected contents of a sequence. */
struct refmodel_seq {
	struct skv_seq *seq;
	uint32_t len, cap;
	uint64_t *content; /* [cap] */
	float *kv;         /* [cap][n_layers][K, V][n_kv_heads][head_dim], as pages store them */
	bool *hole;        /* [n_layers][cap / SKV_PAGE_TOKENS] */
	uint64_t attended, causal;
	const struct refmodel_policy *own; /* its policy; NULL: that of the refmodel */
};

struct refmodel {
	struct skv_model model;
	struct skv_session *session;
	struct refmodel_policy policy;
	/* policy after a swap: the reference uses it once the session reports that it runs */
	struct refmodel_policy next;
	char next_spec[160]; /* "": no swap is pending */
	double worst; /* largest error of an output so far */
	double tolerance; /* of outputs, if rows are compressed; 0: as for rows */
	bool in_place; /* refmodel_run() and similar functions: the output replaces q */
	bool measures; /* the session measures recall in every step; it is compared, too */
	uint64_t checked, skipped; /* outputs compared; rows whose selection depended on rounding */
};

/*
 * Returns whether a canonical spec means the same as `spec`, which has the first parameters; the others have their
 * defaults.
 */
static inline bool refmodel_runs(const char *canonical, const char *spec)
{
	const size_t n = strlen(spec);

	return !strncmp(canonical, spec, n) && (!canonical[n] || canonical[n] == '?' || canonical[n] == '&');
}

/* Returns a policy with random parameters, and its spec (160 bytes): canonical, except for the prefill parameter. */
struct refmodel_policy refmodel_policy(const struct skv_model *m, char *spec);
/* Makes a random small model with pages of `dtype`. */
void refmodel_model(struct skv_model *m, const char *name, uint32_t dtype, uint32_t max_tokens);
void refmodel_seq_init(struct refmodel *w, struct refmodel_seq *q, struct skv_seq *seq, uint32_t max_tokens);
void refmodel_seq_copy(struct refmodel *w, struct refmodel_seq *to, const struct refmodel_seq *from,
                       struct skv_seq *seq);
void refmodel_seq_deinit(struct refmodel_seq *q);

/* Appends tokens to the reference, as a committed step does. */
void refmodel_seq_append(struct refmodel *w, struct refmodel_seq *q, const uint64_t *content, uint32_t n, bool prompt);

/* What a step appends; content numbers follow the sequence's length. */
struct refmodel_item {
	struct refmodel_seq *seq;
	uint32_t n_tokens;
	bool prompt;
	const uint64_t *content; /* [n_tokens] */
	uint32_t rejected;       /* the last ones of n_tokens, which are not accepted */
};

/*
 * Runs a whole step over the items and compares every output with the reference (of long prompts a sample of the rows);
 * a difference fails the test. Returns 0, or the library's error; then nothing has changed. `abort_at`: aborts the step
 * before that layer (n_layers: before the commit); -1: does not.
 */
int refmodel_step(struct refmodel *w, const struct refmodel_item *items, uint32_t n, int abort_at);

/* Keeps the sequence's first n tokens, as skv_seq_truncate() does. Counters of attended tokens stay. */
void refmodel_seq_cut(struct refmodel *w, struct refmodel_seq *q, uint32_t n);

/* Appends n tokens of content `key`, as one chunk. No call may fail. */
void refmodel_feed(struct refmodel *w, struct refmodel_seq *q, uint64_t key, uint32_t n, bool prompt);

/*
 * Compares out[head_dim] with attention of token n - 1 over the visible of the sequence's n tokens. Fails the test on a
 * difference.
 */
void refmodel_compare(struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, const float *out);

/*
 * A step in which these sequences decode one token each, not compared with the reference. out (may be NULL):
 * [n_layers][n][n_heads][head_dim].
 */
int refmodel_decode(struct refmodel *w, struct skv_seq *const *seqs, const uint64_t *content, uint32_t n, float *out);

/*
 * The same for n tokens of one sequence, in one chunk. out (may be NULL): [n_layers][n][n_heads][head_dim]. before_end
 * (may be NULL) is called before skv_step_end().
 */
int refmodel_run(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt, float *out,
              void (*before_end)(void));

/* The same for any items, with n tokens in total; `accepted` (may be NULL): how many of each item count. */
int refmodel_items(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                   uint32_t n, const uint32_t *accepted, float *out);

/* The same; ending(true) is called before skv_step_end() and ending(false) after it. */
int refmodel_items_ended(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                         uint32_t n, const uint32_t *accepted, void (*ending)(bool));

/* As refmodel_run(), for n tokens of a prompt of which `later` more follow. */
int refmodel_read(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, uint32_t later, float *out,
               void (*before_end)(void));

/* The same without attention. Only prompts may do that; otherwise it returns -EINVAL, and the step is still open. */
int refmodel_append(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt);

/* The token id for a content number. */
static inline int32_t refmodel_token(uint64_t content)
{
	return (int32_t)(content & 0x7fffffff);
}

/* The content number of position `i` of a sequence with content `key`. */
uint64_t refmodel_content(uint64_t key, uint32_t i);

/*
 * Fills in the content of an item of the sequence with content `key`. Sometimes it rejects some of its rows or cancels
 * the item; rejected rows have other content.
 */
void refmodel_speculate(struct refmodel_item *it, uint64_t key, uint64_t *content);

#endif
