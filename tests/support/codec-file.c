/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/codec-file.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/folder.h"

void codec_file_add(struct codec_file *f, uint32_t layer, const char *part, uint32_t rows, uint32_t cols,
                    const float *data)
{
	ck_assert_uint_lt(f->n, CODEC_FILE_TENSORS);
	snprintf(f->tensor[f->n].name, sizeof(f->tensor[f->n].name), "layers.%u.%s", layer, part);
	f->tensor[f->n].rows = rows;
	f->tensor[f->n].cols = cols;
	f->tensor[f->n++].data = data;
}

static size_t bytes_of(const struct codec_file *f, unsigned i)
{
	return (size_t)f->tensor[i].rows * (f->tensor[i].cols ? f->tensor[i].cols : 1) * sizeof(float);
}

uint8_t *codec_file_bytes(const struct codec_file *f, size_t *ret_bytes)
{
	char *header = NULL;
	size_t length = 0, data = 0, at;
	char shape[32];
	FILE *out = open_memstream(&header, &length);
	uint8_t *all;

	ck_assert_ptr_nonnull(out);
	fprintf(out, "{\"__metadata__\":%s", f->about);
	for (unsigned i = 0; i < f->n; i++) {
		size_t bytes = bytes_of(f, i);

		snprintf(shape, sizeof(shape), f->tensor[i].cols ? "%u,%u" : "%u", f->tensor[i].rows,
		         f->tensor[i].cols);
		fprintf(out, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", f->tensor[i].name,
		        shape, data, data + bytes);
		data += bytes;
	}
	fprintf(out, "}");
	ck_assert_int_eq(fclose(out), 0);
	*ret_bytes = 8 + length + data;
	all = malloc(*ret_bytes);
	ck_assert_ptr_nonnull(all);
	for (int i = 0; i < 8; i++)
		all[i] = (uint8_t)(length >> 8 * i);
	memcpy(all + 8, header, length);
	at = 8 + length;
	for (unsigned i = 0; i < f->n; i++) {
		size_t bytes = bytes_of(f, i);

		memcpy(all + at, f->tensor[i].data, bytes);
		at += bytes;
	}
	free(header);
	return all;
}

void codec_file_write(const struct codec_file *f, const char *path)
{
	size_t n;
	uint8_t *bytes = codec_file_bytes(f, &n);

	fx_write(path, bytes, n);
	free(bytes);
}
