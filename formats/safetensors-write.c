/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the header ------------------------------------------------------------------------------ */

/* Sets a key of the object, and takes ownership of `value`; NULL, from a failed allocation: returns -ENOMEM. */
static int set(json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value) ? -ENOMEM : 0;
}

static int describe(json_t *root, const struct skv_new_tensor *t, uint64_t begin, uint64_t end)
{
	json_t *entry = json_pack("{s:s, s:[I,I], s:[I,I]}", "dtype", "BF16", "shape", (json_int_t)t->rows,
	                          (json_int_t)t->cols, "data_offsets", (json_int_t)begin, (json_int_t)end);

	return set(root, t->name, entry);
}

/*
 * Returns the file's JSON header, padded with blanks so that the tensors' data begins at a multiple of 8 bytes; the
 * caller frees the text. Returns NULL if memory is exhausted.
 */
static char *make_header(const struct skv_new_tensor *tensors, size_t n, const struct skv_about *about, size_t n_about)
{
	json_t *root = json_object(), *meta = json_object();
	char *text = NULL, *header = NULL;
	uint64_t at = 0;
	int r = root && meta ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < n_about; i++)
		r = set(meta, about[i].key, json_string(about[i].value));
	r = r ? r : json_object_set(root, "__metadata__", meta);
	for (size_t i = 0; !r && i < n; i++) {
		uint64_t bytes = 2 * tensors[i].rows * tensors[i].cols;

		r = describe(root, &tensors[i], at, at + bytes);
		at += bytes;
	}
	if (!r)
		text = json_dumps(root, JSON_COMPACT);
	if (text && asprintf(&header, "%s%*s", text, (int)(-strlen(text) & 7), "") < 0)
		header = NULL;
	free(text);
	json_decref(meta);
	json_decref(root);
	return header;
}

/* ---- the data -------------------------------------------------------------------------------- */

/* Rounds fp32 to bf16: to nearest, ties to even; a NaN stays a NaN. */
static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void write_tensor(FILE *f, const struct skv_new_tensor *t)
{
	uint16_t part[1024];

	for (uint64_t at = 0, n = t->rows * t->cols; at < n;) {
		size_t have = 0;

		for (; have < sizeof(part) / sizeof(*part) && at < n; at++)
			part[have++] = htole16(to_bf16(t->data[at]));
		fwrite(part, sizeof(*part), have, f);
	}
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Writes header and tensors to the stream; the caller checks the stream for errors. */
static void write_all(FILE *f, const char *header, const struct skv_new_tensor *tensors, size_t n)
{
	uint64_t length = htole64(strlen(header));

	fwrite(&length, sizeof(length), 1, f);
	fputs(header, f);
	for (size_t i = 0; i < n; i++)
		write_tensor(f, &tensors[i]);
}

static int write_beside(const char *path, const char *part, const char *header, const struct skv_new_tensor *tensors,
                        size_t n)
{
	int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), r = 0;
	FILE *f;

	if (fd < 0)
		return -errno;
	f = fdopen(fd, "w");
	if (!f) {
		r = -errno;
		close(fd);
	} else {
		write_all(f, header, tensors, n);
		r = ferror(f) ? -EIO : 0;
		if (fclose(f))
			r = -errno;
	}
	if (!r && rename(part, path) < 0)
		r = -errno;
	if (r)
		unlink(part);
	return r;
}

int skv_safetensors_write(const char *path, const struct skv_new_tensor *tensors, size_t n,
                          const struct skv_about *about, size_t n_about, char *err, size_t err_len)
{
	char *header = make_header(tensors, n, about, n_about), *part = NULL;
	struct stat st;
	int r;

	if (!header || asprintf(&part, "%s.%ld.part", path, (long)getpid()) < 0) {
		part = NULL;
		r = -ENOMEM;
	} else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		/* `path` is not a regular file but for instance a device, which must not be replaced by a file */
		r = -EEXIST;
	} else {
		r = write_beside(path, part, header, tensors, n);
	}
	free(header);
	free(part);
	if (r < 0)
		snprintf(err, err_len, "%.200s: %s", path, strerror(-r));
	return r;
}
