/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja.h - chat templates: the subset of Jinja that they use.
 *
 * A template renders to the same text as the Python package jinja2, configured as by transformers (trim_blocks,
 * lstrip_blocks, raise_exception(), strftime_now()), or to an error that names the line and the unsupported feature;
 * it never renders to another text. Supported are if, for, set, macro, namespaces, expressions over text, integers,
 * lists and mappings, and the filters, tests and methods of jinja-calls.c. Statements are checked when the template
 * is parsed; an unknown filter, test or method is an error when it is reached.
 *
 * A template comes with a model, which may be untrusted: parsing and rendering are bounded in depth, work and memory.
 */
#ifndef ENG_JINJA_H
#define ENG_JINJA_H

#include <jansson.h>
#include <stddef.h>
#include <time.h>
#include "engine/error.h"

struct eng_jinja;

/* Parses a source, which is copied. -EINVAL with a text that has the line number, -ENOMEM. */
int eng_jinja_parse(struct eng_jinja **ret, const char *source, struct eng_error *err);
void eng_jinja_free(struct eng_jinja *t);

/*
 * Renders a template. *ret: the text, *ret_n bytes and a NUL; the caller frees it. `variables`: an object, which is
 * not changed; `now`: the time of strftime_now(). -EINVAL with a text: unsupported, or the text of the template's
 * raise_exception(); -E2BIG: the limit of work or text is exceeded; -ENOMEM. A template is read-only: any number of
 * threads may render it, each with its own variables.
 */
int eng_jinja_render(const struct eng_jinja *t, json_t *variables, time_t now, char **ret, size_t *ret_n,
                     struct eng_error *err);

#endif
