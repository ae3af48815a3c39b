/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the name of a model: it is the same if K and V are computed from the same data, and another one if anything
 * of it changed. A golden model with windows is copied, and changed in one place at a time.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <sparsekv/client.h>
#include "engine/model.h"
#include "formats/safetensors.h"
#include "tests/support/engine-fixture.h"
#include "tests/support/privilege.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define CONFIG "config.json"
#define WEIGHTS "model.safetensors"
#define GOLDEN "tests/unit/engine/golden/"

static char *folder, *cache;

static void shell(const char *command, const char *argument)
{
	char text[600];

	snprintf(text, sizeof(text), "%s '%s'", command, argument);
	ck_assert_int_eq(system(text), 0);
}

static void copy_model(const char *model)
{
	char text[1200];

	snprintf(text, sizeof(text), "cp '%s'/* '%s'", run_source(model), folder);
	ck_assert_int_eq(system(text), 0);
}

static void setup(void)
{
	folder = fx_folder();
	cache = fx_folder();
	setenv("XDG_CACHE_HOME", cache, 1);
	copy_model(GOLDEN "windows");
}

static void teardown(void)
{
	fx_remove(folder);
	shell("rm -r", cache);
	free(cache);
}

/* Returns the name of the model in `directory`: a static buffer, valid until the second next call. */
static const char *name_in(const char *directory)
{
	static char name[2][SKV_NAME_MAX];
	static int next;
	struct eng_model m;
	struct eng_error err;

	ck_assert_msg(!eng_model_load(&m, directory, eng_backend_host(), SKV_F32, &err), "%s", err.text);
	strcpy(name[next ^= 1], m.name);
	eng_model_deinit(&m);
	return name[next];
}

