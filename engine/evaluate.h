/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/evaluate.h - runs the cases of a task file under several policies and scores the answers.
 *
 * Cases are run in groups of `batch` cases whose answers have similar lengths. The KV cache of a prompt is the same
 * under all policies whose prefill is dense. So only the session of the first of these policies reads a group's
 * prompts. The others of these policies get forks of the prompts' sequences, which share the pages. A fork is handed
 * from session to session under a temporary name. A policy whose prefill is sparse, or that needs scores of a prompt's
 * queries, reads the prompts itself. Then each policy decodes the group: a step decodes one token of every case, each
 * at its own position. A case that ends leaves the batch.
 *
 * The last token of a prompt is not read with the prompt: it is the input of the first decode row, as everywhere in the
 * engine.
 */
#ifndef ENG_EVALUATE_H
#define ENG_EVALUATE_H

#include <signal.h>
#include "engine/divergence.h"
#include "engine/forward.h"
#include "engine/score.h"
#include "engine/tasks.h"

enum eng_mode {
	ENG_FORCED, /* feed the tokens of the true answer, and compare the model's argmax at each of them */
	/*
	 * feed the model's argmax until a token ends the text, or until the answer has ENG_FREE_SLACK tokens more than
	 * the true one; if the true answer does not end with eos, decoding stops at its length
	 */
	ENG_FREE,
};
#define ENG_FREE_SLACK 64u

struct eng_eval {
	const struct eng_model *model;
	const struct eng_tokens *tokens;
	struct skv_client *client;
	struct eng_ranks *ranks; /* NULL: this process has all attention heads */
	uint32_t kv_dtype, first_dtype; /* dtype of the pages; dtype of the first policy's pages */
	const char *const *policies; /* policy specs */
	uint32_t n_policies;
	const struct eng_cases *cases;
	enum eng_mode mode;
	uint32_t batch;
	uint32_t chunk; /* maximum number of rows of a prompt in a step */
	/*
	 * in forced mode: compares the distribution of each row with the first policy's, which takes memory of `vocab`
	 * floats a row
	 */
	bool compare;
	bool quiet;
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	uint32_t recall;                   /* attention recall is measured in one of this many steps; 0: never */
	const volatile sig_atomic_t *stop; /* a signal handler sets it to stop at the next step */
};

/* The result of one case under one policy. */
struct eng_result {
	struct eng_score score;
	struct eng_likelihood likelihood; /* only in forced mode */
	struct eng_divergence divergence; /* only if eng_eval.compare is set */
	char *said;                   /* text of the answer, only in free mode */
	uint32_t decode_len;          /* number of decode rows */
	double seconds;               /* time of the case's decode steps, divided evenly among the cases of each step */
	/* tokens attended to, and tokens that dense attention attends to: sums over decode rows and layers */
	uint64_t attended, causal;
	uint64_t resident, pages;     /* pages in memory, and pages of dense attention, when the case ends */
	uint64_t recall_layers;       /* number of recall measurements, over layers and steps */
	double recall;                /* sum of the measured recalls */
};

/*
 * Runs all cases under all policies. *ret_results is [policy][case]; the caller frees it with eng_results_free().
 * Returns 0 or a negative errno; -EINTR if `stop` was set. No sequence stays in the daemon, not even after an error.
 */
int eng_evaluate(const struct eng_eval *eval, struct eng_result **ret_results, struct eng_error *err);
void eng_results_free(const struct eng_eval *eval, struct eng_result *results);

#endif
