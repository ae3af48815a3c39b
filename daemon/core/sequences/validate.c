/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/validate.c - checks a sequence's page tables against the owner words.
 *
 * A client wrote the page tables and may still write to them while the daemon reads them. So each word is read once and
 * checked, and only the checked copy is used; an earlier read of the same word proves nothing. Marks reveal a page that
 * is named twice, in one table or two; owner words reveal a page of another sequence or client.
 */
#include "common/fd.h"
#include "common/records.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/refuse.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW 2048u /* number of table entries that are read at a time */

/*
 * Checks a table entry and marks its page. Returns NULL if the entry is a hole or names a page that the sequence may
 * name; otherwise a text on what is wrong with the entry.
 */
static const char *take_entry(struct skv_core *c, struct skv_walk *w, enum skv_page_kind kind, skv_pte e)
{
	uint32_t pool = skv_seq_row(&c->state, w->seq)->pool, page = skv_pte_id(e);
	bool kv = kind == SKV_PAGES_KV;

	switch ((uint32_t)skv_pte_kind(e)) {
	case SKV_PTE_HOLE: return kv ? NULL : "is a hole in a table that has none";
	case SKV_PTE_PRIVATE:
		if (!skv_page_exists(c, pool, page))
			return "names a page that does not exist";
		if (*skv_owner_word(&c->state, pool, page) != w->own)
			return "names a page that is not on lease to its holder";
		if (w->marks[page] != SKV_MARK_NONE)
			return "names a page for the second time";
		w->marks[page] = SKV_MARK_OWN;
		return NULL;
	case SKV_PTE_SHARED:
		if (!skv_page_exists(c, pool, page))
			return "names a page that does not exist";
		if (w->marks[page] == SKV_MARK_NAMED)
			return "names a shared page for the second time";
		if (!skv_ref_held(c, w->seq, page))
			return "names a shared page that the sequence has no reference to";
		w->marks[page] = SKV_MARK_NAMED;
		return NULL;
	case SKV_PTE_NONE: return kv ? "is missing below the committed length" : NULL;
	default: return "is of an unknown kind";
	}
}

static int corrupt(struct skv_core *c, uint32_t seq, const char *why)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	if (c->corrupt_cb)
		c->corrupt_cb(c->corrupt_data, skv_account_row(&c->state, q->account)->uid, q->model.name,
		              q->name, why);
	return skv_core_refuse(c, SKV_CORE_E_CORRUPT, "sequence '%s' is corrupt and was dropped: %s", q->name,
	                  why);
}

static void corrupt_entry(struct skv_core *c, const struct skv_walk *w, uint32_t index, skv_pte entry, const char *what)
{
	static const char *const of[SKV_PAGE_KINDS] = {"", "the state of ", "the slot metadata of ", "the codes of ",
	                                           "the references of ", "the saved prefill state of "};
	uint32_t n_layers = c->seqs[w->seq].layout.n_layers;
	char why[sizeof(c->why)];

	snprintf(why, sizeof(why), "entry %u of %slayer %u (%#x) %s", index,
	         of[skv_table_page_kind(n_layers, w->table)], skv_table_layer(n_layers, w->table), entry, what);
	corrupt(c, w->seq, why);
}

int skv_validate_header(struct skv_core *c, uint32_t seq)
{
	const char *problem = skv_seqmem_check(c->seqs[seq].mem, &c->seqs[seq].layout);

	return problem ? corrupt(c, seq, problem) : 0;
}

