/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a tokenizer's file: it is rejected with a text, or every text has ids that decode. The text follows the JSON,
 * after a NUL.
 */
#include <string.h>

#include "formats/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "tokenizer";
const int fuzz_copies = 200;

void fuzz_one(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;
	size_t n = end ? (size_t)(end - data) : size;
	struct skv_ids ids = SKV_IDS_NULL;
	struct skv_tokenizer *t;
	char err[512] = "";

	if (skv_tokenizer_parse(&t, (const char *)data, n, "fuzz", err, sizeof(err))) {
		MUST(!strncmp(err, "fuzz: ", 6));
		return;
	}
	if (end && skv_tokenizer_encode(t, (const char *)end + 1, size - n - 1, size % 4, &ids, err, sizeof(err)))
		MUST(err[0] && !ids.n);
	for (size_t i = 0, len; i < ids.n; i++)
		MUST(skv_tokenizer_bytes(t, ids.id[i], &len));
	skv_ids_deinit(&ids);
	skv_tokenizer_free(t);
}
