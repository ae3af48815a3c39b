/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/identity.c - computes a model's identity: 128 bits of everything that K and V are computed from.
 *
 * Each item is hashed with its key, and the identity is the sum of all items modulo 2^128. So the identity does not
 * depend on the order of the items, which differs between a checkpoint's shards and a model in memory. The identity of
 * a tensor is that of its numbers, whatever its dtype: numbers are hashed as fp32, to which bf16 and fp16 convert
 * exactly.
 *
 * Reading all weights of a model takes about a second. The sum over a file is therefore kept in the user's cache, under
 * the file's device, inode, size, modification time and change time; a program that writes to the file cannot set its
 * change time.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sparsekv/client.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/fd.h"
#include "formats/checkpoint.h"
#include "libclient/error.h"

/* ---- items ----------------------------------------------------------------------------------- */

static void add(struct skv_identity *to, struct skv_identity x)
{
	to->low += x.low;
	to->high += x.high + (to->low < x.low);
}

/* Make the item of a key and of the hash of its content. */
static struct skv_identity item(const char *key, XXH128_hash_t content)
{
	const uint64_t words[2] = {content.low64, content.high64};
	XXH3_state_t state;
	XXH128_hash_t h;

	XXH3_128bits_reset(&state);
	XXH3_128bits_update(&state, key, strlen(key) + 1);
	XXH3_128bits_update(&state, words, sizeof(words));
	h = XXH3_128bits_digest(&state);
	return (struct skv_identity){h.low64, h.high64};
}

void skv_identity_add(struct skv_identity *to, const char *key, const void *bytes, size_t n)
{
	add(to, item(key, XXH3_128bits(bytes, n)));
}

void skv_identity_add_text(struct skv_identity *to, const char *key, const char *text)
{
	skv_identity_add(to, key, text, strlen(text));
}

void skv_identity_add_number(struct skv_identity *to, const char *key, double number)
{
	const double x = number == 0 ? 0 : number; /* -0 counts as 0 */

	skv_identity_add(to, key, &x, sizeof(x));
}

/* ---- tensors --------------------------------------------------------------------------------- */

#define CHUNK 4096u

/* Convert n elements of a tensor, at any alignment, to the bits of fp32 numbers. The rest of `to` is undefined. */
static void widen(const struct skv_tensor *t, uint64_t first, uint64_t n, uint32_t to[CHUNK])
{
	uint16_t half[CHUNK];

	if (t->dtype != SKV_BF16) {
		skv_tensor_floats(t, first, n, (float *)to);
		return;
	}
	memset(half, 0, sizeof(half));
	memcpy(half, t->data + 2 * first, n * sizeof(*half));
	for (uint32_t i = 0; i < CHUNK; i++) /* the loop has a constant length, so that it is vectorized */
		to[i] = (uint32_t)half[i] << 16;
}

static XXH128_hash_t content_of(const struct skv_tensor *t, uint64_t n)
{
	uint32_t words[CHUNK];
	XXH3_state_t state;

	if (t->dtype == SKV_F32)
		return XXH3_128bits(t->data, n * sizeof(*words));
	XXH3_128bits_reset(&state);
	for (uint64_t at = 0; at < n; at += CHUNK) {
		const uint64_t some = n - at < CHUNK ? n - at : CHUNK;

		widen(t, at, some, words);
		XXH3_128bits_update(&state, words, some * sizeof(*words));
	}
	return XXH3_128bits_digest(&state);
}

/*
 * Is the tensor part of the identity? K and V do not depend on the output matrix. Old checkpoints also contain RoPE's
 * inverse frequencies, which follow from the configuration.
 */
static bool is_read(const char *name)
{
	const char *last = strrchr(name, '.');

	return strcmp(name, "lm_head.weight") != 0 && !(last && strcmp(last, ".inv_freq") == 0);
}

int skv_identity_add_tensor(struct skv_identity *to, const char *name, uint32_t dtype, uint64_t n, const void *data)
{
	const struct skv_tensor t = {.dtype = dtype, .data = data};

	if (dtype != SKV_F32 && dtype != SKV_F16 && dtype != SKV_BF16)
		return error_set(-EINVAL, "tensor %s: dtype is %u, expected SKV_F32, SKV_F16 or SKV_BF16; others go to skv_identity_add()", name, dtype);
	if (is_read(name))
		add(to, item(name, content_of(&t, n)));
	return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct skv_identity sum_of_file(const struct skv_safetensors *file)
{
	struct skv_identity sum = SKV_IDENTITY_INIT;

	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct skv_tensor *t = &file->tensors[i];
		char key[512];

		if (t->dtype != SKV_TENSOR_OTHER) {
			uint64_t n = 1;

			for (uint32_t d = 0; d < t->n_dims; d++)
				n *= t->dim[d];
			(void)skv_identity_add_tensor(&sum, t->name, t->dtype, n, t->data);
			continue;
		}
		snprintf(key, sizeof(key), "%s:%s", t->name, t->dtype_name);
		skv_identity_add(&sum, key, t->data, t->end - t->begin);
	}
	return sum;
}

