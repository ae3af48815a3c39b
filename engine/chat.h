/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chat.h - dialogues in the format of the model's chat template.
 *
 * The template (chat_template.jinja, or chat_template in tokenizer_config.json) is rendered by jinja.h as transformers'
 * apply_chat_template() renders it. The texts of the user and the system are plain text: if they contain the name of a
 * special token, it is not encoded as that token.
 *
 * Tokens are only appended to a dialogue, because its KV cache can only grow: the next turn appends what the template
 * writes after an answer. An answer stays in the dialogue as the model generated it, with its thinking, even if the
 * template omits the thinking of earlier answers. A template is refused if it writes a turn of the user or the system
 * differently once later turns follow.
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
	/* bos_token and other "…_token" keys of tokenizer_config.json, and variables that transformers sets */
	json_t *variables;
	/* time of loading, for strftime_now(): the date in the rendered text stays the same for all turns */
	time_t now;
	int32_t close;     /* special token that ends an answer; -1: none */
};
#define ENG_CHAT_NULL ((struct eng_chat){.tokens = NULL})

/*
 * Loads the chat template of `directory`. `tokens` must outlive *ret. Returns -EINVAL with a text if there is no
 * tokenizer or no template, if jinja.h does not support the template, or if the template writes earlier turns
 * differently when later turns follow.
 */
int eng_chat_load(struct eng_chat *ret, const char *directory, const struct eng_tokens *tokens, struct eng_error *err);
void eng_chat_deinit(struct eng_chat *c);

/*
 * Appends the user's text `said` (n bytes) to a dialogue as its next turn, and then the beginning of the model's
 * answer. In an empty dialogue, the system text comes first (`system`; NULL: the template's default). If the last
 * answer was cut off, the token that ends an answer comes first. Returns 0, -ENOMEM, an error of eng_jinja_render() or
 * skv_tokenizer_encode(), or -EINVAL with a text if the template, with this `system`, writes earlier turns differently
 * when later turns follow. After an error the dialogue is unchanged.
 */
int eng_chat_turn(const struct eng_chat *c, const char *system, const char *said, size_t n, struct skv_ids *dialogue,
                  struct eng_error *err);

#endif
