/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/safetensors.h"
#include "formats/json.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX (100u << 20) /* maximum bytes of a header: the limit of the format's reference implementation */

static const struct {
	const char *name;
	uint8_t bytes;
	uint32_t dtype;
} dtypes[] = {
	{"F32", 4, SKV_F32},    {"F16", 2, SKV_F16},       {"BF16", 2, SKV_BF16},     {"F64", 8, SKV_TENSOR_OTHER},
	{"I64", 8, SKV_TENSOR_OTHER},  {"I32", 4, SKV_TENSOR_OTHER},     {"I16", 2, SKV_TENSOR_OTHER},     {"I8", 1, SKV_TENSOR_OTHER},
	{"U64", 8, SKV_TENSOR_OTHER},  {"U32", 4, SKV_TENSOR_OTHER},     {"U16", 2, SKV_TENSOR_OTHER},     {"U8", 1, SKV_TENSOR_OTHER},
	{"BOOL", 1, SKV_TENSOR_OTHER}, {"F8_E4M3", 1, SKV_TENSOR_OTHER}, {"F8_E5M2", 1, SKV_TENSOR_OTHER},
};

/* Buffer for the error text. */
struct complaint {
	char *text;
	size_t len;
};

static int st_fail(const struct complaint *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int st_fail(const struct complaint *c, int code, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(c->text, c->len, format, ap);
	va_end(ap);
	return code;
}

/* ---- one tensor's entry ---------------------------------------------------------------------- */

/* Sets the tensor's dtype, and *ret_bytes to the bytes of an element. */
static int parse_dtype(const struct skv_safetensors *st, struct skv_tensor *t, const json_t *value,
                       uint64_t *ret_bytes, const struct complaint *err)
{
	const char *s = json_string_value(value);

	if (!s)
		return st_fail(err, -EBADMSG, "%s: tensor %s: no \"dtype\" string", st->path, t->name);
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (!strcmp(s, dtypes[i].name)) {
			t->dtype = dtypes[i].dtype;
			strcpy(t->dtype_name, s);
			*ret_bytes = dtypes[i].bytes;
			return 0;
		}
	return st_fail(err, -EBADMSG, "%s: tensor %s: unknown dtype \"%.32s\"", st->path, t->name, s);
}

/* Sets the tensor's shape, and multiplies *bytes, initially the element size, by its dimensions. */
static int parse_shape(const struct skv_safetensors *st, struct skv_tensor *t, const json_t *shape,
                       uint64_t *bytes, const struct complaint *err)
{
	if (!json_is_array(shape))
		return st_fail(err, -EBADMSG, "%s: tensor %s: no \"shape\" array", st->path, t->name);
	if (json_array_size(shape) > SKV_TENSOR_DIMS)
		return st_fail(err, -EBADMSG, "%s: tensor %s: %zu dimensions, at most %d expected", st->path,
		                t->name, json_array_size(shape), SKV_TENSOR_DIMS);
	t->n_dims = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < t->n_dims; i++) {
		const json_t *d = json_array_get(shape, i);

		if (!json_is_integer(d) || json_integer_value(d) < 0)
			return st_fail(err, -EBADMSG, "%s: tensor %s: dimension %u is not a count", st->path,
			                t->name, i);
		t->dim[i] = (uint64_t)json_integer_value(d);
		if (__builtin_mul_overflow(*bytes, t->dim[i], bytes))
			return st_fail(err, -EBADMSG, "%s: tensor %s: its shape is larger than memory",
			                st->path, t->name);
	}
	return 0;
}

