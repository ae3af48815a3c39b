/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/reference-codec.h - reference models whose KV cache can be compressed: with RoPE, and random codecs. */
#ifndef SKV_TEST_REFERENCE_MODEL_CODEC_H
#define SKV_TEST_REFERENCE_MODEL_CODEC_H

#include "tests/support/reference-model.h"

#define REFMODEL_STRIDE 5u /* of references, each with REFMODEL_NEAR others as its nearest */
#define REFMODEL_NEAR 3u
#define REFMODEL_CODES "stride=5&n_refs=3" /* the same in a spec */

/* Make the reference model one whose KV cache can be compressed. */
void refmodel_packable(struct skv_model *m);
/* Write a compressor of all its layers: random, of a seed, or with 0 one that changes nothing. */
void refmodel_codec(const struct skv_model *m, uint64_t seed, const char *path);
/* The same without references. */
void refmodel_codec_alone(const struct skv_model *m, uint64_t seed, const char *path);

#endif
