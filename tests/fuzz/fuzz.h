/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fuzz/fuzz.h - code that must hold for any bytes, under bytes that nobody thought of.
 *
 * Each tests/fuzz/fuzz-NAME.c defines fuzz_one(), which must hold for any bytes. `make check` replays the
 * files in tests/fuzz/corpus/NAME, and cut and changed copies of each; `make fuzz-NAME` builds and runs it under
 * clang's libFuzzer, which looks for inputs that reach new code. What it finds goes into the corpus.
 */
#ifndef SKV_TEST_FUZZ_H
#define SKV_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What must hold for any bytes. */
#define MUST(x)                                                                                             \
	do {                                                                                                \
		if (!(x)) {                                                                                 \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                     \
			abort();                                                                            \
		}                                                                                           \
	} while (0)

/* Its name: that of its folder in the corpus; and how many changed copies of each file `make check` tries. */
extern const char fuzz_name[];
extern const int fuzz_copies;
void fuzz_one(const uint8_t *data, size_t size);

/* An input, taken piece by piece; zeros after its end. */
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
