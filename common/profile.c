/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/profile.c - reads a model's profile, written by sparsekv-calibrate.
 *
 * The path of the file is in a policy spec, which may come from any client. So opening the file must not block, the
 * file must be regular, of limited size and not a symbolic link, and its contents are used only if they fit the model.
 */
#include "common/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "common/refuse.h"

struct reading {
	const char *path;
	const struct skv_model *model;
	char *err;
	size_t err_len;
};

#define bad(r, ...) skv_refuse(-EINVAL, (r)->err, (r)->err_len, "profile %.150s: " __VA_ARGS__)

/* ---- the file -------------------------------------------------------------------------------- */

static int open_regular(const struct reading *r, size_t *ret_size)
{
	int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY), error = 0;
	struct stat st;

	if (fd < 0)
		return skv_refuse(-errno, r->err, r->err_len, "profile %.150s: %s", r->path,
		                  errno == ELOOP ? "a symbolic link, a regular file expected" : strerror(errno));
	if (fstat(fd, &st) < 0)
		error = skv_refuse(-errno, r->err, r->err_len, "profile %.150s: %s", r->path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		error = bad(r, "a regular file expected", r->path);
	else if (st.st_size > (off_t)SKV_PROFILE_MAX)
		error = bad(r, "%lld bytes, expected at most %u", r->path, (long long)st.st_size, SKV_PROFILE_MAX);
	if (error) {
		skv_close_fd(fd);
		return error;
	}
	*ret_size = (size_t)st.st_size;
	return fd;
}

/* Reads the profile's text, as many bytes as the file had when it was opened. The caller frees *ret. */
static int read_text(const struct reading *r, char **ret, size_t *ret_size)
{
	SKV_FD_CLEANUP int fd = -1;
	size_t size = 0, at = 0;
	char *text;

	fd = open_regular(r, &size);
	if (fd < 0)
		return fd;
	text = malloc(size + 1);
	if (!text)
		return skv_refuse(-ENOMEM, r->err, r->err_len, "profile %.150s: no memory", r->path);
	while (at < size) {
		ssize_t n = read(fd, text + at, size - at);

		if (n <= 0) {
			free(text);
			return n < 0 ? skv_refuse(-errno, r->err, r->err_len, "profile %.150s: %s", r->path,
			                          strerror(errno))
			             : bad(r, "became shorter while it was read", r->path);
		}
		at += (size_t)n;
	}
	*ret = text;
	*ret_size = size;
	return 0;
}

/* ---- its fields ------------------------------------------------------------------------------ */

/* Reads an integer from 0 to end - 1. Returns false if the JSON value is anything else. */
static bool take_index(const json_t *v, uint32_t end, uint32_t *ret)
{
	json_int_t i = json_integer_value(v);

	if (!json_is_integer(v) || i < 0 || i >= (json_int_t)end)
		return false;
	*ret = (uint32_t)i;
	return true;
}

/* Checks that the profile is for a model of this shape. */
static int check_model(const struct reading *r, const json_t *model)
{
	const struct {
		const char *name;
		uint32_t expected;
	} fields[] = {
		{"layers", r->model->n_layers},
		{"heads", r->model->n_heads * r->model->n_ranks},
		{"kv_heads", r->model->n_kv_heads * r->model->n_ranks},
		{"head_dim", r->model->head_dim},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		const json_t *v = json_object_get(model, fields[i].name);

		if (!json_is_integer(v))
			return bad(r, "model.%s: a whole number expected", r->path, fields[i].name);
		if (json_integer_value(v) != (json_int_t)fields[i].expected)
			return bad(r, "it is of another model: model.%s is %lld, expected %u", r->path, fields[i].name,
			           (long long)json_integer_value(v), fields[i].expected);
	}
	return 0;
}

/*
 * Reads a JSON list of layer numbers in ascending order. If the profile does not have the list, the set of layers is
 * empty.
 */
