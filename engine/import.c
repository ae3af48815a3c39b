/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/import.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sparsekv/client.h>

#define NPY_MAX (1u << 20) /* most bytes of a file; the array of the largest model has a tenth of that */

/* ---- NumPy's format -------------------------------------------------------------------------- */

struct npy {
	uint8_t bytes[NPY_MAX];
	size_t size, data; /* bytes of the file; offset of the array's elements */
	uint32_t rows, cols, element;
};

static int bad(const char *path, const char *is_not, struct eng_error *err)
{
	return eng_fail(err, -EINVAL, "%.300s: %s expected", path, is_not);
}

/* Returns where the value of a key begins in the header, which is the text of a Python dictionary. NULL: not found. */
static const char *value_of(const char *header, const char *key)
{
	const char *at = strstr(header, key);

	if (!at)
		return NULL;
	at += strlen(key);
	return at + strspn(at, " :");
}

/* Parses a header such as "{'descr': '<i4', 'fortran_order': False, 'shape': (32, 8), }". */
static int parse_header(struct npy *n, const char *path, const char *header, struct eng_error *err)
{
	const char *descr = value_of(header, "'descr'"), *order = value_of(header, "'fortran_order'");
	const char *shape = value_of(header, "'shape'");

	if (!descr || (strncmp(descr, "'<i4'", 5) && strncmp(descr, "'<i8'", 5)))
		return bad(path, "elements of type <i4 or <i8", err);
	if (!order || strncmp(order, "False", 5))
		return bad(path, "rows one after the other (fortran_order False)", err);
	if (!shape || sscanf(shape, "(%u, %u)", &n->rows, &n->cols) != 2)
		return bad(path, "an array of two dimensions", err);
	n->element = (uint32_t)(descr[3] - '0');
	return 0;
}

static int parse(struct npy *n, const char *path, struct eng_error *err)
{
	char header[1024];
	size_t at, len;
	int r;

	if (n->size < 12 || memcmp(n->bytes, "\x93NUMPY", 6) || n->bytes[6] < 1 || n->bytes[6] > 3)
		return bad(path, "a file in NumPy's format (.npy), version 1 to 3,", err);
	at = n->bytes[6] == 1 ? 10 : 12;
	len = n->bytes[8] | (size_t)n->bytes[9] << 8;
	if (n->bytes[6] > 1)
		len |= (size_t)n->bytes[10] << 16 | (size_t)n->bytes[11] << 24;
	if (len > n->size - at || len >= sizeof(header))
		return bad(path, "a whole header of less than 1024 bytes", err);
	memcpy(header, n->bytes + at, len);
	header[len] = '\0';
	n->data = at + len;
	r = parse_header(n, path, header, err);
	if (!r && (uint64_t)n->rows * n->cols * n->element != n->size - n->data)
		r = eng_fail(err, -EINVAL, "%.300s: %zu bytes of elements, expected %u times %u of %u", path,
		             n->size - n->data, n->rows, n->cols, n->element);
	return r;
}

static int read_npy(struct npy *n, const char *path, struct eng_error *err)
{
	FILE *f = fopen(path, "re");
	int r = 0;

	if (!f)
		return eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	n->size = fread(n->bytes, 1, sizeof(n->bytes), f);
	if (ferror(f))
		r = eng_fail(err, -EIO, "%.300s: cannot be read", path);
	else if (n->size == sizeof(n->bytes))
		r = bad(path, "less than 1 MiB", err);
	fclose(f);
	return r ? r : parse(n, path, err);
}

/* Returns an element of the array, read as unsigned and little-endian; a negative element becomes a large number. */
static uint64_t element_of(const struct npy *n, uint32_t row, uint32_t col)
{
	const uint8_t *at = n->bytes + n->data + ((size_t)row * n->cols + col) * n->element;
	uint64_t x = 0;

	for (uint32_t i = 0; i < n->element; i++)
		x |= (uint64_t)at[i] << (8 * i);
	return x;
}

