/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenize TOKENIZER [decode | template | plain]: texts on stdin, each behind its length in bytes as a line; a line of ids
 * for each on stdout. With `decode` also, behind a tab, the decoded text's bytes in hexadecimal. For compare.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include "formats/tokenizer/tokenizer.h"

static void print_decoded(const struct skv_tokenizer *t, const struct skv_ids *ids)
{
	struct skv_utf8_stream s = SKV_UTF8_STREAM_NULL;
	size_t len, n;

	putchar('\t');
	for (size_t i = 0; i <= ids->n; i++) {
		const char *bytes = i < ids->n ? skv_tokenizer_bytes(t, ids->id[i], &len) : NULL;
		char out[i < ids->n && bytes ? 3 * (len + 3) : 9];

		if (i < ids->n && (!bytes || skv_tokenizer_special(t, ids->id[i])))
			continue;
		n = i < ids->n ? skv_utf8_push(&s, bytes, len, out) : skv_utf8_end(&s, out);
		for (size_t k = 0; k < n; k++)
			printf("%02x", (unsigned char)out[k]);
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";
	bool plain = !strcmp(how, "plain");
	unsigned flags = !strcmp(how, "template") ? SKV_TOKENIZER_TEMPLATE : plain ? SKV_TOKENIZER_QUOTED : 0;
	struct skv_ids ids = SKV_IDS_NULL;
	struct skv_tokenizer *t;
	char err[512], *text, *quoted;
	size_t n;

	if (argc < 2 || skv_tokenizer_load(&t, argv[1], err, sizeof(err))) {
		fprintf(stderr, "%s\n", argc < 2 ? "usage: tokenize TOKENIZER [decode | template | plain]" : err);
		return 1;
	}
	while (scanf("%zu", &n) == 1 && getchar() == '\n') {
		text = malloc(n + 1);
		if (!text || fread(text, 1, n, stdin) != n)
			return 1;
		if (plain && !skv_tokenizer_quote(t, text, n, &quoted, &n, err, sizeof(err))) {
			free(text);
			text = quoted;
		}
		ids.n = 0;
		if (skv_tokenizer_encode(t, text, n, flags, &ids, err, sizeof(err)))
			printf("error %s", err);
		for (size_t i = 0; i < ids.n; i++)
			printf("%s%" PRId32, i ? " " : "", ids.id[i]);
		if (!strcmp(how, "decode"))
			print_decoded(t, &ids);
		putchar('\n');
		free(text);
	}
	skv_ids_deinit(&ids);
	skv_tokenizer_free(t);
	return 0;
}