static int take_layers(const struct reading *r, const json_t *chosen, const char *name, struct skv_layer_set *ret)
{
	const json_t *list = json_object_get(chosen, name), *v;
	uint32_t layer, least = 0;
	size_t i;

	if (!list)
		return 0;
	if (!json_is_array(list))
		return bad(r, "chosen.%s: a list of layers expected", r->path, name);
	json_array_foreach(list, i, v) {
		if (!take_index(v, r->model->n_layers, &layer) || layer < least)
			return bad(r, "chosen.%s[%zu]: a layer from %u to %u expected", r->path, name, i, least,
			           r->model->n_layers - 1);
		ret->bits[layer / 64] |= (uint64_t)1 << (layer % 64);
		least = layer + 1;
	}
	return 0;
}

/* Reads a layer's row of the head map, which lists the kv heads of all ranks, and stores those of this rank. */
static int take_map_row(const struct reading *r, const json_t *row, uint32_t layer, struct skv_profile *profile)
{
	const uint32_t own = r->model->n_kv_heads, all = own * r->model->n_ranks;
	uint32_t head;

	if (json_array_size(row) != all)
		return bad(r, "chosen.head_map[%u]: %u kv heads expected", r->path, layer, all);
	for (uint32_t h = 0; h < all; h++) {
		if (!take_index(json_array_get(row, h), all, &head))
			return bad(r, "chosen.head_map[%u][%u]: a kv head from 0 to %u expected", r->path, layer, h, all - 1);
		/* a layer without an anchor layer before it has a map of zeros, which means nothing */
		if (head / own != h / own && skv_layer_source(&profile->anchors, layer) != SKV_NO_LAYER)
			profile->crosses = layer + 1;
		if (h / own == r->model->rank)
			profile->map[layer][h % own] = (uint8_t)(head % own);
	}
	return 0;
}

/*
 * Reads the profile's head map, a list of kv heads for each layer. The map is required if the profile has anchor
 * layers.
 */
static int take_map(const struct reading *r, const json_t *map, struct skv_profile *profile)
{
	int e = 0;

	if (!map && skv_layer_set_empty(&profile->anchors))
		return 0;
	if (json_array_size(map) != r->model->n_layers)
		return bad(r, "chosen.head_map: %u lists, one a layer, expected", r->path, r->model->n_layers);
	for (uint32_t l = 0; l < r->model->n_layers && e == 0; l++)
		e = take_map_row(r, json_array_get(map, l), l, profile);
	return e;
}

static int take(const struct reading *r, const json_t *root, struct skv_profile *profile)
{
	const json_t *version = json_object_get(root, "sparsekv_profile"), *chosen = json_object_get(root, "chosen");
	int e;

	if (!json_is_integer(version) || json_integer_value(version) != 1)
		return bad(r, "sparsekv_profile: 1 expected; sparsekv-calibrate writes such files", r->path);
	if (!json_is_object(chosen))
		return bad(r, "chosen: an object expected", r->path);
	e = check_model(r, json_object_get(root, "model"));
	e = e ? e : take_layers(r, chosen, "delta", &profile->delta);
	e = e ? e : take_layers(r, chosen, "filters", &profile->filters);
	e = e ? e : take_layers(r, chosen, "anchors", &profile->anchors);
	return e ? e : take_map(r, json_object_get(chosen, "head_map"), profile);
}

int skv_profile_read(struct skv_profile *profile, const struct skv_model *m, char *err, size_t err_len)
{
	const struct reading r = {.path = profile->path, .model = m, .err = err, .err_len = err_len};
	json_error_t error;
	char *text = NULL;
	size_t size = 0;
	json_t *root;
	int e = read_text(&r, &text, &size);

	if (e < 0)
		return e;
	root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
	free(text);
	if (!root)
		return bad(&r, "line %d: %.200s", r.path, error.line, error.text);
	e = take(&r, root, profile);
	json_decref(root);
	return e;
}
