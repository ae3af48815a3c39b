/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-model.h - a model without weights: keys, values and queries made of numbers, and what
 * attention over them must give, in plain double precision.
 *
 * Each token of a sequence has a content number; K, V and q rows of every layer follow from it and
 * from nothing else. So any process can continue any sequence, and any output can be checked, knowing
 * the content numbers alone. The reference model keeps them for each of its sequences, and keeps by itself which
 * pages a policy must have evicted and which it must have chosen.
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
	uint32_t floor;  /* of the budget */
	uint32_t sinks;  /* streaming */
	uint32_t recent, recent_floor, pin; /* delta; quest: recent */
	bool mean; /* quest:sglang */
	uint32_t layers; /* delta: bit set of the layers that select */
	uint32_t dense;
};

/* One sequence as it must be. */
struct refmodel_seq {
	struct skv_seq *seq;
	uint32_t len, cap;
	uint64_t *content; /* [cap] */
	float *kv;         /* [cap][n_layers][K, V][n_kv_heads][head_dim], as the pages keep it */
	bool *hole;        /* [n_layers][cap / SKV_PAGE_TOKENS] */
	uint64_t attended, causal;
	const struct refmodel_policy *own; /* what it runs; NULL: what the world runs */
};

struct refmodel {
	struct skv_model model;
	struct skv_session *session;
	struct refmodel_policy policy;
	/* what was swapped to: the reference follows when the session says that it runs it */
	struct refmodel_policy next;
	char next_spec[160]; /* "" = no swap is on its way */
	double worst; /* largest difference of an output so far */
	double tolerance; /* of outputs, where rows were compressed; 0: as of rows */
	bool in_place; /* refmodel_run() and the like: what comes out takes the place of q */
	bool measures; /* the session measures recall in every step: it is compared, too */
	uint64_t checked, skipped; /* outputs looked at; rows whose selection hung on a rounding */
};

/*
 * Does a canonical spec say what this one does, which gives the first parameters, and leaves the rest as they are by
 * default?
 */
static inline bool refmodel_runs(const char *canonical, const char *spec)
{
	const size_t n = strlen(spec);

	return !strncmp(canonical, spec, n) && (!canonical[n] || canonical[n] == '?' || canonical[n] == '&');
}

/* A policy of random parameters, and its spec: in canonical form, but for how prompts attend (160 bytes). */
struct refmodel_policy refmodel_policy(const struct skv_model *m, char *spec);
/* Random small shapes; `dtype` of the pages. */
void refmodel_model(struct skv_model *m, const char *name, uint32_t dtype, uint32_t max_tokens);
void refmodel_seq_init(struct refmodel *w, struct refmodel_seq *q, struct skv_seq *seq, uint32_t max_tokens);
void refmodel_seq_copy(struct refmodel *w, struct refmodel_seq *to, const struct refmodel_seq *from,
                       struct skv_seq *seq);
void refmodel_seq_deinit(struct refmodel_seq *q);

/* Record that the sequence has got these tokens: what a committed step does to the reference. */
void refmodel_seq_append(struct refmodel *w, struct refmodel_seq *q, const uint64_t *content, uint32_t n, bool prompt);

/* What the step is to append: content numbers beyond the sequence's length. */
struct refmodel_item {
	struct refmodel_seq *seq;
	uint32_t n_tokens;
	bool prompt;
	const uint64_t *content; /* [n_tokens] */
	uint32_t rejected;       /* of them, the last ones: they do not count */
};

/*
 * A whole step over the items, every output compared with the reference (a sample of the rows of long
 * prompts). 0, or what the library returned; then nothing has changed. Fails the test on a difference.
 * `abort_at`: give the step up in front of that layer (n_layers: of the commit), or -1.
 */
int refmodel_step(struct refmodel *w, const struct refmodel_item *items, uint32_t n, int abort_at);

/* The sequence's first n tokens are left: as of skv_seq_truncate(). What was attended to stays counted. */
void refmodel_seq_cut(struct refmodel *w, struct refmodel_seq *q, uint32_t n);

/* n tokens of the sequence that `key` names, as one chunk; nothing may fail. */
void refmodel_feed(struct refmodel *w, struct refmodel_seq *q, uint64_t key, uint32_t n, bool prompt);

/* Is out[head_dim] what token n - 1 of the sequence has of the visible of its n tokens? Fails the test if not. */
void refmodel_compare(struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, const float *out);

/*
 * A step in which these sequences decode one token each, without the reference. out (may be NULL):
 * [n_layers][n][n_heads][head_dim].
 */
int refmodel_decode(struct refmodel *w, struct skv_seq *const *seqs, const uint64_t *content, uint32_t n, float *out);

/*
 * The same for n tokens of one sequence, one chunk. out (may be NULL): [n_layers][n][n_heads][head_dim].
 * before_end (may be NULL) is called in front of skv_step_end.
 */
int refmodel_run(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt, float *out,
              void (*before_end)(void));

/* The same for any items, of n tokens together, of which `accepted` (may be NULL) says how many count. */
int refmodel_items(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                   uint32_t n, const uint32_t *accepted, float *out);

/* The same, and skv_step_end is called between ending(true) and ending(false). */
int refmodel_items_ended(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                         uint32_t n, const uint32_t *accepted, void (*ending)(bool));

/* n tokens of a prompt that has so many more: as refmodel_run. */
int refmodel_read(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, uint32_t later, float *out,
               void (*before_end)(void));

/* The same without attention. Only prompts may, so what it returns may be -EINVAL, and the step is open then. */
int refmodel_append(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt);

/* The token id that a content number is recorded as. */
static inline int32_t refmodel_token(uint64_t content)
{
	return (int32_t)(content & 0x7fffffff);
}

/* A content number for position `i` of a sequence that is known by a number. */
uint64_t refmodel_content(uint64_t key, uint32_t i);

/*
 * Fill in the content of an item of the sequence that `key` names; then, now and then, some of its rows are rejected, or
 * it is cancelled, and what is rejected is no content of the sequence.
 */
void refmodel_speculate(struct refmodel_item *it, uint64_t key, uint64_t *content);

#endif
