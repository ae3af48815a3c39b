/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/bpe.h"

/* ---- the vocabulary -------------------------------------------------------------------------- */

int skv_bpe_define(struct skv_bpe *b, int64_t id, const char *bytes, size_t len, bool spelled)
{
	struct skv_token *t;
	char *copy;

	if (id < 0 || id >= SKV_TOKENIZER_IDS_MAX || len > UINT32_MAX)
		return -ERANGE;
	if (id >= b->n_ids) {
		/* grow geometrically: ids are mostly in order */
		uint32_t n = (uint32_t)id + 1 > 2 * b->n_ids ? (uint32_t)id + 1 : 2 * b->n_ids;

		t = reallocarray(b->tokens, n, sizeof(*t));
		if (!t)
			return -ENOMEM;
		memset(t + b->n_ids, 0, (n - b->n_ids) * sizeof(*t));
		b->tokens = t;
		b->n_ids = n;
	}
	t = &b->tokens[id];
	if (t->bytes)
		return -EEXIST;
	copy = malloc(len + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, bytes, len);
	copy[len] = '\0';
	*t = (struct skv_token){.bytes = copy, .len = (uint32_t)len, .spelled = spelled};
	return 0;
}

/* Returns the size of a hash table, a power of two, of which n keys fill at most half. */
static size_t table_size(size_t n)
{
	size_t size = 16;

	while (size < 2 * n)
		size *= 2;
	return size;
}

int skv_bpe_reserve_merges(struct skv_bpe *b, size_t n)
{
	size_t size = table_size(n);

	b->merges = n < UINT32_MAX / 4 ? malloc(size * sizeof(*b->merges)) : NULL;
	if (!b->merges)
		return -ENOMEM;
	for (size_t i = 0; i < size; i++)
		b->merges[i].id = -1;
	b->merge_mask = (uint32_t)size - 1;
	return 0;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
	return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Returns the entry of this pair in `merges`, or the unused entry where the pair belongs. */
static struct skv_merge *merge_entry(const struct skv_bpe *b, uint64_t pair)
{
	uint64_t h = pair * 0x9e3779b97f4a7c15u;
	uint32_t at = (uint32_t)(h >> 32) & b->merge_mask;

	while (b->merges[at].id >= 0 && b->merges[at].pair != pair)
		at = (at + 1) & b->merge_mask;
	return &b->merges[at];
}

void skv_bpe_merge(struct skv_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	uint64_t pair = pair_of(left, right);

	*merge_entry(b, pair) = (struct skv_merge){.pair = pair, .rank = rank, .id = id};
}

static uint32_t hash_bytes(const char *bytes, size_t n)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)bytes[i]) * 16777619u;
	return h ^ h >> 15;
}

/* Returns the entry of the token with these bytes in by_bytes, or the unused entry where it belongs. */
static int32_t *bytes_entry(const struct skv_bpe *b, const char *bytes, size_t n)
{
	uint32_t at = hash_bytes(bytes, n) & b->bytes_mask;

	for (; b->by_bytes[at] >= 0; at = (at + 1) & b->bytes_mask) {
		const struct skv_token *t = &b->tokens[b->by_bytes[at]];

		if (t->len == n && !memcmp(t->bytes, bytes, n))
			break;
	}
	return &b->by_bytes[at];
}

int skv_bpe_ready(struct skv_bpe *b)
{
	size_t size = table_size(b->n_ids);

	while (b->n_ids && !b->tokens[b->n_ids - 1].bytes)
		b->n_ids--;
	memset(b->byte, -1, sizeof(b->byte));
	if (b->ignore_merges) {
		b->by_bytes = malloc(size * sizeof(*b->by_bytes));
		if (!b->by_bytes)
			return -ENOMEM;
		memset(b->by_bytes, -1, size * sizeof(*b->by_bytes));
		b->bytes_mask = (uint32_t)size - 1;
	}
	for (uint32_t i = 0; i < b->n_ids; i++) {
		const struct skv_token *t = &b->tokens[i];

		if (!t->spelled)
			continue;
		if (t->len == 1)
			b->byte[(unsigned char)t->bytes[0]] = (int32_t)i;
		if (b->by_bytes)
			*bytes_entry(b, t->bytes, t->len) = (int32_t)i;
	}
	return 0;
}