int skv_validate_memory(struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	uint64_t quota = c->memory[SKV_DEVICE_HOST].limits.account_bytes;
	uint64_t pages = (uint64_t)(q->pages + q->refs) * skv_pool_row(&c->state, q->pool)->page_bytes;
	/* memory comes in pages of 4 KiB: a sequence with few tokens takes one for each table */
	uint64_t least = skv_seqfile_least(&c->seqs[seq]);
	char why[sizeof(c->why)];

	skv_charge_seq(c, seq);
	if (q->bytes <= pages + least || skv_charged(c, q->account) <= quota)
		return 0;
	snprintf(why, sizeof(why),
	         "the sequence takes %llu bytes besides its pages, and its user exceeds the quota of account-bytes, "
	         "%llu",
	         (unsigned long long)q->bytes, (unsigned long long)quota);
	return corrupt(c, seq, why);
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* Bytes before the marks, for the length of the mapping and for alignment. */
#define BEFORE_MARKS 64u

uint8_t *skv_marks_new(const struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	const size_t bytes = BEFORE_MARKS + (size_t)p->max_segments * p->pages_per_segment;
	size_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	*map = bytes;
	return (uint8_t *)map + BEFORE_MARKS;
}

void skv_marks_free(uint8_t *marks)
{
	size_t *map = marks ? (size_t *)(void *)(marks - BEFORE_MARKS) : NULL;

	if (map)
		munmap(map, *map);
}

/* ---- walking --------------------------------------------------------------------------------- */

enum skv_progress skv_failed(struct skv_core *c, int error)
{
	c->failed = error;
	return SKV_FAILED;
}

void skv_walk_begin(struct skv_core *c, uint32_t seq, skv_owner own, uint8_t *marks, struct skv_walk *w)
{
	*w = (struct skv_walk){
		.seq = seq,
		.own = own,
		.marks = marks,
		.len = skv_seqfile_len(&c->seqs[seq]),
		.list = -1,
	};
}

/*
 * Reads the next window of entries. Returns their number; 0: the walk is at its end; negative errno: the system lacks
 * something for now. If the window cannot be read for another reason, `to` gets zeros.
 */
static int next_window(struct skv_core *c, struct skv_walk *w, skv_pte to[WINDOW])
{
	const struct skv_seq_local *l = &c->seqs[w->seq];
	int r;

	for (; w->table < l->layout.n_tables; w->table++, w->index = 0) {
		uint32_t n = w->made ? skv_made_entries(w->made, &skv_seq_row(&c->state, w->seq)->model, w->table,
		                                        w->len)
		                     : skv_seqmem_entries(&l->layout, w->table, w->len);

		if (w->index >= n)
			continue;
		n = n - w->index < WINDOW ? n - w->index : WINDOW;
		r = skv_seqfile_read(l, w->table, w->index, n, to);
		if (skv_is_shortage(r))
			return r;
		if (r < 0)
			memset(to, 0, n * sizeof(*to));
		return (int)n;
	}
	return 0;
}

static bool is_through(const struct skv_core *c, const struct skv_walk *w)
{
	return w->table == c->seqs[w->seq].layout.n_tables;
}

/*
 * Writes a window of checked entries to the list. False: it cannot be written. A window of zeros becomes a hole of the
 * list's file: most tables of most sequences are holes, and a list without holes would take many times their memory.
 */
static bool list(struct skv_walk *w, const skv_pte *window, uint32_t n)
{
	const size_t bytes = n * sizeof(*window);
	bool any = false;

	if (w->list < 0)
		return true;
	for (uint32_t i = 0; i < n; i++) {
		w->n_pages += skv_pte_kind(window[i]) == SKV_PTE_PRIVATE || skv_pte_kind(window[i]) == SKV_PTE_SHARED;
		any |= window[i] != 0;
	}
	w->n_entries += n;
	return !any || pwrite(w->list, window, bytes, (off_t)((w->n_entries - n) * sizeof(*window))) == (ssize_t)bytes;
}

enum skv_progress skv_walk_check(struct skv_core *c, struct skv_walk *w, uint32_t *units)
{
	skv_pte window[WINDOW];
	uint32_t n;
	int read;

	while (*units > 0 && (read = next_window(c, w, window)) != 0) {
		if (read < 0)
			return skv_failed(c, read);
		n = (uint32_t)read;
		enum skv_page_kind kind = skv_table_page_kind(c->seqs[w->seq].layout.n_layers, w->table);

		for (uint32_t i = 0; i < n; i++) {
			const char *problem = take_entry(c, w, kind, window[i]);

			if (problem) {
				corrupt_entry(c, w, w->index + i, window[i], problem);
				return SKV_CORRUPT;
			}
		}
		if (!list(w, window, n))
			return SKV_UNWRITTEN;
		w->index += n;
		(void)skv_units_take(units, n + 50);
	}
	return is_through(c, w) ? SKV_DONE : SKV_GOES_ON;
}

enum skv_progress skv_walk_take(struct skv_core *c, struct skv_walk *w, uint32_t *units)
{
	uint32_t pool = skv_seq_row(&c->state, w->seq)->pool, n;
	skv_pte window[WINDOW];
	int read;

	while (*units > 0 && (read = next_window(c, w, window)) != 0) {
		if (read < 0)
			return skv_failed(c, read);
		n = (uint32_t)read;
		for (uint32_t i = 0; i < n; i++) {
			uint32_t page = skv_pte_id(window[i]);

			/* skips pages without the mark OWN: the client wrote such an entry after the first walk */
			if (skv_pte_kind(window[i]) != SKV_PTE_PRIVATE || !skv_page_exists(c, pool, page) ||
			    w->marks[page] != SKV_MARK_OWN)
				continue;
			skv_page_set(c, pool, page, skv_owner_make(SKV_OWNER_SEQ, w->seq));
			w->marks[page] = SKV_MARK_NONE;
		}
		w->index += n;
		(void)skv_units_take(units, 3 * n + 50);
	}
	return is_through(c, w) ? SKV_DONE : SKV_GOES_ON;
}

enum skv_progress skv_progress_of(struct skv_core *c, int r)
{
	return r < 0 ? skv_failed(c, r) : r > 0 ? SKV_GOES_ON : SKV_DONE;
}

/* Makes a table entry SHARED and clears its page's mark. Returns the mark; NONE: the entry is not to be shared. */
static uint8_t share_entry(struct skv_core *c, const struct skv_walk *w, skv_pte *entry)
{
	uint32_t pool = skv_seq_row(&c->state, w->seq)->pool, page = skv_pte_id(*entry);
	uint32_t kind = (uint32_t)skv_pte_kind(*entry);
	uint8_t mark;

	if ((kind != SKV_PTE_PRIVATE && kind != SKV_PTE_SHARED) || !skv_page_exists(c, pool, page))
		return SKV_MARK_NONE;
	mark = w->marks[page];
	w->marks[page] = SKV_MARK_NONE;
	if (mark != SKV_MARK_NONE) /* else the entry was written after the check, or its page is shared already */
		*entry = skv_pte_make(SKV_PTE_SHARED, page);
	return mark;
}

/* Writes a window of the parent's entries, some of which have become SHARED, and saves the old ones to the undo log. */
static int write_shared(struct skv_core *c, const struct skv_walk *w, uint32_t n, const skv_pte *window,
                        const skv_pte *was)
{
	const struct skv_seq_local *l = &c->seqs[w->seq];
	int r;

	skv_undo_save_file(&c->state, w->seq, skv_seqfile_entry_at(l, w->table, w->index), was, n * sizeof(*was));
	r = skv_seqfile_write(l, w->table, w->index, n, window);
	if (r < 0)
		(void)skv_seqfile_write(l, w->table, w->index, n, was); /* some may have been written: restores all */
	return r;
}

/* Adds references to the pages of these entries: for the child, and for the parent where it owned the page before. */
static void refer(struct skv_core *c, const struct skv_walk *w, uint32_t child, uint32_t n, const skv_pte *window,
                  const uint8_t *marks)
{
	for (uint32_t i = 0; i < n; i++) {
		if (marks[i] == SKV_MARK_OWN)
			skv_ref_add(c, w->seq, skv_pte_id(window[i]));
		if (marks[i] != SKV_MARK_NONE)
			skv_ref_add(c, child, skv_pte_id(window[i]));
	}
}

enum skv_progress skv_walk_share(struct skv_core *c, struct skv_walk *w, uint32_t child, uint32_t *units)
{
	skv_pte window[WINDOW], was[WINDOW];
	uint8_t marks[WINDOW];
	uint32_t n;
	int read;

	while (*units > 0 && (read = next_window(c, w, window)) != 0) {
		if (read < 0)
			return skv_failed(c, read);
		n = (uint32_t)read;
		bool changed = false;
		int r;

		memcpy(was, window, n * sizeof(*was));
		for (uint32_t i = 0; i < n; i++) {
			marks[i] = share_entry(c, w, &window[i]);
			changed |= marks[i] == SKV_MARK_OWN;
		}
		r = changed ? write_shared(c, w, n, window, was) : 0;
		if (r < 0)
			return skv_failed(c, r);
		refer(c, w, child, n, window, marks);
		w->index += n;
		(void)skv_units_take(units, 9 * n + 100);
	}
	return is_through(c, w) ? SKV_DONE : SKV_GOES_ON;
}
