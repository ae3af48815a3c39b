/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/verify.h - is a policy that a daemon has loaded what it should be?
 *
 * Decodes random sequences under it, as a client, and checks each step:
 *
 *   - the units that a layer says it attended to ascend, are within the sequence and not above the budget
 *   - the output is double-precision attention over exactly these
 *   - the counters of attended tokens agree with them
 *   - the same step, begun again, alone or in another order, gives the same units and the same output
 *   - sequences that `full` and `streaming` have handled, with holes, are taken over, and they take over its own
 *   - where layers compress tokens: the same of prompts over what is compressed
 *
 * The entries listed under a policy that the oracle knows are those that the oracle finds, evicted pages too; those of
 * any other must have the newest token among them. What a compressor makes of tokens is its own business: of layers
 * that attend to compressed ones, outputs are checked only where it is said to be the identity.
 */
#ifndef SKV_ORACLE_VERIFY_H
#define SKV_ORACLE_VERIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/client.h>

/* One layer's rows of a step in the host's memory, fp32. */
struct verify_rows {
	uint32_t n;
	float *q, *k, *v, *out;
};

/* Where the pages and the arithmetic are. */
struct verify_backend {
	uint32_t device; /* as in struct skv_model */
	void *stream;
	/* skv_attend with these rows, brought there and back */
	int (*attend)(struct skv_session *, const struct skv_model *, uint32_t layer, struct verify_rows *);
	/* how far off what is computed there may be: see struct oracle_step; of an output, where values are up to 1 */
	double logit_slack, kept_slack, output_slack;
	bool device_rounds; /* quantized K and V to the pool's type, products of sketches to 16 bits */
};
extern const struct verify_backend verify_on_host;

struct verify {
	/* what is wanted */
	struct skv_client *client;
	const char *spec;
	uint64_t seed; /* its last digit: how long sequences are, 0 to 5 */
	uint32_t cases; /* one sequence's decode step, all layers, each */
	const struct verify_backend *backend;
	const char *model; /* name of the models that are opened: nobody else's */
	const struct skv_model *shape; /* layers, heads and head_dim of all of them; NULL: any */
	uint32_t identity; /* numbers of a code, where the spec's compressor loses nothing but to rounding; else 0 */

	/* what was seen */
	uint32_t done;
	uint32_t rounds, adopted; /* models tried, and those with sequences of other policies */
	uint32_t sparse;   /* cases where a layer left out something that was there */
	uint64_t lists, unsure; /* lists seen, those that rounding decides */
	double worst;      /* largest difference of an output of tokens that were not compressed */
	double decompressed;    /* of others: the largest part of what it may be */
	bool unchecked;    /* outputs of tokens that a compressor has compressed were left alone */
	bool known;        /* the oracle knows the policy */
	uint64_t bad_seed; /* verification with this seed begins with the case that failed */
	char bad[600];     /* what failed, "" when nothing did */
};

/* True when all cases are done and none has failed; else `bad` says why not. */
bool verify_policy(struct verify *);

#endif
