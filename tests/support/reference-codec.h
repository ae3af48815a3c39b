/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-codec.h - reference models whose KV cache can be compressed: with RoPE, and with random
 * codecs.
 */
#ifndef SKV_TEST_REFERENCE_MODEL_CODEC_H
#define SKV_TEST_REFERENCE_MODEL_CODEC_H

#include "tests/support/reference-model.h"

#define REFMODEL_STRIDE 5u /* every 5th token is a reference; each token refers to the REFMODEL_NEAR nearest ones */
#define REFMODEL_NEAR 3u
#define REFMODEL_CODES "stride=5&n_refs=3" /* the same in a spec */

/* Changes the model so that its KV cache can be compressed. */
void refmodel_packable(struct skv_model *m);
/* Writes a codec of all its layers: random from a seed; or, for seed 0, one that changes nothing. */
void refmodel_codec(const struct skv_model *m, uint64_t seed, const char *path);
/* The same without references. */
void refmodel_codec_alone(const struct skv_model *m, uint64_t seed, const char *path);

#endif
