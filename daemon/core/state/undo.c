/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The undo log is an array of 64-bit words. Word 0 is the number of words in use; then come the entries, each of its
 * saved bytes followed by a trailer. So the log is read from its end. The next process sees the writes of a dead
 * process in program order, unless the compiler has reordered them; the signal fences prevent the compiler from
 * reordering.
 */
#include "daemon/core/state/undo.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "daemon/core/state/state.h"

#define KEPT_WORDS (UINT64_C(1) << 17) /* number of the log's words whose memory is not freed after a change */
#define PAGE_WORDS (4096u / sizeof(uint64_t))

/* The end of a log entry, after the saved bytes. */
struct trailer {
	uint64_t offset;
	uint32_t bytes;
	uint32_t file; /* 0: the bytes are of the state; else of the memory of the sequence in row file - 1 */
};
#define TRAILER_WORDS (sizeof(struct trailer) / sizeof(uint64_t))

static uint64_t *log_of(const struct skv_state *s)
{
	return (uint64_t *)((char *)(uintptr_t)s->header + s->header->offset[SKV_TABLE_UNDO]);
}

static uint64_t words_of(uint64_t bytes)
{
	return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

static void save(struct skv_state *s, const struct trailer *t, const void *was)
{
	uint64_t *log = log_of(s), used = log[0], words = words_of(t->bytes);

	assert(1 + used + words + TRAILER_WORDS <= s->header->elements[SKV_TABLE_UNDO]);
	memcpy(log + 1 + used, was, t->bytes);
	memcpy(log + 1 + used + words, t, sizeof(*t));
	atomic_signal_fence(memory_order_seq_cst);
	log[0] = used + words + TRAILER_WORDS;
	atomic_signal_fence(memory_order_seq_cst);
}

/* Is this piece of the state in the cache of pieces saved in this change? If not, adds it to the cache. */
static bool see(struct skv_state *s, const struct trailer *t)
{
	struct skv_undo_seen *set = &s->seen[t->offset * 0x9e3779b97f4a7c15u >> 32 & (SKV_UNDO_SETS - 1)];

	for (uint32_t i = 0; i < SKV_UNDO_WAYS; i++)
		if (set->row[i].change == s->change && set->row[i].offset == t->offset && set->row[i].bytes == t->bytes)
			return true;
	set->row[set->next].change = s->change;
	set->row[set->next].offset = t->offset;
	set->row[set->next].bytes = t->bytes;
	set->next = (set->next + 1) % SKV_UNDO_WAYS;
	return false;
}

void *skv_undo_save(struct skv_state *s, const void *what, size_t bytes)
{
	const struct trailer t = {.offset = (uint64_t)((const char *)what - (const char *)s->header),
	                          .bytes = (uint32_t)bytes};

	if (bytes && (bytes <= sizeof(uint64_t) || !see(s, &t)))
		save(s, &t, what);
	return (char *)(uintptr_t)s->header + t.offset;
}

void skv_undo_save_file(struct skv_state *s, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
{
	const struct trailer t = {.offset = offset, .bytes = (uint32_t)bytes, .file = seq + 1};

	save(s, &t, was);
}

static void empty(struct skv_state *s, uint64_t used)
{
	uint64_t *log = log_of(s), from = (1 + KEPT_WORDS + PAGE_WORDS - 1) / PAGE_WORDS * PAGE_WORDS;
	uint64_t end = (1 + used + PAGE_WORDS - 1) / PAGE_WORDS * PAGE_WORDS;

	atomic_signal_fence(memory_order_seq_cst);
	log[0] = 0;
	atomic_signal_fence(memory_order_seq_cst);
	if (end > from)
		(void)madvise(log + from, (end - from) * sizeof(*log), MADV_REMOVE);
	s->change++;
}

void skv_undo_commit(struct skv_state *s)
{
	uint64_t used = log_of(s)[0];

	if (used)
		empty(s, used);
}

/* ---- after the death of a process ------------------------------------------------------------ */

/* Would the entry change the fixed part of the header, such as table offsets? A log with such an entry is invalid. */
static bool moves_tables(const struct skv_state *s, const struct trailer *t, const void *was)
{
	const uint64_t fixed = offsetof(struct skv_state_header, free);

	return t->offset < fixed && memcmp((const char *)s->header + t->offset, was,
	                                   t->bytes < fixed - t->offset ? t->bytes : fixed - t->offset);
}

/* Reads and checks the entry that ends before word `end`. Returns the word at which it begins; 0: it is not valid. */
static uint64_t entry_before(const struct skv_state *s, uint64_t end, struct trailer *ret)
{
	const struct skv_state_header *h = s->header;
	uint64_t words, begin;

	if (end < 1 + TRAILER_WORDS)
		return 0;
	memcpy(ret, log_of(s) + end - TRAILER_WORDS, sizeof(*ret));
	words = words_of(ret->bytes);
	if (ret->bytes == 0 || ret->bytes > h->total_bytes || words + TRAILER_WORDS > end - 1 ||
	    ret->file > h->geometry.max_sequences)
		return 0;
	if (ret->file == 0 &&
	    (ret->offset > h->offset[SKV_TABLE_UNDO] || ret->bytes > h->offset[SKV_TABLE_UNDO] - ret->offset))
		return 0;
	begin = end - TRAILER_WORDS - words;
	return ret->file == 0 && moves_tables(s, ret, log_of(s) + begin) ? 0 : begin;
}

int skv_undo(struct skv_state *s, skv_undo_file_fn put_back, void *ctx, const char **ret_why)
{
	const uint64_t *log = log_of(s), used = log[0];
	struct trailer t;

	*ret_why = "the state's undo log is not valid";
	if (used >= s->header->elements[SKV_TABLE_UNDO])
		return -EBADMSG;
	for (uint64_t end = 1 + used; end > 1;) {
		end = entry_before(s, end, &t);
		if (end == 0)
			return -EBADMSG;
	}
	for (uint64_t end = 1 + used; end > 1;) {
		int r = 0;

		end = entry_before(s, end, &t);
		if (t.file)
			r = put_back(ctx, t.file - 1, t.offset, log + end, t.bytes);
		*ret_why = "a sequence's memory cannot be written";
		if (r < 0)
			return r;
		if (!t.file)
			memcpy((char *)(uintptr_t)s->header + t.offset, log + end, t.bytes);
	}
	empty(s, used);
	return 0;
}
