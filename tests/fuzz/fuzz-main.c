/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz-main.c - see fuzz.h: entry point of libFuzzer, or a program that replays a corpus. */
#include "tests/fuzz/fuzz.h"

#ifdef SKV_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_one(data, size);
	return 0;
}

#else

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/random.h"

#define LARGEST 100000u

/* Copies the input to memory of its exact size, so that sanitizers and valgrind detect reads beyond it. */
static void run(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size);

	if (size && !copy)
		abort();
	if (size)
		memcpy(copy, data, size);
	fuzz_one(copy, size);
	free(copy);
}

static void change_and_run(uint8_t *data, size_t size)
{
	static uint8_t changed[LARGEST];

	for (int i = 0; i < fuzz_copies; i++) {
		size_t n = rnd_below(4) ? size : rnd_below((uint32_t)size + 1);

		memcpy(changed, data, n);
		for (uint32_t c = n ? rnd_below(6) : 0; c > 0; c--)
			changed[rnd_below((uint32_t)n)] ^= (uint8_t)(c % 2 ? rnd64() : 1u << rnd_below(8));
		run(changed, n);
	}
}

int main(int argc, char **argv)
{
	static uint8_t data[LARGEST];
	const char *srcdir = getenv("srcdir");
	char path[4096];
	struct dirent *e;
	unsigned files = 0;
	DIR *d;

	rnd_seed(argv[0]);
	if (argc > 1)
		snprintf(path, sizeof(path), "%s", argv[1]);
	else
		snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".", fuzz_name);
	d = opendir(path);
	if (!d) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return 1;
	}
	run(data, 0);
	while ((e = readdir(d))) {
		char file[8192];
		FILE *f;
		size_t n;

		if (e->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
		f = fopen(file, "rb");
		if (!f) {
			fprintf(stderr, "%s: %s\n", file, strerror(errno));
			return 1;
		}
		n = fread(data, 1, sizeof(data), f);
		fclose(f);
		run(data, n);
		change_and_run(data, n);
		files++;
	}
	closedir(d);
	printf("%u files of %s, and %d changed copies of each\n", files, path, fuzz_copies);
	return files == 0;
}

#endif
