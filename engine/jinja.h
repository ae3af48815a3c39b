/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja.h - chat templates: the part of Jinja that they are written in.
 *
 * A template gives what the Python package jinja2 gives, set up as transformers does (trim_blocks, lstrip_blocks,
 * raise_exception(), strftime_now()), or an error that names the line and what is not supported; it never gives another
 * text. Supported are if, for, set, macro, namespaces, expressions over text, integers, lists and mappings, and the
 * filters, tests and methods of jinja-calls.c. Statements are checked when the template is parsed; a filter, test or
 * method that is unknown is an error when it is reached.
 *
 * A template comes with a model, from anywhere: parsing and rendering are bounded in depth, work and memory.
 */
#ifndef ENG_JINJA_H
#define ENG_JINJA_H

#include <jansson.h>
#include <stddef.h>
#include <time.h>
#include "engine/error.h"

struct eng_jinja;

/* The source is copied. -EINVAL with a text that has the line, -ENOMEM. */
int eng_jinja_parse(struct eng_jinja **ret, const char *source, struct eng_error *err);
void eng_jinja_free(struct eng_jinja *t);

/*
 * Render a template. *ret: the text, *ret_n bytes and a NUL; the caller frees it. `variables`: an object, which is
 * not changed; `now`: the time of strftime_now(). -EINVAL with a text: not supported, or what the template itself
 * says by raise_exception(); -E2BIG: more work or text than a template may cost; -ENOMEM. A template is read-only: any
 * number of threads may render it, each with variables of its own.
 */
int eng_jinja_render(const struct eng_jinja *t, json_t *variables, time_t now, char **ret, size_t *ret_n,
                     struct eng_error *err);

#endif