/* Replaces the first `from` in a file by `to`. */
static void edit(const char *file, const char *from, const char *to)
{
	size_t n;
	char *text = fx_read(fx_path(folder, file), &n), *at = memmem(text, n, from, strlen(from)), *edited;

	ck_assert_msg(at, "no %s in %s", from, file);
	ck_assert_int_gt(asprintf(&edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
	fx_text(fx_path(folder, file), edited);
	free(edited);
	free(text);
}

/* ---- the configuration ----------------------------------------------------------------------- */

static const struct {
	const char *from, *to;
	bool same;
} changes[] = {
	{"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-06", false},
	{"\"rope_theta\": 10000.0", "\"rope_theta\": 10001.0", false},
	{"\"rope_type\": \"default\"", "\"rope_type\": \"linear\", \"factor\": 2.0", false},
	{"\"sliding_window\": 9", "\"sliding_window\": 10", false},
	{"\"full_attention\"", "\"sliding_attention\"", false},
	{"\"use_sliding_window\": true", "\"use_sliding_window\": false, \"layer_types\": null", false},
	{"Qwen2ForCausalLM", "Qwen2ForCausalLM", true},
	{"\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", true},
	{"\"bos_token_id\": 0", "\"bos_token_id\": 1", true},
	{"\"max_position_embeddings\": 64", "\"max_position_embeddings\": 128", true},
	{"\"rope_type\": \"default\"", "\"type\": \"default\"", true},
};

START_TEST(numbers_of_the_configuration)
{
	char was[SKV_NAME_MAX];

	strcpy(was, name_in(folder));
	if (strstr(changes[_i].to, "layer_types"))
		edit(CONFIG, "\"layer_types\"", "\"some_types\"");
	edit(CONFIG, changes[_i].from, changes[_i].to);
	ck_assert_msg((strcmp(name_in(folder), was) == 0) == changes[_i].same, "%s: %s, was %s", changes[_i].to, name_in(folder), was);
}
END_TEST

/* Biases that the configuration switches off are still in the files, and K and V are others without them. */
START_TEST(biases_that_are_switched_off)
{
	static const char *const key[] = {"attention_bias", "mlp_bias"};
	char was[SKV_NAME_MAX], from[32], to[32];

	copy_model(GOLDEN "biases");
	strcpy(was, name_in(folder));
	snprintf(from, sizeof(from), "\"%s\": true", key[_i]);
	snprintf(to, sizeof(to), "\"%s\": false", key[_i]);
	edit(CONFIG, from, to);
	ck_assert_str_ne(name_in(folder), was);
}
END_TEST

/* ---- weights --------------------------------------------------------------------------------- */

/* Flips the last bit of a tensor's last element, and restores the file's times. */
static void change_tensor(const char *path, const struct skv_tensor *t, const uint8_t *map)
{
	const off_t at = t->data - map + (off_t)(t->end - t->begin) - 2;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct timespec times[2];
	struct stat st;
	uint8_t byte;

	ck_assert(fd >= 0 && fstat(fd, &st) == 0);
	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	ck_assert_int_eq(futimens(fd, times), 0);
	close(fd);
}

START_TEST(each_tensor)
{
	char was[SKV_NAME_MAX], path[512];
	struct skv_safetensors st;
	unsigned changed = 0;

	strcpy(path, fx_path(folder, WEIGHTS));
	ck_assert_int_eq(skv_safetensors_open(&st, path, (char[200]){0}, 200), 0);
	strcpy(was, name_in(folder));
	for (size_t i = 0; i < st.n_tensors; i++) {
		const struct skv_tensor *t = &st.tensors[i];
		const bool counts = strcmp(t->name, "lm_head.weight") != 0;

		change_tensor(path, t, st.map);
		ck_assert_msg((strcmp(name_in(folder), was) != 0) == counts, "%s", t->name);
		change_tensor(path, t, st.map);
		ck_assert_str_eq(name_in(folder), was);
		changed += counts;
	}
	ck_assert_uint_gt(changed, 20);
	skv_safetensors_deinit(&st);
}
END_TEST

/* A mapping of a file that was replaced, or changed, is not what the path has: its sum must not be kept for the path. */
START_TEST(replaced_meanwhile)
{
	char path[512], next[520];
	struct skv_safetensors st;
	size_t n;
	char *bytes;

	strcpy(path, fx_path(folder, WEIGHTS));
	snprintf(next, sizeof(next), "%s.next", path);
	bytes = fx_read(path, &n);
	ck_assert_int_eq(skv_safetensors_open(&st, path, (char[200]){0}, 200), 0);
	ck_assert(skv_safetensors_is_current(&st));
	fx_write(next, bytes, n);
	ck_assert_int_eq(rename(next, path), 0);
	ck_assert(!skv_safetensors_is_current(&st));
	skv_safetensors_deinit(&st);
	usleep(20000); /* times of files have the resolution of the kernel's ticks */
	ck_assert_int_eq(skv_safetensors_open(&st, path, (char[200]){0}, 200), 0);
	ck_assert(skv_safetensors_is_current(&st));
	change_tensor(path, &st.tensors[0], st.map);
	ck_assert(!skv_safetensors_is_current(&st));
	skv_safetensors_deinit(&st);
	free(bytes);
}
END_TEST

START_TEST(another_path)
{
	char was[SKV_NAME_MAX], *first = folder;

	strcpy(was, name_in(folder));
	folder = fx_folder();
	copy_model(GOLDEN "windows");
	ck_assert_str_eq(name_in(folder), was);
	ck_assert_int_eq(strncmp(was, "qwen2-", 6), 0);
	ck_assert_uint_eq(strlen(was), 6 + 32);
	fx_remove(first);
}
END_TEST

/* The tensors count, but not how they are distributed over files. */
START_TEST(shards)
{
	struct skv_identity parts = SKV_IDENTITY_INIT, whole = SKV_IDENTITY_INIT;
	static const char *const shard[] = {"1", "2", "3", "4"};

	shell("rm", fx_path(folder, WEIGHTS));
	copy_model(GOLDEN "qwen2");
	ck_assert_int_eq(skv_identity_add_files(&whole, folder), 0);
	for (int i = 0; i < 4; i++) {
		char name[64];
		struct skv_safetensors st;

		snprintf(name, sizeof(name), "model-0000%s-of-00004.safetensors", shard[3 - i]);
		ck_assert_int_eq(skv_safetensors_open(&st, fx_path(folder, name), (char[200]){0}, 200), 0);
		for (size_t k = 0; k < st.n_tensors; k++) {
			const struct skv_tensor *t = &st.tensors[k];

			ck_assert_int_eq(skv_identity_add_tensor(&parts, t->name, t->dtype, (t->end - t->begin) / skv_dtype_bytes(t->dtype), t->data), 0);
		}
		skv_safetensors_deinit(&st);
	}
	ck_assert(parts.low == whole.low && parts.high == whole.high);
}
END_TEST

/* ---- files that are replaced while they are read ---------------------------------------------- */

#define FIRST_SHARD "model-00001-of-00004.safetensors"
#define THIRD_SHARD "model-00003-of-00004.safetensors"

/* A thread that replaces a shard while a reader waits at a FIFO. */
struct replacing {
	char at[1024];           /* path of the FIFO */
	char next[1024];         /* another FIFO, for the reader who comes second; "": the first one is waited for */
	char from[520], to[512]; /* paths of the new shard and of the old one */
	char *text;              /* what a reader gets */
	pthread_t thread;
};

static void *replace(void *arg)
{
	const struct replacing *x = arg;
	int fd = open(x->at, O_WRONLY | O_CLOEXEC); /* waits for a reader */

	if (*x->next) {
		ck_assert_int_eq(rename(x->next, x->at), 0);
		ck_assert_int_eq(write(fd, x->text, strlen(x->text)), (ssize_t)strlen(x->text));
		close(fd);
		fd = open(x->at, O_WRONLY | O_CLOEXEC);
	}
	ck_assert_int_eq(rename(x->from, x->to), 0);
	ck_assert_int_eq(write(fd, x->text, strlen(x->text)), (ssize_t)strlen(x->text));
	close(fd);
	return NULL;
}

/* Makes the model of four shards, and another third one, which differs in one bit. */
static void make_shards(struct replacing *x)
{
	struct skv_safetensors st;
	size_t n;
	char *bytes;

	shell("rm", fx_path(folder, WEIGHTS));
	copy_model(GOLDEN "qwen2");
	strcpy(x->to, fx_path(folder, THIRD_SHARD));
	snprintf(x->from, sizeof(x->from), "%s.next", x->to);
	bytes = fx_read(x->to, &n);
	fx_write(x->from, bytes, n);
	free(bytes);
	ck_assert_int_eq(skv_safetensors_open(&st, x->from, (char[200]){0}, 200), 0);
	change_tensor(x->from, &st.tensors[0], st.map);
	skv_safetensors_deinit(&st);
}

static char found[1024], wanted[24]; /* the file of the cache whose name contains `wanted` */

static int find_sum(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)at;
	if (type == FTW_F && strstr(path, wanted))
		strcpy(found, path);
	return 0;
}

/*
 * While the sum of the first shard is looked up in the cache, the third one is replaced. The sum of the old file must
 * not be kept for the new one, which has its name: the next identity is the same as without a cache.
 */
START_TEST(replaced_while_it_is_read)
{
	struct skv_identity old = SKV_IDENTITY_INIT, now = SKV_IDENTITY_INIT, plain = SKV_IDENTITY_INIT;
	struct replacing x = {.text = ""};
	struct stat st;

	make_shards(&x);
	ck_assert_int_eq(skv_identity_add_files(&old, folder), 0);
	ck_assert_int_eq(stat(fx_path(folder, FIRST_SHARD), &st), 0);
	snprintf(wanted, sizeof(wanted), "-%jx-", (uintmax_t)st.st_ino);
	ck_assert_int_eq(nftw(cache, find_sum, 8, FTW_PHYS), 0);
	ck_assert(*found);
	shell("rm -r", fx_path(cache, "sparsekv"));
	shell("mkdir -p", fx_path(cache, "sparsekv/weights"));
	strcpy(x.at, found);
	ck_assert_int_eq(mkfifo(x.at, 0600), 0);
	ck_assert_int_eq(pthread_create(&x.thread, NULL, replace, &x), 0);
	ck_assert_int_eq(skv_identity_add_files(&(struct skv_identity)SKV_IDENTITY_INIT, folder), -ESTALE);
	ck_assert_ptr_nonnull(strstr(skv_last_error(), THIRD_SHARD " was replaced or changed"));
	ck_assert_int_eq(pthread_join(x.thread, NULL), 0);
	ck_assert_int_eq(skv_identity_add_files(&now, folder), 0);
	setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
	ck_assert_int_eq(skv_identity_add_files(&plain, folder), 0);
	ck_assert(memcmp(&now, &plain, sizeof(now)) == 0 && memcmp(&now, &old, sizeof(now)) != 0);
}
END_TEST

/*
 * A shard is replaced after the weights were read and before the model is named: the name would be that of a model that
 * was not loaded.
 */
START_TEST(replaced_while_it_is_loaded)
{
	struct replacing x = {0};
	struct eng_model m;
	struct eng_error err;

	make_shards(&x);
	strcpy(x.at, fx_path(folder, "model.safetensors.index.json"));
	snprintf(x.next, sizeof(x.next), "%s.next", x.at);
	x.text = fx_read(x.at, &(size_t){0});
	ck_assert_int_eq(unlink(x.at), 0);
	ck_assert_int_eq(mkfifo(x.at, 0600), 0);
	ck_assert_int_eq(mkfifo(x.next, 0600), 0);
	ck_assert_int_eq(pthread_create(&x.thread, NULL, replace, &x), 0);
	ck_assert_int_eq(eng_model_load(&m, folder, eng_backend_host(), SKV_F32, &err), -ESTALE);
	ck_assert_msg(strstr(err.text, THIRD_SHARD " was replaced or changed"), "%s", err.text);
	ck_assert_int_eq(pthread_join(x.thread, NULL), 0);
	free(x.text);
}
END_TEST

/* ---- items ----------------------------------------------------------------------------------- */

static struct skv_identity of_tensor(const char *name, uint32_t dtype, uint64_t n, const void *data)
{
	struct skv_identity id = SKV_IDENTITY_INIT;

	ck_assert_int_eq(skv_identity_add_tensor(&id, name, dtype, n, data), 0);
	return id;
}

static bool equal(struct skv_identity a, struct skv_identity b)
{
	return a.low == b.low && a.high == b.high;
}

START_TEST(numbers_and_not_their_dtype)
{
	enum { N = 10007 };
	static float wide[N];
	static uint16_t bf16[N], f16[N];

	for (uint32_t i = 0; i < N; i++) {
		const int number = (int)rnd_below(200) - 100; /* exact in fp32 and bf16 */

		wide[i] = (float)number / 16;
		memcpy(&bf16[i], (char *)&wide[i] + 2, 2);
		f16[i] = (uint16_t)rnd64();
	}
	ck_assert(equal(of_tensor("w", SKV_F32, N, wide), of_tensor("w", SKV_BF16, N, bf16)));
	ck_assert(!equal(of_tensor("w", SKV_F32, N, wide), of_tensor("v", SKV_F32, N, wide)));
	ck_assert(!equal(of_tensor("w", SKV_F32, N, wide), of_tensor("w", SKV_F32, N - 1, wide)));
	ck_assert(!equal(of_tensor("w", SKV_F16, N, f16), of_tensor("w", SKV_BF16, N, f16)));
	ck_assert_int_eq(skv_identity_add_tensor(&(struct skv_identity)SKV_IDENTITY_INIT, "w", SKV_FP8, N, wide), -EINVAL);
	ck_assert_ptr_nonnull(strstr(skv_last_error(), "tensor w: dtype is"));
}
END_TEST

START_TEST(any_order)
{
	struct skv_identity a = SKV_IDENTITY_INIT, b = SKV_IDENTITY_INIT, c = SKV_IDENTITY_INIT;

	skv_identity_add_text(&a, "x", "1");
	skv_identity_add_number(&a, "y", 2);
	skv_identity_add_number(&b, "y", 2);
	skv_identity_add_text(&b, "x", "1");
	skv_identity_add_text(&c, "y", "1");
	skv_identity_add_number(&c, "x", 2);
	ck_assert(equal(a, b) && !equal(a, c));
}
END_TEST

/* ---- the cache ------------------------------------------------------------------------------- */

static bool others; /* spoil() changes the owner of the cache's files */

static int spoil(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)at;
	if (type == FTW_F) {
		fx_text(path, "0123456789abcdef");
		ck_assert(!others || chown(path, 12345, 12345) == 0);
	}
	return 0;
}

