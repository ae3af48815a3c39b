/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/checkpoint.h - the weights in a Hugging Face folder: model.safetensors, or several files ("shards") and
 * model.safetensors.index.json, whose "weight_map" says in which file beside it each tensor is.
 *
 * Everything is mapped, nothing copied. What the index says holds: when skv_checkpoint_open() succeeds, every
 * shard is there and well-formed, and has each tensor that the index sends to it.
 */
#ifndef SKV_CHECKPOINT_H
#define SKV_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>
#include "formats/safetensors.h"

struct skv_checkpoint {
	char *index;                  /* path of the index; NULL: there is one file */
	struct json_t *weight_map;    /* of the index */
	struct skv_safetensors *file; /* [n_files], in the order of their names */
	size_t n_files;
};
#define SKV_CHECKPOINT_NULL ((struct skv_checkpoint){.n_files = 0})

/*
 * Map and check the weights of a folder; model.safetensors counts where both are there. -EBADMSG with a text for
 * malformed files, or the errno of open(2), mmap(2).
 */
int skv_checkpoint_open(struct skv_checkpoint *ret, const char *directory, char *err, size_t err_len);
void skv_checkpoint_deinit(struct skv_checkpoint *);

/* As skv_safetensors_get(). */
int skv_checkpoint_get(const struct skv_checkpoint *, const char *name, uint64_t rows, uint64_t cols,
                       const struct skv_tensor **ret, char *err, size_t err_len);

#endif
