/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compress.h - computes a compressor for a model from texts, without training.
 *
 * The model reads the texts densely. The K and V of all layers and tokens that a policy would compress are
 * accumulated (residuals.h); their principal directions are the compressor (compressor.h).
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
	uint32_t n, longest; /* number of texts; tokens of the longest */
	bool palu;           /* no references, K and V separate; otherwise deltakv's codec */
	uint32_t width;      /* of a code; 0: a quarter of x (half for palu) */
	uint32_t stride, near;
	bool quiet;
	const volatile sig_atomic_t *stop;
};

/*
 * Writes the compressor to `path`, and prints each layer's loss to `to`. -EINVAL: `width` does not fit; -EINTR:
 * interrupted.
 */
int eng_compress(const struct eng_compress *c, const char *path, FILE *to, struct eng_error *err);

#endif
