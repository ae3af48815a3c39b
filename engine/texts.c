/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/texts.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/recall-task.h"
#include "engine/tasks.h"
#include "engine/tokens.h"

#define FILE_MAX (256u << 20) /* bytes */
#define TOKEN_BYTES 8u        /* of prose, on average at most: so many are read to find out how many they are */
#define SPREAD 1.25           /* bytes of a piece beyond those of the first one */

/* Takes over the ids of `text`. */
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

/* All of a file; to be freed. */
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

/* Bos and what n bytes are, of which at most `most` ids in all count; to be freed. */
static int tokenize(const struct eng_config *c, const char *bytes, size_t n, uint32_t most, struct eng_text *ret,
                    struct eng_error *err)
{
	int32_t *ids = malloc((n + 1) * sizeof(*ids));
	size_t got;

	if (!ids)
		return eng_fail(err, -ENOMEM, "no memory for texts");
	got = eng_tokens_prompt(c, bytes, n, ids);
	*ret = (struct eng_text){.ids = ids, .n = got < most ? (uint32_t)got : most};
	return 0;
}

/* How many bytes a piece may take, by how many the first one has. */
static int piece_bytes(const struct eng_config *c, const char *bytes, size_t size, uint32_t tokens, size_t *ret,
                       struct eng_error *err)
{
	size_t n = (size_t)tokens * TOKEN_BYTES < size ? (size_t)tokens * TOKEN_BYTES : size;
	struct eng_text first;
	double each;
	int r = tokenize(c, bytes, n, UINT32_MAX, &first, err);

	if (r)
		return r;
	each = (double)n / (first.n - 1);
	free((int32_t *)first.ids);
	n = each > 1 ? (size_t)ceil(each * SPREAD * tokens) : tokens; /* where a token is a byte there is nothing to guess */
	*ret = n < size ? n : size;
	return 0;
}

static bool goes_on(char byte)
{
	return ((unsigned char)byte & 0xc0) == 0x80;
}

static int cut_pieces(struct eng_texts *t, const struct eng_config *c, const struct eng_texts_wanted *w,
                      const char *bytes, size_t size, struct eng_error *err)
{
	size_t piece, n;
	int r = piece_bytes(c, bytes, size, w->context - 1, &piece, err);

	n = r ? 0 : size / piece;
	n = n < w->texts ? n : w->texts;
	for (size_t i = 0; !r && i < n; i++) {
		size_t at = n > 1 ? i * (size - piece) / (n - 1) : 0, skipped = 0;
		struct eng_text text;

		while (skipped < piece - 1 && goes_on(bytes[at + skipped])) /* begin with a whole character */
			skipped++;
		r = tokenize(c, bytes + at + skipped, piece - skipped, w->context, &text, err);
		if (r)
			break;
		text.from = (text.n - 1) / 2;
		text.rows = w->rows;
		r = add(t, &text, err);
	}
	return r;
}

int eng_texts_read(struct eng_texts *ret, const char *path, const struct eng_config *c,
                   const struct eng_texts_wanted *wanted, struct eng_error *err)
{
	struct eng_texts t = ENG_TEXTS_NULL;
	char *bytes;
	size_t size;
	int r = read_file(path, &bytes, &size, err);

	if (r)
		return r;
	r = cut_pieces(&t, c, wanted, bytes, size, err);
	free(bytes);
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

		if (from < 2 * ENG_RECALL_TASK_PIECE) {
			r = eng_fail(err, -EINVAL, "--by loss: pieces of %u tokens, expected a --context from %u on, and a "
			             "text as long", of->n, 4 * ENG_RECALL_TASK_PIECE);
			break;
		}
		ids = malloc(of->n * sizeof(*ids));
		if (!ids || eng_recall_task(ids + from + half, count - half, of->ids + 1, from - 1)) {
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

static int add_case(struct eng_texts *t, const struct eng_config *c, const struct eng_case *k, uint32_t rows,
                    struct eng_error *err)
{
	size_t n = k->prompt_len + 1 + k->answer_len;
	int32_t *ids = malloc(n * sizeof(*ids));

	if (!ids)
		return eng_fail(err, -ENOMEM, "no memory for texts");
	eng_tokens_prompt(c, k->prompt, k->prompt_len, ids);
	for (size_t i = 0; i < k->answer_len; i++)
		ids[k->prompt_len + 1 + i] = (unsigned char)k->answer[i];
	return add(t, &(struct eng_text){.ids = ids, .n = (uint32_t)n, .from = (uint32_t)k->prompt_len, .rows = rows}, err);
}

int eng_texts_read_tasks(struct eng_texts *ret, const char *path, const struct eng_config *c,
                         const struct eng_texts_wanted *wanted, struct eng_error *err)
{
	const struct eng_task_filter filter = {.limit = wanted->texts, .longest = wanted->context - 1};
	struct eng_texts t = ENG_TEXTS_NULL;
	struct eng_cases cases = ENG_CASES_NULL;
	int r = eng_cases_load(&cases, path, &filter, err);

	for (size_t i = 0; !r && i < cases.n; i++)
		r = add_case(&t, c, &cases.list[i], wanted->rows, err);
	eng_cases_deinit(&cases);
	return ended(ret, &t, r);
}
