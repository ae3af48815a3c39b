/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/error.h - errors of the engine: a negative errno and one line of text.
 *
 * The text names the input at fault (file, tensor, key, option), its value and the expected value. The function that
 * finds the fault writes the text; main() prints it.
 */
#ifndef ENG_ERROR_H
#define ENG_ERROR_H

struct eng_error {
	char text[512];
};

/* Writes the text and returns `code`, a negative errno, so that the caller can write `return eng_fail(…)`. */
int eng_fail(struct eng_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