static int parse_tensor(const struct skv_safetensors *st, struct skv_tensor *t, const json_t *entry,
                        const struct complaint *err)
{
	const json_t *offsets = json_object_get(entry, "data_offsets");
	uint64_t bytes = 0;
	int r;

	if (!json_is_object(entry))
		return st_fail(err, -EBADMSG, "%s: tensor %s: its entry is not an object", st->path,
		                t->name);
	r = parse_dtype(st, t, json_object_get(entry, "dtype"), &bytes, err);
	if (r)
		return r;
	r = parse_shape(st, t, json_object_get(entry, "shape"), &bytes, err);
	if (r)
		return r;
	if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
	    !json_is_integer(json_array_get(offsets, 1)))
		return st_fail(err, -EBADMSG, "%s: tensor %s: \"data_offsets\" is not [begin, end]",
		                st->path, t->name);

	/* A negative offset becomes a huge number and fails the check of the range below. */
	t->begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
	t->end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
	if (t->begin > t->end || t->end > st->data_bytes)
		return st_fail(err, -EBADMSG,
		                "%s: tensor %s: offsets %lld … %lld, but the data has %llu bytes", st->path,
		                t->name, (long long)t->begin, (long long)t->end,
		                (unsigned long long)st->data_bytes);
	if (t->end - t->begin != bytes)
		return st_fail(err, -EBADMSG,
		                "%s: tensor %s: %llu bytes of data, its shape and dtype take %llu", st->path,
		                t->name, (unsigned long long)(t->end - t->begin), (unsigned long long)bytes);
	t->data = st->data + t->begin;
	return 0;
}

/* ---- the header ------------------------------------------------------------------------------ */

static int by_data(const void *a, const void *b)
{
	const struct skv_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that the sorted tensors cover the data without gaps from the first byte to the last. */
static int check_cover(const struct skv_safetensors *st, const struct complaint *err)
{
	uint64_t at = 0;

	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct skv_tensor *t = &st->tensors[i];

		if (t->begin != at)
			return st_fail(err, -EBADMSG, "%s: tensor %s: begins at byte %llu, %s", st->path,
			                t->name, (unsigned long long)t->begin,
			                t->begin < at ? "inside the one before it" : "after a hole");
		at = t->end;
	}
	if (at != st->data_bytes)
		return st_fail(err, -EBADMSG, "%s: %llu bytes at the end belong to no tensor", st->path,
		                (unsigned long long)(st->data_bytes - at));
	return 0;
}

static int parse_header(struct skv_safetensors *st, json_t *root, const struct complaint *err)
{
	const char *name;
	json_t *entry;
	int r;

	if (!json_is_object(root))
		return st_fail(err, -EBADMSG, "%s: the header is not a JSON object", st->path);
	st->tensors = calloc(json_object_size(root) + 1, sizeof(*st->tensors));
	if (!st->tensors)
		return st_fail(err, -ENOMEM, "%s: no memory for %zu tensors", st->path,
		                json_object_size(root));
	json_object_foreach(root, name, entry) {
		struct skv_tensor *t = &st->tensors[st->n_tensors];

		if (!strcmp(name, "__metadata__")) {
			st->about = json_incref(entry);
			continue;
		}
		t->name = strdup(name);
		if (!t->name)
			return st_fail(err, -ENOMEM, "%s: no memory for its names", st->path);
		st->n_tensors++;
		r = parse_tensor(st, t, entry, err);
		if (r)
			return r;
	}
	qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), by_data);
	return check_cover(st, err);
}

static struct skv_file_state state_of(const struct stat *sb)
{
	return (struct skv_file_state){
		.device = sb->st_dev,
		.inode = sb->st_ino,
		.bytes = (uint64_t)sb->st_size,
		.modified_s = sb->st_mtim.tv_sec,
		.modified_ns = sb->st_mtim.tv_nsec,
		.changed_s = sb->st_ctim.tv_sec,
		.changed_ns = sb->st_ctim.tv_nsec,
	};
}

bool skv_safetensors_is_current(const struct skv_safetensors *st)
{
	struct skv_file_state now;
	struct stat sb;

	if (stat(st->path, &sb) < 0)
		return false;
	now = state_of(&sb);
	return memcmp(&now, &st->state, sizeof(now)) == 0;
}

