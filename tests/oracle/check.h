/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/check.h - observes what a step does, and checks it. */
#ifndef SKV_ORACLE_CHECK_H
#define SKV_ORACLE_CHECK_H

#include "tests/oracle/case.h"
#include "tests/oracle/verify.h"

/* What one layer attended to in one sequence, and the output. */
struct seen {
	struct skv_selection_info attended;
	uint32_t units; /* entries of the sequence: pages or tokens */
	bool *in;       /* [rows][units]: is the entry attended to? */
	float *out;     /* [n_heads][head_dim] */
};

/* Observations of a whole step. */
struct take {
	struct seen *seen; /* [n_seqs][n_layers] */
};
struct take take_new(const struct oracle_case *);
void take_free(struct take *, const struct oracle_case *);
struct seen *take_at(const struct take *, const struct oracle_case *, uint32_t seq, uint32_t layer);

/* The session now has the sequence; one that is `made` comes from another session. */
void check_taken(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq);
/* The sequence's first n tokens are in memory, the last `rows` of them from a prompt. */
void check_prompt(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, uint32_t n, uint32_t rows);

/* The session begins a step with the sequence: a prompt or a decode step. */
void check_ready(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, bool prompt);

/*
 * Asks what the layer attended to for an item, whose sequence has n tokens in the step. All these functions return
 * false if something is wrong, and record it.
 */
bool check_seen(struct verify *, struct skv_session *, uint32_t layer, uint32_t item, uint32_t n, struct seen *);
/* Are the sequence's lists and outputs right? */
bool check_step(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, const struct take *);
/* Are the outputs of n rows of a prompt after the sequence's tokens attention over everything in memory? */
bool check_prompt_rows(struct verify *, const struct oracle_case *, uint32_t seq, uint32_t layer, uint32_t n,
                       const float *out);
/* Did two attempts at a step attend to the same, with the same outputs? */
bool check_same(struct verify *, const struct oracle_case *, uint32_t seq, const struct take *, const struct take *);
/* After the step: checks counters and evictions. `before`: counter of attended tokens before the step. */
bool check_end(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, const struct take *,
               uint64_t before);

#endif
