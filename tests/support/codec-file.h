/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/codec-file.h - write compressors, good ones and others. */
#ifndef SKV_TEST_CODEC_FILE_H
#define SKV_TEST_CODEC_FILE_H

#include <stddef.h>
#include <stdint.h>

#define CODEC_FILE_TENSORS 64

/* A file that is being made: fp32 tensors, in the order in which they came. */
struct codec_file {
	const char *about; /* the metadata's JSON, "{...}" */
	unsigned n;
	struct {
		char name[48];
		uint32_t rows, cols;
		const float *data; /* borrowed */
	} tensor[CODEC_FILE_TENSORS];
};

/* A matrix, or with cols = 0 a vector. */
void codec_file_add(struct codec_file *f, uint32_t layer, const char *part, uint32_t rows, uint32_t cols,
                    const float *data);

/* All of it, to be freed. */
uint8_t *codec_file_bytes(const struct codec_file *f, size_t *ret_bytes);
void codec_file_write(const struct codec_file *f, const char *path);

#endif
