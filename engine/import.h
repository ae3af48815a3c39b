/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/import.h - converts published anchor layers and head maps to a profile.
 *
 * Kascade's authors publish a file for each model, such as MODEL_layers_0_2_8_13_14.npy: NumPy's format, version 1 to
 * 3, an array [layers][kv heads] of little-endian integers of 4 or 8 bytes. An entry is the anchor layer's kv head
 * whose tokens the layer's kv head reuses, as in our head_map. Only the file's name tells which layers are anchors.
 */
#ifndef ENG_IMPORT_H
#define ENG_IMPORT_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/error.h"

struct eng_import {
	const char *source; /* the file's name; points into the path */
	uint32_t n_anchors, anchors[SKV_MAX_LAYERS]; /* ascending */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
};

/* -EINVAL with a text: the file does not fit the format or the model; -errno of the file. */
int eng_import_read(struct eng_import *ret, const char *path, const struct eng_config *c, struct eng_error *err);

/* Returns a profile of the model, which the caller frees. NULL: no memory, or a name is not UTF-8. */
char *eng_import_json(const struct eng_import *i, const struct eng_config *c, const char *model);

#endif
