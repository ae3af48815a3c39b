/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fuzz/fuzz.h - parsers under inputs that nobody thought of.
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

/* What must hold for any bytes. */
#define MUST(x)                                                                                             \
	do {                                                                                                \
		if (!(x)) {                                                                                 \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                     \
			abort();                                                                            \
		}                                                                                           \
	} while (0)

/* Its name: that of its folder in the corpus. */
extern const char fuzz_name[];
void fuzz_one(const uint8_t *data, size_t size);

#endif