static int open_file(struct skv_safetensors *st, const struct complaint *err)
{
	int fd = open(st->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = 0;
	struct stat sb;

	if (fd < 0)
		return st_fail(err, -errno, "%s: %s", st->path, strerror(errno));
	if (fstat(fd, &sb) < 0)
		r = st_fail(err, -errno, "%s: %s", st->path, strerror(errno));
	else if (!S_ISREG(sb.st_mode) || sb.st_size < 8)
		r = st_fail(err, -EBADMSG, "%s: not a safetensors file: shorter than its 8-byte header length",
		            st->path);
	if (r < 0) {
		close(fd);
		return r;
	}
	st->map_bytes = (size_t)sb.st_size;
	st->state = state_of(&sb);
	return fd;
}

static int map_file(struct skv_safetensors *st, int fd, const struct complaint *err)
{
	st->map = mmap(NULL, st->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (st->map != MAP_FAILED)
		return 0;
	st->map = NULL;
	return st_fail(err, -errno, "%s: mmap: %s", st->path, strerror(errno));
}

static int copy_file(struct skv_safetensors *st, int fd, size_t most, const struct complaint *err)
{
	if (st->map_bytes > most)
		return st_fail(err, -EFBIG, "%s: %zu bytes, expected at most %zu", st->path, st->map_bytes, most);
	st->copied = true;
	st->map = malloc(st->map_bytes);
	if (!st->map)
		return st_fail(err, -ENOMEM, "%s: no memory for its %zu bytes", st->path, st->map_bytes);
	for (size_t at = 0; at < st->map_bytes;) {
		ssize_t n = read(fd, (char *)st->map + at, st->map_bytes - at);

		if (n < 0)
			return st_fail(err, -errno, "%s: %s", st->path, strerror(errno));
		if (n == 0)
			return st_fail(err, -EBADMSG, "%s: became shorter while it was read", st->path);
		at += (size_t)n;
	}
	return 0;
}

/* Makes the whole file accessible: mapped if `most` is 0, otherwise copied. */
static int take_file(struct skv_safetensors *st, size_t most, const struct complaint *err)
{
	int fd = open_file(st, err), r;

	if (fd < 0)
		return fd;
	r = most ? copy_file(st, fd, most, err) : map_file(st, fd, err);
	close(fd);
	return r;
}

static int take(struct skv_safetensors *ret, const char *path, size_t most, char *err, size_t err_len)
{
	const struct complaint c = {.text = err, .len = err_len};
	struct skv_safetensors st = SKV_SAFETENSORS_NULL;
	json_error_t je;
	json_t *root = NULL;
	uint64_t header;
	int r;

	st.path = strdup(path);
	r = st.path ? take_file(&st, most, &c) : st_fail(&c, -ENOMEM, "%s: no memory", path);
	if (r)
		goto fail;
	memcpy(&header, st.map, 8);
	header = le64toh(header);
	if (header > HEADER_MAX || header > st.map_bytes - 8) {
		r = st_fail(&c, -EBADMSG, "%s: its header would be %llu bytes of a file of %zu", path,
		             (unsigned long long)header, st.map_bytes);
		goto fail;
	}
	st.data = (const uint8_t *)st.map + 8 + header;
	st.data_bytes = st.map_bytes - 8 - header;
	root = skv_json_parse((const char *)st.map + 8, header, JSON_REJECT_DUPLICATES, &je);
	if (!root) {
		r = st_fail(&c, -EBADMSG, "%s: header, byte %d: %s", path, je.position, je.text);
		goto fail;
	}
	r = parse_header(&st, root, &c);
	json_decref(root);
	if (r)
		goto fail;
	*ret = st;
	return 0;
fail:
	skv_safetensors_deinit(&st);
	return r;
}

int skv_safetensors_open(struct skv_safetensors *ret, const char *path, char *err, size_t err_len)
{
	return take(ret, path, 0, err, err_len);
}

int skv_safetensors_copy(struct skv_safetensors *ret, const char *path, size_t most, char *err, size_t err_len)
{
	return take(ret, path, most, err, err_len);
}

void skv_safetensors_deinit(struct skv_safetensors *st)
{
	for (size_t i = 0; i < st->n_tensors; i++)
		free(st->tensors[i].name);
	free(st->tensors);
	json_decref(st->about);
	if (st->copied)
		free(st->map);
	else if (st->map)
		munmap(st->map, st->map_bytes);
	free(st->path);
	*st = SKV_SAFETENSORS_NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

const char *skv_safetensors_about(const struct skv_safetensors *st, const char *key)
{
	return json_string_value(json_object_get(st->about, key));
}

const struct skv_tensor *skv_safetensors_find(const struct skv_safetensors *st, const char *name)
{
	for (size_t i = 0; i < st->n_tensors; i++)
		if (!strcmp(st->tensors[i].name, name))
			return &st->tensors[i];
	return NULL;
}

static float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static float from_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;

	if (exponent == 31)
		return from_bits(sign | 0x7f800000u | mantissa << 13);
	if (exponent)
		return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
	/* fp16 zero and subnormal numbers are multiples of 2^-24, which are exact in fp32 */
	return (sign ? -0x1p-24f : 0x1p-24f) * (float)mantissa;
}

void skv_tensor_floats(const struct skv_tensor *t, uint64_t first, uint64_t n, float *to)
{
	const uint8_t *from = t->data + first * skv_dtype_bytes(t->dtype);

	if (t->dtype == SKV_F32) {
		for (uint64_t i = 0; i < n; i++) {
			uint32_t bits;

			memcpy(&bits, from + 4 * i, 4);
			to[i] = from_bits(le32toh(bits));
		}
		return;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint16_t bits;

		memcpy(&bits, from + 2 * i, 2);
		bits = le16toh(bits);
		to[i] = t->dtype == SKV_F16 ? from_half(bits) : from_bits((uint32_t)bits << 16);
	}
}

int skv_safetensors_get(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                        const struct skv_tensor **ret, char *err, size_t err_len)
{
	const struct complaint c = {.text = err, .len = err_len};
	const struct skv_tensor *t = skv_safetensors_find(st, name);
	char want[48], is[SKV_TENSOR_DIMS * 24 + 1] = "";
	bool fits;

	if (cols)
		snprintf(want, sizeof(want), "%llu × %llu", (unsigned long long)rows,
		         (unsigned long long)cols);
	else
		snprintf(want, sizeof(want), "%llu", (unsigned long long)rows);
	if (!t)
		return st_fail(&c, -ENOENT, "%s: tensor %s is missing (%s expected)", st->path, name, want);
	fits = cols ? t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols
	            : t->n_dims == 1 && t->dim[0] == rows;
	if (!fits) {
		for (uint32_t i = 0; i < t->n_dims; i++)
			sprintf(is + strlen(is), i ? " × %llu" : "%llu", (unsigned long long)t->dim[i]);
		return st_fail(&c, -EBADMSG, "%s: tensor %s is %s, %s expected", st->path,
		                name, t->n_dims ? is : "a scalar", want);
	}
	if (t->dtype == SKV_TENSOR_OTHER)
		return st_fail(&c, -EBADMSG, "%s: tensor %s has dtype %s, F32, F16 or BF16 expected",
		                st->path, name, t->dtype_name);
	*ret = t;
	return 0;
}

int skv_safetensors_read(const struct skv_safetensors *st, const char *name, uint64_t rows, uint64_t cols,
                         float *to, char *err, size_t err_len)
{
	const struct skv_tensor *t;
	int r = skv_safetensors_get(st, name, rows, cols, &t, err, err_len);

	if (!r)
		skv_tensor_floats(t, 0, rows * (cols ? cols : 1), to);
	return r;
}
