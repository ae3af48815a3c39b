/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/checkpoint.h - the weights in a Hugging Face folder: model.safetensors, or several files ("shards") with
 * model.safetensors.index.json, whose "weight_map" names the file of each tensor.
 *
 * Files are mapped, not copied. When skv_checkpoint_open() succeeds, the index is correct: every shard exists, is
 * well-formed, and contains the tensors that the index assigns to it.
 */
#ifndef SKV_CHECKPOINT_H
#define SKV_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>
#include "formats/safetensors.h"

struct skv_checkpoint {
	char *index;                  /* path of the index; NULL: a single file */
	struct json_t *weight_map;    /* the index's object "weight_map", from tensor names to file names */
	struct skv_safetensors *file; /* [n_files], sorted by name */
	size_t n_files;
};
#define SKV_CHECKPOINT_NULL ((struct skv_checkpoint){.n_files = 0})

/*
 * Maps and checks the weights of a folder; model.safetensors takes precedence over an index. Returns 0; -EBADMSG with
 * an error text for malformed files; or the negative errno of open(2) or mmap(2).
 */
int skv_checkpoint_open(struct skv_checkpoint *ret, const char *directory, char *err, size_t err_len);
void skv_checkpoint_deinit(struct skv_checkpoint *);

/* Returns a file that was replaced or changed since it was opened; NULL: there is none. */
const struct skv_safetensors *skv_checkpoint_changed(const struct skv_checkpoint *);

/* Finds a matrix or vector in the file that has it; returns as skv_safetensors_get(). */
int skv_checkpoint_get(const struct skv_checkpoint *, const char *name, uint64_t rows, uint64_t cols,
                       const struct skv_tensor **ret, char *err, size_t err_len);

#endif
