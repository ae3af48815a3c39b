/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/sys/json.h"

#include <stdlib.h>

/* The text's size is computed first: json_dumps() loses parts of the text if it cannot enlarge its buffer. */
char *skv_json_text(const json_t *value, size_t flags)
{
	const size_t n = value ? json_dumpb(value, NULL, 0, flags) : 0;
	char *text = n ? malloc(n + 1) : NULL;

	if (!text)
		return NULL;
	if (json_dumpb(value, text, n, flags) != n) {
		free(text);
		return NULL;
	}
	text[n] = 0;
	return text;
}
