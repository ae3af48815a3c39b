/* SPDX-License-Identifier: Apache-2.0 */
/* engine/texts.h - reads the texts of a calibration: pieces of a prose file, or cases of a task file. */
#ifndef ENG_TEXTS_H
#define ENG_TEXTS_H

#include <stddef.h>
#include "engine/text.h"
#include "engine/tokens.h"

struct eng_texts {
	struct eng_text *list; /* the texts; the list owns their token ids */
	uint32_t n, longest;
	uint64_t tokens;
	uint32_t recall_piece; /* tokens of a piece in eng_recall_task() (engine/recall-task.h) */
	uint32_t hash; /* FNV-1a hash of the token ids of all texts, in their order */
};
#define ENG_TEXTS_NULL ((struct eng_texts){.hash = 2166136261u})

struct eng_texts_wanted {
	uint32_t context; /* number of tokens in a piece, and most tokens in a case, bos included */
	uint32_t texts;   /* number of pieces, or number of cases of each task and size */
	uint32_t rows;    /* number of rows that count in each text; 0: all */
};

/*
 * Cuts a file of 16 bytes to 256 MiB into pieces that do not overlap and are spread evenly over the file. Of each piece
 * the rows of the second half count. If the file is too short, there are fewer or shorter pieces; it must have at least
 * 16 tokens. Returns 0, the negative errno of reading the file, -EINVAL, or -ENOMEM.
 */
int eng_texts_read(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                   const struct eng_texts_wanted *wanted, struct eng_error *err);

/*
 * Reads the cases of a task file as texts: the prompt, then the answer. The rows that count are those that predict the
 * answer: the last token of the prompt, which predicts the first token of the answer, and the tokens after it.
 */
int eng_texts_read_tasks(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                         const struct eng_texts_wanted *wanted, struct eng_error *err);

/*
 * Makes from each piece a text of the same length, for a search of layers by loss. The last `rows` tokens of the text
 * (0: its second half) count. The first half of them is the piece's own text; the second half repeats earlier tokens of
 * the piece in another order (engine/recall-task.h). Returns 0, -EINVAL if the pieces are too short, or -ENOMEM.
 */
int eng_texts_recall(struct eng_texts *ret, const struct eng_texts *pieces, uint32_t rows, struct eng_error *err);

void eng_texts_deinit(struct eng_texts *t);

#endif
