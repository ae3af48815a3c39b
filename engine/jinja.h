/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/jinja.h - an interpreter for chat templates: the subset of Jinja that these templates use.
 *
 * A template renders to the same text as with the Python package jinja2 as transformers configures it (trim_blocks,
 * lstrip_blocks, raise_exception(), strftime_now()). Otherwise rendering fails with an error that names the line and
 * the unsupported feature; the interpreter never renders a different text. Supported are if, for, set, macro,
 * namespaces, expressions over text, integers, lists and mappings, and the filters, tests and methods of jinja-calls.c.
 * Statements are checked when the template is parsed; an unknown filter, test or method is an error when it is reached.
 *
 * A template is part of a model, and the model may be untrusted. So parsing and rendering have limits of depth, work
 * and memory.
 */
#ifndef ENG_JINJA_H
#define ENG_JINJA_H

#include <jansson.h>
#include <stddef.h>
#include <time.h>
#include "engine/error.h"

struct eng_jinja;

/*
 * Parses the text of a template, which is copied. Returns 0, -EINVAL with a text that contains the line number, or
 * -ENOMEM.
 */
int eng_jinja_parse(struct eng_jinja **ret, const char *source, struct eng_error *err);
void eng_jinja_free(struct eng_jinja *t);

/*
 * Renders a template. *ret is the rendered text, *ret_n bytes and a NUL; the caller frees it. `variables` is a JSON
 * object, which is not changed; `now` is the time that strftime_now() formats. Returns 0; -EINVAL if a feature is not
 * supported or the template calls raise_exception(), whose text is in *err; -E2BIG if the work or the text exceeds its
 * limit; or -ENOMEM. Rendering does not change the template: any number of threads may render it at once, each with its
 * own variables.
 */
int eng_jinja_render(const struct eng_jinja *t, json_t *variables, time_t now, char **ret, size_t *ret_n,
                     struct eng_error *err);

#endif
