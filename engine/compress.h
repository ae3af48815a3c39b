/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compress.h - computes a compressor of K and V for a model from texts, without training.
 *
 * The model reads the texts with dense attention. K and V of the tokens that a policy would compress are accumulated in
 * all layers (residuals.h). The projections of the compressor are the principal directions of what was accumulated
 * (compressor.h).
 */
#ifndef ENG_COMPRESS_H
#define ENG_COMPRESS_H

#include <stdio.h>
#include "engine/compressor.h"
#include "engine/observe.h"

struct eng_compress {
	const struct eng_model *model;
	struct skv_session *session; /* a session of the policy full on the host */
	const struct eng_text *texts;
	uint32_t n, longest; /* number of texts; number of tokens of the longest text */
	/* makes a compressor for the policy palu: no references, K and V apart; false: for the policy deltakv */
	bool palu;
	uint32_t width;      /* numbers in a code; 0: a quarter of x (K and V of a token) for deltakv, half for palu */
	uint32_t stride, near;
	bool quiet;
	const volatile sig_atomic_t *stop;
};

/*
 * Writes the compressor to the file `path`, and prints each layer's loss to `to`. Returns 0, -EINVAL if the model's
 * shape does not allow `width`, -EINTR if interrupted, or another negative errno.
 */
int eng_compress(const struct eng_compress *c, const char *path, FILE *to, struct eng_error *err);

#endif
