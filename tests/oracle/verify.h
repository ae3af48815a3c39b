/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/verify.h - is a policy that a daemon has loaded what it should be?
 *
 * Decodes random sequences under the policy, as a client, and checks each step:
 *
 *   - the entries that a layer says it attended to ascend, lie within the sequence and do not exceed the budget
 *   - the output is double-precision attention over exactly these
 *   - the counters of attended tokens agree with them
 *   - the same step, begun again, alone or in another order, gives the same entries and the same output
 *   - it takes over sequences that `full` and `streaming` have run, with holes, and they take over its own
 *   - if layers compress tokens: the same for prompts after compressed tokens
 *
 * If the oracle knows the policy, the listed entries and evicted pages must be those that the oracle finds; under any
 * other policy the newest token must be among them. The oracle does not know what a compressor does: outputs of layers
 * that attend to compressed tokens are checked only if the compressor is declared to be the identity.
 */
#ifndef SKV_ORACLE_VERIFY_H
#define SKV_ORACLE_VERIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/client.h>

/* One layer's rows of a step in host memory, fp32. */
struct verify_rows {
	uint32_t n;
	float *q, *k, *v, *out;
};

/* Where the pages are and the arithmetic runs. */
struct verify_backend {
	uint32_t device; /* as in struct skv_model */
	void *stream;
	/* skv_attend with these rows, copied to the backend and back */
	int (*attend)(struct skv_session *, const struct skv_model *, uint32_t layer, struct verify_rows *);
	/*
	 * possible error of what is computed there: see struct oracle_step; output_slack is for outputs of values up to
	 * 1
	 */
	double logit_slack, kept_slack, output_slack;
	bool device_rounds; /* rounds quantized K and V to the pool's type, products of sketches to 16 bits */
};
extern const struct verify_backend verify_on_host;

struct verify {
	/* input */
	struct skv_client *client;
	const char *spec;
	uint64_t seed; /* the last digit determines the length of sequences, 0 to 5 */
	uint32_t cases; /* number of cases; each is a decode step of one sequence, all layers */
	const struct verify_backend *backend;
	const char *model; /* name of the models that are opened, not used otherwise */
	const struct skv_model *shape; /* layers, heads and head_dim of all models; NULL: any */
	/* numbers of a code, if the spec's compressor loses nothing except by rounding; else 0 */
	uint32_t identity;

	/* results */
	uint32_t done;
	uint32_t rounds, adopted; /* models tried, and those with sequences of other policies */
	uint32_t sparse;   /* cases in which a layer left out an entry that was in memory */
	uint64_t lists, unsure; /* lists observed, and those that depend on rounding */
	double worst;      /* largest error of an output of tokens that were not compressed */
	double decompressed;    /* of other outputs: largest error, as a share of the possible error */
	bool unchecked;    /* outputs of tokens that a compressor has compressed were not checked */
	bool known;        /* the oracle knows the policy */
	uint64_t bad_seed; /* verification with this seed begins with the case that failed */
	char bad[600];     /* what failed; "": nothing */
};

/* True if all cases are done and none has failed; else `bad` says why. */
bool verify_policy(struct verify *);

#endif
