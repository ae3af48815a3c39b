/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/texts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/recall-task.h"
#include "engine/tasks.h"
#include "engine/tokens.h"

#define FILE_MAX (256u << 20) /* bytes */
#define TOKENS_MIN 16u

/* Adds a text, and takes ownership of its ids. */
static int add(struct eng_texts *t, const struct eng_text *text, struct eng_error *err)
{
	struct eng_text *list = reallocarray(t->list, t->n + 1, sizeof(*list));

	if (!list) {
		free((int32_t *)text->ids);
		return eng_fail(err, -ENOMEM, "no memory for texts");
	}
	t->list = list;
	t->list[t->n++] = *text;
	t->longest = text->n > t->longest ? text->n : t->longest;
	t->tokens += text->n;
	for (uint32_t i = 0; i < text->n; i++)
		t->hash = (t->hash ^ (uint32_t)text->ids[i]) * 16777619u;
	return 0;
}

void eng_texts_deinit(struct eng_texts *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		free((int32_t *)t->list[i].ids);
	free(t->list);
	*t = ENG_TEXTS_NULL;
}

static int ended(struct eng_texts *ret, struct eng_texts *t, int r)
{
	if (r)
		eng_texts_deinit(t);
	else
		*ret = *t;
	return r;
}

/* ---- prose ----------------------------------------------------------------------------------- */

/* Reads a whole file of 16 bytes to FILE_MAX bytes; the caller frees *ret. */
static int read_file(const char *path, char **ret, size_t *ret_size, struct eng_error *err)
{
	FILE *f = fopen(path, "re");
	char *bytes = NULL;
	struct stat st;
	int r = 0;

	if (!f || fstat(fileno(f), &st) < 0)
		r = eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode) || st.st_size < 16 || st.st_size > (off_t)FILE_MAX)
		r = eng_fail(err, -EINVAL, "%.300s: a file of 16 bytes to 256 MiB expected", path);
	else if (!(bytes = malloc((size_t)st.st_size)))
		r = eng_fail(err, -ENOMEM, "no memory for %.300s", path);
	else if (fread(bytes, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
		r = eng_fail(err, -EIO, "%.300s: cannot be read to its end", path);
	if (f)
		fclose(f);
	if (r) {
		free(bytes);
		return r;
	}
	*ret = bytes;
	*ret_size = (size_t)st.st_size;
	return 0;
}

/* Cuts pieces from the ids. Each piece begins with the tokens that every text begins with. */
static int cut_pieces(struct eng_texts *t, const struct eng_tokens *tokens, const struct eng_texts_wanted *w,
                      const struct skv_ids *all, struct eng_error *err)
{
	const struct skv_ids *begin = &tokens->begin;
	size_t most = w->context - begin->n, piece = most < all->n ? most : all->n, n = all->n / piece;
	int r = 0;

	n = n < w->texts ? n : w->texts;
	for (size_t i = 0; !r && i < n; i++) {
		size_t at = n > 1 ? i * (all->n - piece) / (n - 1) : 0;
		struct skv_ids ids = SKV_IDS_NULL;

		if (skv_ids_add(&ids, begin->id, begin->n) || skv_ids_add(&ids, all->id + at, piece)) {
			skv_ids_deinit(&ids);
			return eng_fail(err, -ENOMEM, "no memory for texts");
		}
		r = add(t, &(struct eng_text){.ids = ids.id, .n = (uint32_t)ids.n, .from = (uint32_t)piece / 2, .rows = w->rows}, err);
	}
	return r;
}

int eng_texts_read(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                   const struct eng_texts_wanted *wanted, struct eng_error *err)
{
	struct eng_texts t = ENG_TEXTS_NULL;
	struct skv_ids ids = SKV_IDS_NULL;
	char *bytes;
	size_t size;
	int r = read_file(path, &bytes, &size, err);

	if (r)
		return r;
	t.recall_piece = tokens->tokenizer ? ENG_RECALL_TASK_PIECE : ENG_RECALL_TASK_BYTES;
	r = eng_tokens_encode(tokens, bytes, size, &ids, err);
	free(bytes);
	if (!r && ids.n < TOKENS_MIN)
		r = eng_fail(err, -EINVAL, "%.300s: %zu tokens, at least %u expected", path, ids.n, TOKENS_MIN);
	r = r ? r : cut_pieces(&t, tokens, wanted, &ids, err);
	skv_ids_deinit(&ids);
	return ended(ret, &t, r);
}

int eng_texts_recall(struct eng_texts *ret, const struct eng_texts *pieces, uint32_t rows, struct eng_error *err)
{
	struct eng_texts t = ENG_TEXTS_NULL;
	int r = 0;

	for (uint32_t i = 0; !r && i < pieces->n; i++) {
		const struct eng_text *of = &pieces->list[i];
		uint32_t count = rows && rows < of->n / 2 ? rows : of->n / 2, from = of->n - count, half = count - count / 2;
		int32_t *ids;

		if (from < 2 * pieces->recall_piece) {
			r = eng_fail(err, -EINVAL, "--by loss: pieces of %u tokens, expected a --context from %u on, and a "
			             "text as long", of->n, 4 * pieces->recall_piece);
			break;
		}
		ids = malloc(of->n * sizeof(*ids));
		if (!ids || eng_recall_task(ids + from + half, count - half, of->ids + 1, from - 1, pieces->recall_piece)) {
			free(ids);
			r = eng_fail(err, -ENOMEM, "no memory for texts");
			break;
		}
		memcpy(ids, of->ids, (from + half) * sizeof(*ids));
		r = add(&t, &(struct eng_text){.ids = ids, .n = of->n, .from = from}, err);
	}
	return ended(ret, &t, r);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/*
 * Adds a case as a text: its prompt, then its answer without eos. The first row that counts is the last token of the
 * prompt, because it predicts the first token of the answer.
 */
static int add_case(struct eng_texts *t, const struct eng_tokens *tokens, const struct eng_case *k, uint32_t rows,
                    struct eng_error *err)
{
	uint32_t n_answer = k->n_answer - (k->answer[k->n_answer - 1] == tokens->eos);
	struct skv_ids ids = SKV_IDS_NULL;

	if (skv_ids_add(&ids, k->prompt, k->n_prompt) || skv_ids_add(&ids, k->answer, n_answer)) {
		skv_ids_deinit(&ids);
		return eng_fail(err, -ENOMEM, "no memory for texts");
	}
	return add(t, &(struct eng_text){.ids = ids.id, .n = (uint32_t)ids.n, .from = k->n_prompt - 1, .rows = rows}, err);
}

int eng_texts_read_tasks(struct eng_texts *ret, const char *path, const struct eng_tokens *tokens,
                         const struct eng_texts_wanted *wanted, struct eng_error *err)
{
	const struct eng_task_filter filter = {.limit = wanted->texts, .longest = wanted->context};
	struct eng_texts t = ENG_TEXTS_NULL;
	struct eng_cases cases = ENG_CASES_NULL;
	int r = eng_cases_load(&cases, path, &filter, tokens, err);

	for (size_t i = 0; !r && i < cases.n; i++)
		r = add_case(&t, tokens, &cases.list[i], wanted->rows, err);
	eng_cases_deinit(&cases);
	return ended(ret, &t, r);
}
