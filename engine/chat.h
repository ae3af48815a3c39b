/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chat.h - a dialogue as a model was trained on it: as the folder's chat template writes it.
 *
 * The template (chat_template.jinja, or chat_template in tokenizer_config.json) is run, as transformers'
 * apply_chat_template() runs it (jinja.h). What the user and the system say is text: names of special tokens in it control
 * nothing.
 *
 * A dialogue only grows, as its KV cache does: to go on is to write what the template has behind an answer. An answer stays as
 * it was generated, with its thinking, also where the template leaves the thinking of earlier answers out. A template that
 * writes earlier turns of the user or the system in another way, once there are later ones, is refused.
 */
#ifndef ENG_CHAT_H
#define ENG_CHAT_H

#include <jansson.h>
#include <time.h>
#include "engine/jinja.h"
#include "engine/tokens.h"

struct eng_chat {
	const struct eng_tokens *tokens;
	struct eng_jinja *template;
	json_t *variables; /* bos_token and its like, and what transformers sets */
	time_t now;        /* when it was loaded: the date that a template tells stays */
	int32_t close;     /* the special token that ends an answer, or -1 */
};
#define ENG_CHAT_NULL ((struct eng_chat){.tokens = NULL})

/*
 * -EINVAL with a text: no tokenizer, no template, or one that jinja.h does not support or whose dialogues do not only grow.
 * `tokens` outlives it.
 */
int eng_chat_load(struct eng_chat *ret, const char *directory, const struct eng_tokens *tokens, struct eng_error *err);
void eng_chat_deinit(struct eng_chat *c);

/*
 * Append to a dialogue what goes on with it: at its beginning what the system is told (`system`; NULL: what the template has
 * for that); behind a turn that was cut off, its end; then the user's turn, and the beginning of the answer. On an error the
 * dialogue is as it was: -ENOMEM, as eng_jinja_render(), as skv_tokenizer_encode(), or -EINVAL with a text: with this
 * `system` the dialogue would not only grow.
 */
int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err);

#endif
