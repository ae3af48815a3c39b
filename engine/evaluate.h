/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/evaluate.h - run task cases under several policies and score what comes out.
 *
 * Cases are run in groups of `batch`, alike in length. A group's prompts are read once, by the session of the
 * first policy whose prompts attend to all: what they leave in the pool is the same for all that do. These
 * get forks of it, named for the moment of the hand-over from session to session, which share the prompt's pages;
 * one whose scores come from a prompt's queries, or whose prompt is sparse, reads it on its own. Then each policy
 * decodes the group, all its cases in one step, each at its own position; a case that ends leaves the batch.
 *
 * The last token of a prompt is the first decode row, as in every use of the engine.
 */
#ifndef ENG_EVALUATE_H
#define ENG_EVALUATE_H

#include <signal.h>
#include "engine/divergence.h"
#include "engine/forward.h"
#include "engine/score.h"
#include "engine/tasks.h"

enum eng_mode {
	ENG_FORCED, /* feed the true answer, compare every argmax */
	/* feed the argmax until a text's end, or ENG_FREE_SLACK tokens beyond the true answer; without eos that is as long */
	ENG_FREE,
};
#define ENG_FREE_SLACK 64u

struct eng_eval {
	const struct eng_model *model;
	const struct eng_tokens *tokens;
	struct skv_client *client;
	struct eng_ranks *ranks; /* NULL: this process has all heads */
	uint32_t kv_dtype, first_dtype; /* of the pages; of the first policy's */
	const char *const *policies; /* specs */
	uint32_t n_policies;
	const struct eng_cases *cases;
	enum eng_mode mode;
	uint32_t batch;
	uint32_t chunk; /* prompt rows of a step, at most */
	bool compare; /* forced mode: each row's distribution with the first policy's; a case's take vocab floats a row */
	bool quiet;
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	uint32_t recall;                   /* measure it in one step of so many; 0: never */
	const volatile sig_atomic_t *stop; /* raised by a signal: give up at the next step */
};

/* What one case gave under one policy. */
struct eng_result {
	struct eng_score score;
	struct eng_likelihood likelihood; /* forced mode only */
	struct eng_divergence divergence; /* `compare` only */
	char *said;                   /* free mode only: the answer as text */
	uint32_t decode_len;          /* decode rows */
	double seconds;               /* its share of the steps' time */
	uint64_t attended, causal;    /* tokens, over decode rows and layers */
	uint64_t resident, pages;     /* at its end */
	uint64_t recall_layers;       /* times that a layer's recall was measured ... */
	double recall;                /* ... and the sum of the figures */
};

/*
 * Run everything. *ret_results: [policy][case], to be freed with eng_results_free(). Negative errno; -EINTR when
 * `stop` was raised. Nothing is left behind in the daemon either way.
 */
int eng_evaluate(const struct eng_eval *eval, struct eng_result **ret_results, struct eng_error *err);
void eng_results_free(const struct eng_eval *eval, struct eng_result *results);

#endif