void skv_bpe_deinit(struct skv_bpe *b)
{
	for (uint32_t i = 0; i < b->n_ids; i++)
		free(b->tokens[i].bytes);
	free(b->tokens);
	free(b->merges);
	free(b->by_bytes);
	*b = SKV_BPE_NULL;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/*
 * A token of the piece, in a linked list. A merge of two neighbors gives the left one a new id and removes the right
 * one.
 */
struct skv_bpe_symbol {
	int32_t id; /* -1: the symbol was merged into its left neighbor */
	int32_t prev, next; /* indices of the neighbors; -1: there is none */
};

/*
 * A possible merge: symbol `at` and its successor become `id`. Whether one of the two has changed since is checked when
 * the candidate is popped.
 */
struct skv_bpe_candidate {
	uint32_t rank, at;
	int32_t id;
};

static bool before(const struct skv_bpe_candidate *a, const struct skv_bpe_candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct skv_bpe_candidate *heap, size_t *n, struct skv_bpe_candidate c)
{
	size_t i = (*n)++;

	for (; i > 0 && before(&c, &heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = c;
}

static struct skv_bpe_candidate pop(struct skv_bpe_candidate *heap, size_t *n)
{
	struct skv_bpe_candidate top = heap[0], last = heap[--*n];
	size_t i = 0;

	for (size_t child; (child = 2 * i + 1) < *n; i = child) {
		child += child + 1 < *n && before(&heap[child + 1], &heap[child]);
		if (!before(&heap[child], &last))
			break;
		heap[i] = heap[child];
	}
	heap[i] = last;
	return top;
}

/* Pushes the merge of symbol `at` with its successor to the heap, if these two tokens have a merge. */
static void consider(const struct skv_bpe *b, struct skv_bpe_work *w, size_t *n_heap, int32_t at)
{
	const struct skv_merge *m;

	if (at < 0 || w->symbols[at].next < 0)
		return;
	m = merge_entry(b, pair_of(w->symbols[at].id, w->symbols[w->symbols[at].next].id));
	if (m->id >= 0)
		push(w->heap, n_heap, (struct skv_bpe_candidate){m->rank, (uint32_t)at, m->id});
}

static int reserve(struct skv_bpe_work *w, size_t n)
{
	size_t room = n + n / 2 + 256;
	struct skv_bpe_candidate *heap;
	struct skv_bpe_symbol *symbols;

	if (n <= w->room)
		return 0;
	symbols = reallocarray(w->symbols, room, sizeof(*symbols));
	if (symbols)
		w->symbols = symbols;
	/* There is one candidate per initial pair, and two per merge; there are fewer merges than symbols. */
	heap = symbols ? reallocarray(w->heap, 3 * room, sizeof(*heap)) : NULL;
	if (!heap)
		return -ENOMEM;
	w->heap = heap;
	w->room = room;
	return 0;
}

void skv_bpe_work_deinit(struct skv_bpe_work *w)
{
	free(w->symbols);
	free(w->heap);
	*w = SKV_BPE_WORK_NULL;
}

/*
 * Creates the list of symbols, one for each byte. Bytes without a token are dropped or become the unknown token.
 * Returns the number of symbols.
 */
static int32_t spell(const struct skv_bpe *b, const char *bytes, size_t n, struct skv_bpe_symbol *symbols)
{
	bool was_unknown = false;
	int32_t count = 0;

	for (size_t i = 0; i < n; i++) {
		int32_t id = b->byte[(unsigned char)bytes[i]];
		bool unknown = id < 0;

		if (unknown && (b->unknown < 0 || (was_unknown && b->fuse_unknown)))
			continue;
		symbols[count] = (struct skv_bpe_symbol){unknown ? b->unknown : id, count - 1, count + 1};
		was_unknown = unknown;
		count++;
	}
	if (count)
		symbols[count - 1].next = -1;
	return count;
}

static void merge_all(const struct skv_bpe *b, struct skv_bpe_work *w, int32_t n)
{
	struct skv_bpe_symbol *s = w->symbols;
	size_t n_heap = 0;

	for (int32_t i = 0; i < n; i++)
		consider(b, w, &n_heap, i);
	while (n_heap) {
		struct skv_bpe_candidate c = pop(w->heap, &n_heap);
		struct skv_bpe_symbol *left = &s[c.at];
		const struct skv_merge *m;
		int32_t right;

		if (left->id < 0 || left->next < 0)
			continue;
		right = left->next;
		m = merge_entry(b, pair_of(left->id, s[right].id));
		if (m->id < 0 || m->id != c.id)
			continue;
		left->id = c.id;
		left->next = s[right].next;
		s[right].id = -1;
		if (left->next >= 0)
			s[left->next].prev = (int32_t)c.at;
		consider(b, w, &n_heap, left->prev);
		consider(b, w, &n_heap, (int32_t)c.at);
	}
}

int skv_bpe_encode(const struct skv_bpe *b, const char *bytes, size_t n, struct skv_bpe_work *w, struct skv_ids *to)
{
	int32_t count;
	int r = 0;

	if (b->ignore_merges && n) {
		int32_t id = *bytes_entry(b, bytes, n);

		if (id >= 0)
			return skv_ids_add(to, &id, 1);
	}
	r = reserve(w, n);
	if (r)
		return r;
	count = spell(b, bytes, n, w->symbols);
	merge_all(b, w, count);
	for (int32_t i = 0; !r && count && i >= 0; i = w->symbols[i].next)
		r = skv_ids_add(to, &w->symbols[i].id, 1);
	return r;
}
