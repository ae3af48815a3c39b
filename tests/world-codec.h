/* SPDX-License-Identifier: Apache-2.0 */
/* tests/world-codec.h - worlds whose tokens can be packed: models that say how they turn keys, and random compressors. */
#ifndef SKV_TEST_WORLD_CODEC_H
#define SKV_TEST_WORLD_CODEC_H

#include "tests/world.h"

#define WORLD_STRIDE 5u /* of references, each with WORLD_NEAR others as its nearest */
#define WORLD_NEAR 3u
#define WORLD_CODES "stride=5&refs=3" /* the same in a spec */

/* Make of a world's model one that can be packed. */
void world_packable(struct skv_model *m);
/* Write a compressor of all its layers: random, of a seed, or with 0 one that changes nothing. */
void world_codec(const struct skv_model *m, uint64_t seed, const char *path);

#endif
