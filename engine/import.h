/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/import.h - anchors and head maps that others have published, as a profile.
 *
 * Kascade's authors publish a file for each model, MODEL_layers_0_2_8_13_14.npy: NumPy's format, version 1 to 3, an array
 * [layers][kv heads] of little-endian whole numbers of 4 or 8 bytes. An entry is the anchor's kv head whose tokens the
 * layer's kv head reuses, as in our head_map; which layers are anchors is in the file's name alone.
 */
#ifndef ENG_IMPORT_H
#define ENG_IMPORT_H

#include <stdio.h>
#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/error.h"

struct eng_import {
	const char *source; /* the file's name, in the path */
	uint32_t n_anchors, anchors[SKV_MAX_LAYERS]; /* ascending */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
};

/* -EINVAL with a text that says what of the file does not fit the format, or the model; -errno of the file. */
int eng_import_read(struct eng_import *ret, const char *path, const struct eng_config *c, struct eng_error *err);

/* As a profile of the model. Errors of writing are left in the stream. -ENOMEM. */
int eng_import_write(const struct eng_import *i, const struct eng_config *c, const char *model, FILE *to,
                     struct eng_error *err);

#endif