/* Path under which the sum of a file in this state is cached; "" if the user has no cache. */
static void cache_path(const struct skv_file_state *st, char *to, size_t len)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int n = 0;

	if (cache && *cache == '/')
		n = snprintf(to, len, "%s/sparsekv/weights", cache);
	else if (home && *home == '/')
		n = snprintf(to, len, "%s/.cache/sparsekv/weights", home);
	if (n <= 0 || (size_t)n >= len - 128) {
		*to = 0;
		return;
	}
	snprintf(to + n, len - (size_t)n, "/%jx-%jx-%jx-%jx.%jx-%jx.%jx", (uintmax_t)st->device, (uintmax_t)st->inode,
	         (uintmax_t)st->bytes, (uintmax_t)st->modified_s, (uintmax_t)st->modified_ns, (uintmax_t)st->changed_s,
	         (uintmax_t)st->changed_ns);
}

static bool recall(const char *path, struct skv_identity *ret)
{
	SKV_FD_CLEANUP int fd = *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	struct stat st;

	/* a file of another user is not trusted */
	return fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && read(fd, ret, sizeof(*ret)) == sizeof(*ret);
}

static void make_folders(const char *of)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s", of);
	for (char *p = path + 1; (p = strchr(p, '/')); p++) {
		*p = 0;
		(void)mkdir(path, 0700);
		*p = '/';
	}
}

/*
 * Cache the sum of a file. The cache file appears whole or not at all. If the cache cannot be written, no sum is kept.
 */
static void keep(const char *path, const struct skv_identity *sum)
{
	char part[4096 + 32];
	int fd;

	if (!*path)
		return;
	make_folders(path);
	snprintf(part, sizeof(part), "%s.%d-XXXXXX", path, (int)getpid());
	fd = mkostemp(part, O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, sum, sizeof(*sum)) != sizeof(*sum) || rename(part, path) < 0)
		(void)unlink(part);
	close(fd);
}

int skv_identity_add_files(struct skv_identity *to, const char *folder)
{
	struct skv_checkpoint checkpoint = SKV_CHECKPOINT_NULL;
	char why[512], path[4096];
	const struct skv_safetensors *changed;
	int e = skv_checkpoint_open(&checkpoint, folder, why, sizeof(why));

	if (e < 0)
		return error_set(e, "%s", why);
	for (size_t i = 0; i < checkpoint.n_files; i++) {
		struct skv_identity sum;

		cache_path(&checkpoint.file[i].state, path, sizeof(path));
		if (!recall(path, &sum)) {
			sum = sum_of_file(&checkpoint.file[i]);
			if (skv_safetensors_is_current(&checkpoint.file[i]))
				keep(path, &sum);
		}
		add(to, sum);
	}
	changed = skv_checkpoint_changed(&checkpoint);
	if (changed)
		e = error_set(-ESTALE, "%s was replaced or changed while it was read: load the model again", changed->path);
	skv_checkpoint_deinit(&checkpoint);
	return e;
}

/* ---- the shape ------------------------------------------------------------------------------- */

/*
 * Add a layer's numbers. Sinks are left out, because they count as weights, and a rank has only its own heads' sinks.
 */
static void add_layer(struct skv_identity *to, const struct skv_model *m, uint32_t l)
{
	const struct skv_model_layer *layer = skv_model_layer(m, l);
	const struct {
		const char *name;
		double value;
	} numbers[] = {{"window", layer->window}, {"shares_kv", layer->shares_kv}, {"scale", layer->scale}, {"softcap", layer->softcap}};
	char key[48];

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		snprintf(key, sizeof(key), "layer.%u.%s", l, numbers[i].name);
		if (numbers[i].value != 0)
			skv_identity_add_number(to, key, numbers[i].value);
	}
}

void skv_identity_add_shape(struct skv_identity *to, const struct skv_model *m)
{
	const uint32_t turned = m->rope.dims ? m->rope.dims : m->head_dim;
	char key[48];

	skv_identity_add_number(to, "layers", m->n_layers);
	skv_identity_add_number(to, "heads", (double)m->n_heads * m->n_ranks);
	skv_identity_add_number(to, "kv_heads", (double)m->n_kv_heads * m->n_ranks);
	skv_identity_add_number(to, "head_dim", m->head_dim);
	skv_identity_add_number(to, "scale", m->scale > 0 ? m->scale : 1 / sqrtf((float)m->head_dim));
	skv_identity_add_number(to, "rope", m->rope.type == SKV_ROPE_UNKNOWN ? 0 : m->rope.type == SKV_ROPE_NONE ? 1 : 2);
	skv_identity_add_number(to, "rope.interleaved", m->rope.interleaved != 0);
	for (uint32_t i = 0; i < turned / 2 && m->rope.type > SKV_ROPE_NONE; i++) {
		snprintf(key, sizeof(key), "rope.%u", i);
		skv_identity_add_number(to, key, (float)skv_rope_frequency(&m->rope, m->head_dim, i));
	}
	if (m->rope.type > SKV_ROPE_NONE)
		skv_identity_add_number(to, "rope.scale", (float)skv_rope_scale(&m->rope));
	for (uint32_t l = 0; m->layers && l < m->n_layers; l++)
		add_layer(to, m, l);
}

void skv_identity_name(const struct skv_identity *id, const char *family, char ret[SKV_NAME_MAX])
{
	snprintf(ret, SKV_NAME_MAX, "%.30s-%016" PRIx64 "%016" PRIx64, family, id->high, id->low);
}
