/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fuzz/fuzz.h - tests of code that must be correct for arbitrary input bytes.
 *
 * Each tests/fuzz/fuzz-NAME.c defines fuzz_one(), which must succeed for any input. `make check` replays the files in
 * tests/fuzz/corpus/NAME, and truncated and modified copies of each. `make fuzz-NAME` builds and runs it under clang's
 * libFuzzer, which searches for inputs that reach new code. Inputs that reveal errors are added to the corpus.
 */
#ifndef SKV_TEST_FUZZ_H
#define SKV_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asserts what must hold for any input. */
#define MUST(x)                                                                                             \
	do {                                                                                                \
		if (!(x)) {                                                                                 \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                     \
			abort();                                                                            \
		}                                                                                           \
	} while (0)

/* Name of the folder in the corpus, and number of modified copies of each file that `make check` tries. */
extern const char fuzz_name[];
extern const int fuzz_copies;
void fuzz_one(const uint8_t *data, size_t size);

/* An input that is consumed piece by piece; zeros follow its end. */
struct fuzz_input {
	const uint8_t *at;
	size_t left;
};

static inline void fuzz_take(struct fuzz_input *in, void *to, size_t bytes)
{
	size_t n = bytes < in->left ? bytes : in->left;

	memset(to, 0, bytes);
	if (n)
		memcpy(to, in->at, n);
	in->at += n;
	in->left -= n;
}
static inline uint8_t fuzz_u8(struct fuzz_input *in)
{
	uint8_t x;

	fuzz_take(in, &x, sizeof(x));
	return x;
}
static inline uint16_t fuzz_u16(struct fuzz_input *in)
{
	uint16_t x;

	fuzz_take(in, &x, sizeof(x));
	return x;
}
static inline uint32_t fuzz_u32(struct fuzz_input *in)
{
	uint32_t x;

	fuzz_take(in, &x, sizeof(x));
	return x;
}

#endif
