/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chat.h - dialogues in the format of the model's chat template.
 *
 * The template (chat_template.jinja, or chat_template in tokenizer_config.json) is run as transformers'
 * apply_chat_template() runs it (jinja.h). Text of the user and the system is plain text: names of special tokens in
 * it have no effect.
 *
 * A dialogue only grows, as its KV cache does: to continue it means to append what the template writes after an
 * answer. An answer stays as it was generated, with its thinking, even if the template omits the thinking of earlier
 * answers. A template that changes earlier turns of the user or the system once there are later ones is refused.
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
	json_t *variables; /* bos_token and other "…_token" keys, and the variables that transformers sets */
	time_t now;        /* time of loading: the date that a template writes does not change */
	int32_t close;     /* the special token that ends an answer, or -1 */
};
#define ENG_CHAT_NULL ((struct eng_chat){.tokens = NULL})

/*
 * Loads the chat template of `directory`. `tokens` must outlive it. -EINVAL with a text: no tokenizer, no template, a
 * template that jinja.h does not support, or one whose dialogues do not only grow.
 */
int eng_chat_load(struct eng_chat *ret, const char *directory, const struct eng_tokens *tokens, struct eng_error *err);
void eng_chat_deinit(struct eng_chat *c);

/*
 * Appends the next turn to a dialogue. At its beginning: the system text (`system`; NULL: the template's default).
 * After a turn that was cut off: its end. Then the user's turn and the beginning of the answer. On an error the
 * dialogue is unchanged: -ENOMEM, errors of eng_jinja_render() and skv_tokenizer_encode(), or -EINVAL with a text:
 * with this `system` the dialogue would not only grow.
 */
int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err);

#endif
