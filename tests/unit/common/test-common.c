/* SPDX-License-Identifier: Apache-2.0 */
/* The basis of the larger parts of common/: strings, names and models of the wire, sorting, file descriptors. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"
#include "common/sort.h"
#include "common/wire.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* ---- strings, names, models ------------------------------------------------------------------ */

START_TEST(strings)
{
	char field[8];

	skv_wire_string(field, sizeof(field), "abc");
	ck_assert_mem_eq(field, "abc\0\0\0\0\0", 8);
	skv_wire_string(field, sizeof(field), "abcdefghij");
	ck_assert_mem_eq(field, "abcdefg\0", 8);
	skv_wire_string(field, sizeof(field), "a\n\xc3\xa4\x7f");
	ck_assert_mem_eq(field, "a????\0\0\0", 8);
	skv_wire_string(field, sizeof(field), NULL);
	ck_assert_mem_eq(field, "\0\0\0\0\0\0\0\0", 8);
}
END_TEST

START_TEST(valid_names)
{
	char long_name[SKV_NAME_MAX + 1];

	memset(long_name, 'n', sizeof(long_name));
	long_name[SKV_NAME_MAX] = '\0';
	ck_assert(!skv_name_valid(long_name));
	long_name[SKV_NAME_MAX - 1] = '\0';
	ck_assert(skv_name_valid(long_name));
	ck_assert(skv_name_valid("chat-17"));
	ck_assert(skv_name_valid("~!?&=."));
	ck_assert(!skv_name_valid(""));
	ck_assert(!skv_name_valid("a b"));
	ck_assert(!skv_name_valid("a/b"));
	ck_assert(!skv_name_valid("a\tb"));
	ck_assert(!skv_name_valid("\xc3\xa4"));
	ck_assert(skv_model_name_valid("HuggingFaceTB/SmolLM2-135M"));
	ck_assert(skv_model_name_valid("/models/../a//b/"));
	ck_assert(!skv_model_name_valid(""));
	ck_assert(!skv_model_name_valid("a b/c"));
	ck_assert(!skv_model_name_valid("a/\t"));
}
END_TEST

static const struct skv_model good = {
	.size = sizeof(good),
	.n_layers = 16,
	.n_heads = 8,
	.n_kv_heads = 2,
	.head_dim = 64,
	.kv_dtype = SKV_BF16,
	.max_tokens = 16384,
	.scale = 0.3f,
	.rank = 1,
	.n_ranks = 2,
	.name = "reference",
	.device = SKV_DEVICE_CUDA(15),
};

START_TEST(models_on_the_wire)
{
	struct skv_wire_model wire;
	struct skv_model back;

	memset(&back, 0xff, sizeof(back));
	skv_wire_from_model(&wire, &good);
	skv_wire_to_model(&back, &wire);
	ck_assert_mem_eq(&back, &good, sizeof(good));
	ck_assert_ptr_null(skv_model_check(&back));
}
END_TEST

#define BAD_MODEL(member, value, says)                                                                      \
	do {                                                                                                \
		struct skv_model bad = good;                                                                \
		const char *wrong;                                                                          \
		bad.member = value;                                                                         \
		wrong = skv_model_check(&bad);                                                              \
		ck_assert_msg(wrong && strstr(wrong, says), "%s", wrong ? wrong : "nothing wrong");         \
	} while (0)

START_TEST(models)
{
	struct skv_model m = good;

	BAD_MODEL(n_layers, 0, "n_layers");
	BAD_MODEL(n_layers, 257, "n_layers must be 1 to 256");
	BAD_MODEL(n_heads, 0, "n_heads");
	BAD_MODEL(n_heads, 512, "n_heads");
	BAD_MODEL(n_kv_heads, 0, "n_kv_heads must divide n_heads");
	BAD_MODEL(n_kv_heads, 3, "n_kv_heads");
	BAD_MODEL(n_kv_heads, 16, "n_kv_heads");
	BAD_MODEL(head_dim, 0, "head_dim");
	BAD_MODEL(head_dim, 72, "head_dim");
	BAD_MODEL(head_dim, 272, "head_dim");
	BAD_MODEL(kv_dtype, 4, "kv_dtype");
	BAD_MODEL(max_tokens, 0, "max_tokens");
	BAD_MODEL(max_tokens, SKV_MAX_TOKENS + 1, "max_tokens");
	BAD_MODEL(scale, -1, "scale");
	BAD_MODEL(scale, __builtin_nanf(""), "scale");
	BAD_MODEL(scale, __builtin_inff(), "scale");
	BAD_MODEL(n_ranks, 0, "rank");
	BAD_MODEL(rank, 2, "rank");
	BAD_MODEL(device, SKV_DEVICE_CUDA(SKV_MAX_DEVICES), "device");
	BAD_MODEL(io_dtype, 3, "io_dtype must be 0 (fp32), 1");
	BAD_MODEL(name[0], 0, "name");
	BAD_MODEL(name[0], ' ', "name");
	m.io_dtype = SKV_BF16;
	ck_assert_ptr_null(skv_model_check(&m));
	memset(m.name, 'n', sizeof(m.name));
	ck_assert_str_eq(skv_model_check(&m),
	                 "model: name must be 1 to 63 printable ASCII characters without space");
}
END_TEST

