/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/codec-file.h - writes codec files, valid and invalid ones. */
#ifndef SKV_TEST_CODEC_FILE_H
#define SKV_TEST_CODEC_FILE_H

#include <stddef.h>
#include <stdint.h>

#define CODEC_FILE_TENSORS 64

/* A safetensors file under construction: fp32 tensors, in the order in which they were added. */
struct codec_file {
	const char *about; /* JSON of __metadata__, "{...}" */
	unsigned n;
	struct {
		char name[48];
		uint32_t rows, cols;
		const float *data; /* borrowed */
	} tensor[CODEC_FILE_TENSORS];
};

/* Adds a matrix, or a vector if cols is 0. */
void codec_file_add(struct codec_file *f, uint32_t layer, const char *part, uint32_t rows, uint32_t cols,
                    const float *data);

/* Returns the whole file; the caller frees it. */
uint8_t *codec_file_bytes(const struct codec_file *f, size_t *ret_bytes);
void codec_file_write(const struct codec_file *f, const char *path);

#endif
