/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/evaluate.h - runs task cases under several policies and scores the answers.
 *
 * Cases are run in groups of `batch` cases of similar length. A group's prompts are read once, by the session of the
 * first policy whose prefill is dense: the KV cache of a prompt is the same for all such policies. The other policies
 * get forks of it, which share the prompt's pages and have a name while they are handed from session to session. A
 * policy that needs scores of a prompt's queries, or whose prefill is sparse, reads the prompt itself. Then each
 * policy decodes the group, all its cases in one step, each at its own position; a case that ends leaves the batch.
 *
 * The last token of a prompt is the first decode row, as everywhere in the engine.
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
	/*
	 * feed the argmax until a token ends the text, or until ENG_FREE_SLACK tokens beyond the true answer; an
	 * answer without eos has no slack
	 */
	ENG_FREE,
};
#define ENG_FREE_SLACK 64u

struct eng_eval {
	const struct eng_model *model;
	const struct eng_tokens *tokens;
	struct skv_client *client;
	struct eng_ranks *ranks; /* NULL: this process has all heads */
	uint32_t kv_dtype, first_dtype; /* dtype of the pages; dtype for the first policy */
	const char *const *policies; /* specs */
	uint32_t n_policies;
	const struct eng_cases *cases;
	enum eng_mode mode;
	uint32_t batch;
	uint32_t chunk; /* most prompt rows in a step */
	/* forced mode: compare each row's distribution with the first policy's; needs vocab floats a row */
	bool compare;
	bool quiet;
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	uint32_t recall;                   /* measure attention recall in one of this many steps; 0: never */
	const volatile sig_atomic_t *stop; /* set by a signal handler: stop at the next step */
};

/* The result of one case under one policy. */
struct eng_result {
	struct eng_score score;
	struct eng_likelihood likelihood; /* forced mode only */
	struct eng_divergence divergence; /* `compare` only */
	char *said;                   /* free mode only: the text of the answer */
	uint32_t decode_len;          /* decode rows */
	double seconds;               /* this case's share of the time of its steps */
	uint64_t attended, causal;    /* token counts, summed over decode rows and layers */
	uint64_t resident, pages;     /* when the case ends */
	uint64_t recall_layers;       /* number of layers whose recall was measured, over all steps ... */
	double recall;                /* ... and the sum of their recalls */
};

/*
 * Runs everything. *ret_results: [policy][case], to be freed with eng_results_free(). Returns a negative errno;
 * -EINTR if `stop` was set. In all cases no sequence stays in the daemon.
 */
int eng_evaluate(const struct eng_eval *eval, struct eng_result **ret_results, struct eng_error *err);
void eng_results_free(const struct eng_eval *eval, struct eng_result *results);

#endif
