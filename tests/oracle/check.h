/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/check.h - what is seen of a step, and what it must be. */
#ifndef SKV_ORACLE_CHECK_H
#define SKV_ORACLE_CHECK_H

#include "tests/oracle/case.h"
#include "tests/oracle/verify.h"

/* What one layer attended to of one sequence, and what came of it. */
struct seen {
	struct skv_selection_info attended;
	uint32_t units; /* of the sequence */
	bool *in;       /* [rows][units]: attended to? */
	float *out;     /* [n_heads][head_dim] */
};

/* All of a step. */
struct take {
	struct seen *seen; /* [n_seqs][n_layers] */
};
struct take take_new(const struct oracle_case *);
void take_free(struct take *, const struct oracle_case *);
struct seen *take_at(const struct take *, const struct oracle_case *, uint32_t seq, uint32_t layer);

/* The session has the sequence now: one that is `made` from another session. */
void check_taken(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq);
/* The sequence's first n tokens are there, the last `rows` of them as a prompt. */
void check_prompt(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, uint32_t n, uint32_t rows);

/* The session begins a step with the sequence: of a prompt, or it decodes. */
void check_ready(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, bool prompt);

/*
 * Ask what the layer attended to of an item, whose sequence has n tokens in the step. All of these: false when it is
 * not as it must be, which is noted then.
 */
bool check_seen(struct verify *, struct skv_session *, uint32_t layer, uint32_t item, uint32_t n, struct seen *);
/* The sequence's lists and outputs are right. */
bool check_step(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, const struct take *);
/* Outputs of n rows of a prompt behind its tokens are attention over all that is there. */
bool check_prompt_rows(struct verify *, const struct oracle_case *, uint32_t seq, uint32_t layer, uint32_t n,
                       const float *out);
/* Two attempts at a step saw the same. */
bool check_same(struct verify *, const struct oracle_case *, uint32_t seq, const struct take *, const struct take *);
/* After the step: counters and evictions. `before`: what had been attended. */
bool check_end(struct verify *, struct oracle_case *, struct skv_session *, uint32_t seq, const struct take *,
               uint64_t before);

#endif