/* Overwrites the content of the cache's files. */
static void spoil_cache(bool of_another)
{
	others = of_another;
	ck_assert_int_eq(nftw(cache, spoil, 8, FTW_PHYS), 0);
}

START_TEST(files_are_read_once)
{
	char was[SKV_NAME_MAX];

	strcpy(was, name_in(folder));
	spoil_cache(false); /* the cache is trusted: another checksum in it gives another name */
	ck_assert_str_ne(name_in(folder), was);
	if (has_capability(CAP_CHOWN)) {
		spoil_cache(true);
		ck_assert_str_eq(name_in(folder), was);
	}
}
END_TEST

/* Without a cache, or with one that cannot be written, the files are read each time. */
START_TEST(no_cache)
{
	char was[SKV_NAME_MAX];

	strcpy(was, name_in(folder));
	setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
	ck_assert_str_eq(name_in(folder), was);
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HOME");
	ck_assert_str_eq(name_in(folder), was);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-identity");
	TCase *t = add_case(s, "models", 60, setup, teardown, each_tensor, replaced_meanwhile, replaced_while_it_is_read,
	                    replaced_while_it_is_loaded, another_path, shards, numbers_and_not_their_dtype, any_order, files_are_read_once, no_cache, NULL);

	tcase_add_loop_test(t, numbers_of_the_configuration, 0, (int)(sizeof(changes) / sizeof(changes[0])));
	tcase_add_loop_test(t, biases_that_are_switched_off, 0, 2);
	return run_suite(s);
}
