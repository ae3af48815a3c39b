/* SPDX-License-Identifier: Apache-2.0 */
/* engine/texts.h - the texts of a calibration: pieces of prose, or the cases of a task file. */
#ifndef ENG_TEXTS_H
#define ENG_TEXTS_H

#include <stddef.h>
#include "engine/text.h"
#include "engine/tokens.h"

struct eng_texts {
	struct eng_text *list; /* their ids are its own */
	uint32_t n, longest;
	uint64_t tokens;
	uint32_t recall_piece; /* tokens of a piece of engine/recall-task.h */
	uint32_t hash; /* FNV-1a of all token ids in their order */
};
#define ENG_TEXTS_NULL ((struct eng_texts){.hash = 2166136261u})

struct eng_texts_wanted {
	uint32_t context; /* tokens of a piece, and of the longest case taken, bos included */
	uint32_t texts;   /* pieces, or cases of each task and size */
	uint32_t rows;    /* that count in each; 0: all */
};

/*
 * Pieces of a file of 16 bytes to 256 MiB, evenly spread over it and none in another; the last half of each counts.
 * Fewer or shorter ones if there is not enough text; at least 16 tokens. -errno of the file, -EINVAL, -ENOMEM.
 */
int eng_texts_read(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                   const struct eng_texts_wanted *wanted, struct eng_error *err);

/* The cases of a task file; of each the answer counts, from the prompt's last token on, which decides its first. */
int eng_texts_read_tasks(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                         const struct eng_texts_wanted *wanted, struct eng_error *err);

/*
 * The same pieces for a search by loss, as long: of `rows` at their ends (0: of the last half) the first half goes on as
 * the text does, the second recalls what came before (engine/recall-task.h). All of them count, none before them. -EINVAL
 * pieces that are too short.
 */
int eng_texts_recall(struct eng_texts *ret, const struct eng_texts *pieces, uint32_t rows, struct eng_error *err);

void eng_texts_deinit(struct eng_texts *t);

#endif
