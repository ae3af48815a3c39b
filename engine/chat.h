/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chat.h - a dialogue as a model was trained on it: ChatML, or the form of Llama 3.
 *
 * Which one, and what the system is told where nobody says, is read from the folder's template (chat_template.jinja, or
 * chat_template in tokenizer_config.json). A template is a program; it is not run, but recognised by what it writes. What
 * the user says is text: names of special tokens in it control nothing.
 */
#ifndef ENG_CHAT_H
#define ENG_CHAT_H

#include "engine/tokens.h"

struct eng_chat {
	const struct eng_tokens *tokens;
	int32_t begin;        /* before all, or -1 */
	int32_t open, middle; /* around a role; middle -1: there is none */
	int32_t close;        /* ends a turn */
	const char *behind_role, *behind_turn;
	bool trim;    /* white space around what is said is left out */
	char *facts;  /* what the system is told in any case, before anything else; or NULL */
	char *system; /* what it is told by default, or NULL */
};
#define ENG_CHAT_NULL ((struct eng_chat){.tokens = NULL})

/* -EINVAL with a text: no tokenizer, no template, or one of another form. `tokens` outlives it. */
int eng_chat_load(struct eng_chat *ret, const char *directory, const struct eng_tokens *tokens, struct eng_error *err);
void eng_chat_deinit(struct eng_chat *c);

/*
 * Append to a dialogue what goes on with it: at its beginning what the system is told (`system`; NULL: the default);
 * behind a turn that was cut off, its end; then the user's turn, and the beginning of the answer. -ENOMEM, or as
 * eng_tokens_encode().
 */
int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err);

#endif