/* ---- Kascade's files ------------------------------------------------------------------------- */

/* Reads the anchor layers from a file name such as "MODEL_layers_0_2_8.npy". */
static int take_anchors(struct eng_import *i, uint32_t n_layers, struct eng_error *err)
{
	static const char key[] = "_layers";
	const char *at = strstr(i->source, key);
	uint32_t least = 0;

	at = at ? at + strlen(key) : "";
	while (*at == '_') {
		char *end;
		unsigned long layer = strtoul(at + 1, &end, 10);

		if (end == at + 1 || layer < least || layer >= n_layers)
			return eng_fail(err, -EINVAL, "%.200s: anchors in its name, ascending layers below the model's %u, "
			                "expected", i->source, n_layers);
		i->anchors[i->n_anchors++] = (uint32_t)layer;
		least = (uint32_t)layer + 1;
		at = end;
	}
	if (!i->n_anchors || strcmp(at, ".npy"))
		return eng_fail(err, -EINVAL, "%.200s: a name that says which layers are anchors, "
		                "MODEL_layers_0_2_8.npy, expected", i->source);
	return 0;
}

static int take_map(struct eng_import *i, const struct npy *n, const struct eng_config *c, struct eng_error *err)
{
	if (n->rows != c->n_layers || n->cols != c->n_kv_heads)
		return eng_fail(err, -EINVAL, "%.200s: it is of a model of %u layers and %u kv heads, expected %u and %u",
		                i->source, n->rows, n->cols, c->n_layers, c->n_kv_heads);
	for (uint32_t l = 0; l < n->rows; l++)
		for (uint32_t h = 0; h < n->cols; h++) {
			uint64_t head = element_of(n, l, h);

			if (head >= c->n_kv_heads)
				return eng_fail(err, -EINVAL, "%.200s: layer %u, kv head %u: a kv head below %u expected",
				                i->source, l, h, c->n_kv_heads);
			i->map[l][h] = (uint8_t)head;
		}
	return 0;
}

int eng_import_read(struct eng_import *ret, const char *path, const struct eng_config *c, struct eng_error *err)
{
	const char *slash = strrchr(path, '/');
	struct eng_import *i = calloc(1, sizeof(*i));
	struct npy *n = calloc(1, sizeof(*n));
	int r = i && n ? read_npy(n, path, err) : eng_fail(err, -ENOMEM, "no memory for %.300s", path);

	if (!r) {
		i->source = slash ? slash + 1 : path;
		r = take_anchors(i, c->n_layers, err);
	}
	r = r ? r : take_map(i, n, c, err);
	if (!r)
		*ret = *i;
	free(n);
	free(i);
	return r;
}

char *eng_import_json(const struct eng_import *i, const struct eng_config *c, const char *model)
{
	json_t *anchors = json_array(), *map = json_array(), *root;
	char *text;

	for (uint32_t a = 0; a < i->n_anchors; a++)
		json_array_append_new(anchors, json_integer(i->anchors[a]));
	for (uint32_t l = 0; l < c->n_layers; l++) {
		json_t *row = json_array();

		for (uint32_t h = 0; h < c->n_kv_heads; h++)
			json_array_append_new(row, json_integer(i->map[l][h]));
		json_array_append_new(map, row);
	}
	root = json_pack("{s:i, s:{s:s, s:s}, s:{s:s, s:i, s:i, s:i, s:i}, s:{s:o, s:o}}", "sparsekv_profile", 1, "made",
	                 "version", skv_version(), "from", i->source, "model", "name", model, "layers", (int)c->n_layers,
	                 "heads", (int)c->n_heads, "kv_heads", (int)c->n_kv_heads, "head_dim", (int)c->head_dim, "chosen",
	                 "anchors", anchors, "head_map", map);
	text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	json_decref(root);
	return text;
}