/* ---- numbers in order ------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Few and many numbers, of few and of all values, so that some digits are equal in all numbers. */
START_TEST(sorts)
{
	static const uint32_t masks[] = {0, 1, 0xff, 0xff00, 0xfffff, 0xff000000, UINT32_MAX};
	uint32_t v[3000], as[3000];

	for (int i = 0; i < 2000; i++) {
		const size_t n = rnd_below(i % 2 ? 100 : 3000);
		const uint32_t mask = masks[rnd_below(sizeof(masks) / sizeof(masks[0]))], base = (uint32_t)rnd64() & ~mask;

		for (size_t k = 0; k < n; k++)
			v[k] = as[k] = base | ((uint32_t)rnd64() & mask);
		qsort(as, n, sizeof(*as), ascending);
		skv_sort_u32(v, n);
		ck_assert_msg(memcmp(v, as, n * sizeof(*v)) == 0, "%zu numbers, mask %x", n, mask);
	}
}
END_TEST

/* ---- fds ------------------------------------------------------------------------------------- */

START_TEST(memory_by_fd)
{
	int fd = skv_memfd_new("test", 8192), copy = skv_memfd_new_sealed("test", "code", 4), plain, flags;
	int pipe_fds[2];
	void *p, *q;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(skv_map_fd(fd, 8192, PROT_READ | PROT_WRITE, 1, &p), 0);
	ck_assert_int_eq(skv_map_fd(fd, 8192, PROT_READ, 1, &q), 0);
	ck_assert_int_eq(((char *)q)[8191], 0);
	((char *)p)[8191] = 7;
	ck_assert_int_eq(((char *)q)[8191], 7);
	ck_assert_int_eq(munmap(p, 8192) + munmap(q, 8192), 0);
	ck_assert_int_eq(ftruncate(fd, 4096), -1);
	ck_assert_int_eq(ftruncate(fd, 16384), -1);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	flags = fcntl(fd, F_GETFD);
	ck_assert_int_eq(flags & FD_CLOEXEC, FD_CLOEXEC);

	p = NULL;
	ck_assert_int_eq(skv_map_fd(fd, 8193, PROT_READ, 1, &p), -EBADMSG);
	ck_assert_int_eq(skv_map_fd(fd, 0, PROT_READ, 1, &p), -EINVAL);
	ck_assert_int_eq(skv_map_fd(-1, 4096, PROT_READ, 1, &p), -EBADF);
	plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(plain, 4096), 0);
	ck_assert_int_eq(skv_map_fd(plain, 4096, PROT_READ, 1, &p), -EBADMSG);
	ck_assert_int_eq(pipe(pipe_fds), 0);
	ck_assert_int_eq(skv_map_fd(pipe_fds[0], 4096, PROT_READ, 0, &p), -EBADMSG);
	ck_assert_ptr_null(p);
	ck_assert_int_eq(skv_map_fd(plain, 4096, PROT_READ, 0, &p), 0);
	ck_assert_int_eq(munmap(p, 4096), 0);

	ck_assert_int_ge(copy, 0);
	ck_assert_int_eq(pwrite(copy, "x", 1, 0), -1);
	ck_assert_int_eq(errno, EPERM);

	errno = ERANGE;
	ck_assert_int_eq(skv_close_fd(fd), -1);
	ck_assert_int_eq(skv_close_fd(-1), -1);
	ck_assert_int_eq(errno, ERANGE);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
	skv_close_fd(copy);
	skv_close_fd(plain);
	skv_close_fd(pipe_fds[0]);
	skv_close_fd(pipe_fds[1]);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-common");

	rnd_seed("test-common");
	add_case(s, "common", 60, NULL, NULL, strings, valid_names, models_on_the_wire, models, sorts, memory_by_fd,
	         NULL);
	return run_suite(s);
}
