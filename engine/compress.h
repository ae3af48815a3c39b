/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/compress.h - make a compressor for a model from texts, without training.
 *
 * The model reads the texts densely; the K and V of all layers and tokens that a policy would compress are added up
 * (residuals.h), and their principal directions are the compressor (compressor.h).
 */
#ifndef ENG_COMPRESS_H
#define ENG_COMPRESS_H

#include <stdio.h>
#include "engine/compressor.h"
#include "engine/observe.h"

struct eng_compress {
	const struct eng_model *model;
	struct skv_session *session; /* of the policy full, on the host */
	const struct eng_text *texts;
	uint32_t n, longest; /* texts; tokens of the longest */
	bool palu;           /* no references, K and V apart; else deltakv's */
	uint32_t width;      /* of a code; 0: a quarter of x, palu's half */
	uint32_t stride, near;
	bool quiet;
	const volatile sig_atomic_t *stop;
};

/* Write it to `path`, and on `to` what of each layer's x it loses. -EINVAL a width that does not fit, -EINTR. */
int eng_compress(const struct eng_compress *c, const char *path, FILE *to, struct eng_error *err);

#endif
