/* SPDX-License-Identifier: Apache-2.0 */
/* engine/texts.h - the texts of a calibration: pieces of prose, or cases of a task file. */
#ifndef ENG_TEXTS_H
#define ENG_TEXTS_H

#include <stddef.h>
#include "engine/text.h"
#include "engine/tokens.h"

struct eng_texts {
	struct eng_text *list; /* owns the ids */
	uint32_t n, longest;
	uint64_t tokens;
	uint32_t recall_piece; /* tokens of a piece of engine/recall-task.h */
	uint32_t hash; /* FNV-1a of all token ids in their order */
};
#define ENG_TEXTS_NULL ((struct eng_texts){.hash = 2166136261u})

struct eng_texts_wanted {
	uint32_t context; /* tokens of a piece, and of the longest case taken, with bos */
	uint32_t texts;   /* pieces, or cases of each task and size */
	uint32_t rows;    /* rows that count in each; 0: all */
};

/*
 * Cuts pieces from a file of 16 bytes to 256 MiB, spread evenly and without overlap; the second half of each counts.
 * If there is not enough text, there are fewer or shorter pieces. At least 16 tokens are needed. -errno of the file,
 * -EINVAL, -ENOMEM.
 */
int eng_texts_read(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                   const struct eng_texts_wanted *wanted, struct eng_error *err);

/*
 * Reads the cases of a task file. In each the answer counts, from the prompt's last token on, which predicts its
 * first token.
 */
int eng_texts_read_tasks(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                         const struct eng_texts_wanted *wanted, struct eng_error *err);

/*
 * Makes texts of the same lengths for a search by loss. Of the last `rows` tokens of a piece (0: of the last half),
 * the first half continues the text; the second half recalls earlier tokens (engine/recall-task.h). Exactly these
 * rows count. -EINVAL: pieces are too short.
 */
int eng_texts_recall(struct eng_texts *ret, const struct eng_texts *pieces, uint32_t rows, struct eng_error *err);

void eng_texts_deinit(struct eng_texts *t);

#endif
