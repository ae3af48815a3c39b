/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/import.h - converts the anchor layers and head maps that Kascade's authors published to a profile.
 *
 * The authors publish a file for each model, such as MODEL_layers_0_2_8_13_14.npy. The file has NumPy's format, version
 * 1 to 3, and contains an array [layers][kv heads] of little-endian integers of 4 or 8 bytes. The entry of a layer's kv
 * head is the kv head of its anchor layer whose selected tokens it reuses, as in the head_map of our profiles. Only the
 * name of the file tells which layers are anchors.
 */
#ifndef ENG_IMPORT_H
#define ENG_IMPORT_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/error.h"

struct eng_import {
	const char *source; /* the file's name: a pointer into the path that was passed */
	uint32_t n_anchors, anchors[SKV_MAX_LAYERS]; /* number of anchor layers; the anchor layers, ascending */
	uint8_t map[SKV_MAX_LAYERS][SKV_MAX_HEADS];
};

/*
 * Reads a file. Returns 0; -EINVAL with a text if the file does not fit the format or the model; or the negative errno
 * of reading it.
 */
int eng_import_read(struct eng_import *ret, const char *path, const struct eng_config *c, struct eng_error *err);

/* Returns the text of a profile of the model, which the caller frees. NULL: no memory, or a name is not UTF-8. */
char *eng_import_json(const struct eng_import *i, const struct eng_config *c, const char *model);

#endif
