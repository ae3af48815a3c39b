/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "formats/json.h"

/* State of skv_checkpoint_open(). */
struct opening {
	struct skv_checkpoint to;
	const char *directory;
	char *err;
	size_t err_len;
};

static int checkpoint_fail(const struct opening *o, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int checkpoint_fail(const struct opening *o, int code, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(o->err, o->err_len, format, ap);
	va_end(ap);
	return code;
}

static int path_of(const struct opening *o, const char *name, char path[PATH_MAX])
{
	if (snprintf(path, PATH_MAX, "%s/%s", o->directory, name) >= PATH_MAX)
		return checkpoint_fail(o, -ENAMETOOLONG, "%.200s…: the path is too long", o->directory);
	return 0;
}

/* ---- the index ------------------------------------------------------------------------------- */

static int load_index(struct opening *o, const char *path)
{
	json_t *root, *map;
	int r = skv_json_load(&root, path, JSON_REJECT_DUPLICATES, o->err, o->err_len);

	if (r < 0)
		return r;
	map = json_object_get(root, "weight_map");
	o->to.index = strdup(path);
	if (!json_object_size(map))
		r = checkpoint_fail(o, -EBADMSG, "%s: no object \"weight_map\" with the file of each tensor", path);
	else if (!o->to.index)
		r = checkpoint_fail(o, -ENOMEM, "%s: no memory", path);
	else
		o->to.weight_map = json_incref(map);
	json_decref(root);
	return r;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * Returns the names of the shards, sorted, without duplicates. The caller frees the array; the strings belong to the
 * index. Names that lead to a file outside of the folder are errors.
 */
static int shard_names(struct opening *o, const char ***ret, size_t *ret_n)
{
	const char **name = calloc(json_object_size(o->to.weight_map), sizeof(*name));
	const char *tensor;
	size_t n = 0, kept = 0;
	json_t *value;

	if (!name)
		return checkpoint_fail(o, -ENOMEM, "%s: no memory", o->to.index);
	json_object_foreach(o->to.weight_map, tensor, value) {
		const char *s = json_string_value(value);

		if (!s || !*s || *s == '.' || strchr(s, '/')) {
			free(name);
			return checkpoint_fail(o, -EBADMSG,
			                       "%s: tensor %s is in \"%.80s\", the name of a file beside it expected",
			                       o->to.index, tensor, s ? s : "");
		}
		name[n++] = s;
	}
	qsort(name, n, sizeof(*name), by_name);
	for (size_t i = 0; i < n; i++)
		if (!kept || strcmp(name[kept - 1], name[i]))
			name[kept++] = name[i];
	*ret = name;
	*ret_n = kept;
	return 0;
}

/* ---- the files ------------------------------------------------------------------------------- */

static int open_files(struct opening *o, const char *const *name, size_t n)
{
	char path[PATH_MAX];
	int r = 0;

	o->to.file = calloc(n, sizeof(*o->to.file));
	if (!o->to.file)
		return checkpoint_fail(o, -ENOMEM, "%s: no memory for %zu files", o->directory, n);
	for (size_t i = 0; !r && i < n; i++) {
		r = path_of(o, name[i], path);
		r = r ? r : skv_safetensors_open(&o->to.file[i], path, o->err, o->err_len);
		if (!r)
			o->to.n_files++;
	}
	return r;
}

/* Returns the file that the index assigns to this tensor, or NULL. */
static const struct skv_safetensors *file_of(const struct skv_checkpoint *c, const char *tensor)
{
	const char *name = json_string_value(json_object_get(c->weight_map, tensor));

	for (size_t i = 0; name && i < c->n_files; i++)
		if (!strcmp(strrchr(c->file[i].path, '/') + 1, name))
			return &c->file[i];
	return NULL;
}

static int check_map(const struct opening *o)
{
	const char *tensor;
	json_t *value;

	json_object_foreach(o->to.weight_map, tensor, value) {
		const struct skv_safetensors *file = file_of(&o->to, tensor);

		if (!skv_safetensors_find(file, tensor))
			return checkpoint_fail(o, -EBADMSG, "%s: tensor %s is not in it, where %s has it", file->path,
			                       tensor, strrchr(o->to.index, '/') + 1);
	}
	return 0;
}

int skv_checkpoint_open(struct skv_checkpoint *ret, const char *directory, char *err, size_t err_len)
{
	struct opening o = {.directory = directory, .err = err, .err_len = err_len};
	const char *const whole = "model.safetensors";
	const char **name = NULL;
	char path[PATH_MAX], index[PATH_MAX];
	size_t n = 0;
	int r = path_of(&o, whole, path);

	r = r ? r : path_of(&o, "model.safetensors.index.json", index);
	if (r)
		return r;
	if (access(path, F_OK) && !access(index, F_OK)) {
		r = load_index(&o, index);
		r = r ? r : shard_names(&o, &name, &n);
		r = r ? r : open_files(&o, name, n);
		r = r ? r : check_map(&o);
		free(name);
	} else {
		r = open_files(&o, &whole, 1);
	}
	if (r) {
		skv_checkpoint_deinit(&o.to);
		return r;
	}
	*ret = o.to;
	return 0;
}

const struct skv_safetensors *skv_checkpoint_changed(const struct skv_checkpoint *c)
{
	for (size_t i = 0; i < c->n_files; i++)
		if (!skv_safetensors_is_current(&c->file[i]))
			return &c->file[i];
	return NULL;
}

void skv_checkpoint_deinit(struct skv_checkpoint *c)
{
	for (size_t i = 0; i < c->n_files; i++)
		skv_safetensors_deinit(&c->file[i]);
	free(c->file);
	json_decref(c->weight_map);
	free(c->index);
	*c = SKV_CHECKPOINT_NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

int skv_checkpoint_get(const struct skv_checkpoint *c, const char *name, uint64_t rows, uint64_t cols,
                       const struct skv_tensor **ret, char *err, size_t err_len)
{
	const struct skv_safetensors *file = c->index ? file_of(c, name) : c->file;

	if (file)
		return skv_safetensors_get(file, name, rows, cols, ret, err, err_len);
	snprintf(err, err_len, "%s: tensor %s is missing", c->index, name);
	return -ENOENT;
}
