/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/safetensors.h - reads tensors from a safetensors file, and writes one.
 *
 * The file consists of an 8-byte little-endian length, a header of that many bytes of JSON, and the tensors' data. A
 * file is untrusted: when skv_safetensors_open() succeeds, every tensor lies within the file and has as many bytes as
 * its shape and dtype need, and the tensors cover the data exactly, without overlap or hole.
 */
#ifndef SKV_SAFETENSORS_H
#define SKV_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sparsekv/types.h>

#define SKV_TENSOR_DIMS 8
#define SKV_TENSOR_OTHER 255u /* any dtype that is not in enum skv_dtype */

struct skv_tensor {
	char *name;
	uint32_t dtype; /* enum skv_dtype, or SKV_TENSOR_OTHER */
	char dtype_name[8];
	uint32_t n_dims;
	uint64_t dim[SKV_TENSOR_DIMS];
	uint64_t begin, end; /* byte range in the data part */
	const uint8_t *data; /* the tensor's data in the mapped or copied file; not aligned */
};

/* A file's inode and the time of its last change. No two files, nor a file before and after a change, have the same. */
struct skv_file_state {
	uint64_t device, inode, bytes;
	int64_t modified_s, modified_ns, changed_s, changed_ns;
};

struct skv_safetensors {
	char *path;
	void *map;
	size_t map_bytes;
	struct skv_file_state state; /* of the open file, before anything was read from it */
	bool copied;       /* the file was copied to memory instead of mapped */
	struct json_t *about; /* the header's object "__metadata__", or NULL */
	const uint8_t *data; /* start of the data part, after the header */
	uint64_t data_bytes;
	struct skv_tensor *tensors; /* [n_tensors], in the order of their data */
	size_t n_tensors;
};
#define SKV_SAFETENSORS_NULL ((struct skv_safetensors){.map = NULL})

/*
 * Maps and checks a file. Returns 0; -EBADMSG with an error text if it is malformed; or the negative errno of open(2)
 * or mmap(2).
 */
int skv_safetensors_open(struct skv_safetensors *ret, const char *path, char *err, size_t err_len);

/*
 * Like skv_safetensors_open(), but copies the file to memory, so that later writes to the file, or its truncation, are
 * harmless. Returns -EFBIG if the file has more than `most` bytes.
 */
int skv_safetensors_copy(struct skv_safetensors *ret, const char *path, size_t most, char *err, size_t err_len);

void skv_safetensors_deinit(struct skv_safetensors *st);

/*
 * Is the file that was opened still the file at its path, and unchanged since? Then what was read from the mapping is
 * what the path has.
 */
bool skv_safetensors_is_current(const struct skv_safetensors *st);

/* Returns the metadata of the file under this key, or NULL. */
const char *skv_safetensors_about(const struct skv_safetensors *st, const char *key);

/* Returns the tensor of this name, or NULL. */
const struct skv_tensor *skv_safetensors_find(const struct skv_safetensors *st, const char *name);

/*
 * Finds a matrix of [rows][cols], or a vector of `rows` if cols is 0. Returns -ENOENT if there is no such tensor;
 * -EBADMSG if its shape differs or its dtype is not F32, F16 or BF16.
 */
int skv_safetensors_get(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                        const struct skv_tensor **ret, char *err, size_t err_len);

/* Converts elements [first, first + n) of a tensor from skv_safetensors_get() to fp32. Thread-safe. */
void skv_tensor_floats(const struct skv_tensor *t, uint64_t first, uint64_t n, float *to);

/* Finds a tensor like skv_safetensors_get(), and converts all of its elements to fp32. */
int skv_safetensors_read(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                         float *to, char *err, size_t err_len);

/* What skv_safetensors_write() writes: matrices, as BF16, and entries of the metadata. */
struct skv_new_tensor {
	char name[64];
	uint64_t rows, cols;
	const float *data;
};

struct skv_about {
	const char *key, *value;
};

/*
 * Writes a file with n tensors in this order. The file is first written beside `path` and renamed when complete, so
 * that readers never see a partial file. Returns 0; or a negative errno with an error text, and then an existing file
 * at `path` is unchanged.
 */
int skv_safetensors_write(const char *path, const struct skv_new_tensor *tensors, size_t n,
                          const struct skv_about *about, size_t n_about, char *err, size_t err_len);

#endif
