/* SPDX-License-Identifier: Apache-2.0 */
/*
 * render: lines of JSON on stdin, {"template": source, "variables": {...}}; for each a line, what the template writes as a
 * JSON text, or "error " and why. The time is 2026-02-03. For against-package.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/jinja.h"

static void render(const json_t *row)
{
	struct eng_error err;
	struct eng_jinja *t = NULL;
	char *text = NULL;
	size_t n;
	json_t *said;

	if (eng_jinja_parse(&t, json_string_value(json_object_get(row, "template")), &err) ||
	    eng_jinja_render(t, json_object_get(row, "variables"), 1770120000, &text, &n, &err)) {
		printf("error %s\n", err.text);
	} else {
		said = json_stringn(text, n);
		json_dumpf(said, stdout, JSON_ENCODE_ANY);
		putchar('\n');
		json_decref(said);
	}
	free(text);
	eng_jinja_free(t);
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);

		if (!row)
			return EXIT_FAILURE;
		render(row);
		json_decref(row);
	}
	free(line);
	return EXIT_SUCCESS;
}
