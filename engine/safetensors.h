/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/safetensors.h - read tensors from a safetensors file.
 *
 * The file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes. It
 * comes from anywhere, so nothing in it is believed before it was checked: when eng_safetensors_open()
 * succeeds, every tensor lies within the file, is as long as its shape and dtype say, and the
 * tensors cover the data exactly, without overlap or hole.
 */
#ifndef ENG_SAFETENSORS_H
#define ENG_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/error.h"

#define ENG_TENSOR_DIMS 8

enum eng_dtype { ENG_F32, ENG_F16, ENG_BF16, ENG_OTHER };

struct eng_tensor {
	char *name;
	enum eng_dtype dtype;
	char dtype_name[8];
	uint32_t n_dims;
	uint64_t dim[ENG_TENSOR_DIMS];
	uint64_t begin, end; /* bytes of the data part */
	const uint8_t *data; /* begin, in the mapping; not aligned to anything */
};

struct eng_safetensors {
	char *path;
	void *map;
	size_t map_bytes;
	const uint8_t *data; /* behind the header */
	uint64_t data_bytes;
	struct eng_tensor *tensors; /* in the order of their data */
	size_t n_tensors;
};
#define ENG_SAFETENSORS_NULL ((struct eng_safetensors){.map = NULL})

/* Map and check a file. -EBADMSG with a text for a malformed one, or the errno of open(2), mmap(2). */
int eng_safetensors_open(struct eng_safetensors *ret, const char *path, struct eng_error *err);
void eng_safetensors_deinit(struct eng_safetensors *st);

/* The tensor of this name, or NULL. */
const struct eng_tensor *eng_safetensors_find(const struct eng_safetensors *st, const char *name);

/*
 * Copy a matrix of [rows][cols] (or with cols = 0 a vector of `rows`) into `to`, as fp32.
 * -ENOENT no such tensor, -EBADMSG another shape, or a dtype that is not F32, F16 or BF16.
 */
int eng_safetensors_read(const struct eng_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                         float *to, struct eng_error *err);

/*
 * A number that tells this file's content from another's: of the header, and of samples of the data
 * spread over all of it, so that it costs no full read.
 */
uint32_t eng_safetensors_fingerprint(const struct eng_safetensors *st);

#endif
