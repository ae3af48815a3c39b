/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/safetensors.h - read tensors from a safetensors file, and write one.
 *
 * The file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes. It
 * comes from anywhere, so nothing in it is believed before it was checked: when skv_safetensors_open()
 * succeeds, every tensor lies within the file, is as long as its shape and dtype say, and the
 * tensors cover the data exactly, without overlap or hole.
 */
#ifndef SKV_SAFETENSORS_H
#define SKV_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sparsekv/types.h>

#define SKV_TENSOR_DIMS 8
#define SKV_TENSOR_OTHER 255u /* any dtype that is none of enum skv_dtype */

struct skv_tensor {
	char *name;
	uint32_t dtype; /* enum skv_dtype, or SKV_TENSOR_OTHER */
	char dtype_name[8];
	uint32_t n_dims;
	uint64_t dim[SKV_TENSOR_DIMS];
	uint64_t begin, end; /* bytes of the data part */
	const uint8_t *data; /* begin, in the mapping; not aligned to anything */
};

struct skv_safetensors {
	char *path;
	void *map;
	size_t map_bytes;
	bool copied;       /* and not mapped */
	struct json_t *about; /* "__metadata__" */
	const uint8_t *data; /* behind the header */
	uint64_t data_bytes;
	struct skv_tensor *tensors; /* in the order of their data */
	size_t n_tensors;
};
#define SKV_SAFETENSORS_NULL ((struct skv_safetensors){.map = NULL})

/* Map and check a file. -EBADMSG with a text for a malformed one, or the errno of open(2), mmap(2). */
int skv_safetensors_open(struct skv_safetensors *ret, const char *path, char *err, size_t err_len);

/*
 * The same of a copy in memory: later writes to the file, or its truncation, do no harm. Files of more than `most`
 * bytes: -EFBIG.
 */
int skv_safetensors_copy(struct skv_safetensors *ret, const char *path, size_t most, char *err, size_t err_len);

void skv_safetensors_deinit(struct skv_safetensors *st);

/* What the file says of itself under this key, or NULL. */
const char *skv_safetensors_about(const struct skv_safetensors *st, const char *key);

/* The tensor of this name, or NULL. */
const struct skv_tensor *skv_safetensors_find(const struct skv_safetensors *st, const char *name);

/*
 * Find a matrix of [rows][cols], or with cols = 0 a vector of `rows`. -ENOENT no such tensor, -EBADMSG another shape,
 * or a dtype that is not F32, F16 or BF16.
 */
int skv_safetensors_get(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                        const struct skv_tensor **ret, char *err, size_t err_len);

/* Elements [first, first + n) of what skv_safetensors_get() gave, as fp32. Any number of threads at once. */
void skv_tensor_floats(const struct skv_tensor *t, uint64_t first, uint64_t n, float *to);

/* The two at once, of all elements. */
int skv_safetensors_read(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                         float *to, char *err, size_t err_len);

/* A matrix to be written as BF16, and what the file says of itself. */
struct skv_new_tensor {
	char name[64];
	uint64_t rows, cols;
	const float *data;
};

struct skv_about {
	const char *key, *value;
};

/*
 * Write a file, its tensors in this order. It is written beside `path` first and renamed when complete, so that no
 * reader sees half of it. A negative errno with a text; then what was at `path` stays.
 */
int skv_safetensors_write(const char *path, const struct skv_new_tensor *tensors, size_t n,
                          const struct skv_about *about, size_t n_about, char *err, size_t err_len);

#endif
