/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WINDOW 1024u /* number of page table entries converted at a time */
#define MEMORY_PAGE 4096u

/*
 * Checks that a read or write of a memfd was complete, which it is unless memory is lacking or the memfd is too short.
 */
static int whole(struct skv_disk_work *work, ssize_t n, size_t bytes, const char *what)
{
	if (n == (ssize_t)bytes)
		return 0;
	return skv_disk_refuse(work, n < 0 ? -errno : -EIO, "%s the memory of the sequence: %s", what,
	                       n < 0 ? strerror(errno) : "it ends too early");
}

static int get(const struct skv_disk_memory *m, uint64_t at, void *to, size_t bytes)
{
	return whole(m->work, pread(m->fd, to, bytes, (off_t)at), bytes, "reading");
}

static int put(const struct skv_disk_memory *m, uint64_t at, const void *from, size_t bytes)
{
	return whole(m->work, pwrite(m->fd, from, bytes, (off_t)at), bytes, "writing");
}

static bool is_zero(const char *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/*
 * Writes to a memfd that is zero so far: memory pages that would get only zeros are not written, and so not allocated.
 */
static int put_sparse(const struct skv_disk_memory *m, uint64_t at, const void *from, size_t bytes)
{
	const char *p = from;
	int r = 0;

	while (r == 0 && bytes > 0) {
		size_t n = MEMORY_PAGE - at % MEMORY_PAGE;

		n = n < bytes ? n : bytes;
		if (!is_zero(p, n))
			r = put(m, at, p, n);
		p += n;
		at += n;
		bytes -= n;
	}
	return r;
}

/* ---- layout of the part ---------------------------------------------------------------------- */

enum section { SEQMEM, IDS, STATE, ENTRIES, SECTIONS };

/* Returns the section that the part's next bytes belong to, their offset in it, and how many of `most` bytes it has. */
static enum section section(const struct skv_disk_memory *m, size_t most, uint64_t *ret_at, size_t *ret_bytes)
{
	const struct skv_parked_header *h = m->header;
	const uint64_t bytes[SECTIONS] = {h->seqmem_bytes, h->n_ids * sizeof(int32_t), h->state_bytes, h->n_entries * sizeof(skv_pte)};
	uint64_t at = m->at;
	uint32_t i = 0;

	for (; i < ENTRIES && at >= bytes[i]; i++)
		at -= bytes[i];
	*ret_at = at;
	*ret_bytes = bytes[i] - at < most ? (size_t)(bytes[i] - at) : most;
	return i;
}

/* Advances to the page table of the next entry. Returns how many entries are left in that table, at most `most`. */
static uint32_t entries_of_table(struct skv_disk_memory *m, size_t most)
{
	uint32_t len = skv_commit_len(m->header->commit), n;

	while (m->index == skv_seqmem_entries(&m->layout, m->table, len)) {
		m->table++;
		m->index = 0;
	}
	n = skv_seqmem_entries(&m->layout, m->table, len) - m->index;
	return n < most ? n : (uint32_t)most;
}

/* Checks a page table entry of the file; entries before it have n_pages pages. Returns an error text or NULL. */
static const char *entry_wrong(const struct skv_disk_memory *m, skv_pte e)
{
	bool kv = skv_table_page_kind(m->layout.n_layers, m->table) == SKV_PAGES_KV;

	if (e == skv_pte_make(SKV_PTE_NONE, 0))
		return kv ? "is missing below the committed length" : NULL;
	if (e == skv_pte_make(SKV_PTE_HOLE, 0))
		return kv ? NULL : "is a hole in a table that has none";
	return e == skv_pte_make(SKV_PTE_PRIVATE, (uint32_t)m->n_pages) ? NULL : "is not the page that comes next";
}

static void entry_text(const struct skv_disk_memory *m, uint32_t i, skv_pte e, const char *what, char to[SKV_DISK_TEXT_MAX])
{
	snprintf(to, SKV_DISK_TEXT_MAX, "entry %u of table %u (%#x) %s", m->index + i, m->table, e, what);
}

/* ---- from the memory of a sequence ----------------------------------------------------------- */

static int busy(const struct skv_disk_memory *m, uint64_t commit)
{
	return skv_disk_refuse(m->work, -EBUSY, "the sequence is being written to: its commit is %#llx, expected %#llx",
	                       (unsigned long long)commit, (unsigned long long)m->work->job->commit);
}

/* Reads the header of the sequence memory, and clears holder and journal: the parked sequence has neither. */
static int get_seqmem(struct skv_disk_memory *m)
{
	const char *wrong;
	int r = get(m, 0, &m->seqmem, sizeof(m->seqmem));

	if (r < 0)
		return r;
	if (m->seqmem.commit != m->work->job->commit)
		return busy(m, m->seqmem.commit);
	m->seqmem.holder = m->seqmem.journal_n = m->seqmem.journal_epoch = 0;
	wrong = skv_seqmem_check(&m->seqmem, &m->layout);
	return wrong ? skv_disk_refuse(m->work, -EINVAL, "%s", wrong) : 0;
}

/* Computes the size of the policy's state up to its last nonzero 32-bit word. */
static int state_bytes(const struct skv_disk_memory *m, uint32_t *ret)
{
	uint32_t state[SKV_SEQ_STATE_MAX / sizeof(uint32_t)], n = SKV_SEQ_STATE_MAX / sizeof(uint32_t);
	int r = get(m, m->layout.state, state, sizeof(state));

	while (n > 0 && state[n - 1] == 0)
		n--;
	*ret = n * (uint32_t)sizeof(*state);
	return r;
}

int skv_disk_memory_describe(struct skv_disk_memory *m, struct skv_disk_work *work, struct skv_parked_header *ret)
{
	const struct skv_disk_job *job = work->job;
	struct skv_parked_header h = {.model = job->model, .uid = job->uid, .max_tokens = job->max_tokens, .commit = job->commit,
	                              .n_entries = job->n_entries, .n_pages = job->n_pages, .page_bytes = job->page_bytes, .n_keys = job->n_keys};
	struct skv_model model;
	const char *wrong;
	int r;

	skv_wire_string(h.name, sizeof(h.name), job->name);
	if (h.page_bytes == 0) /* the layout would divide by 0; skv_parked_check() finds all other errors */
		return skv_disk_refuse(work, -EINVAL, "the daemon's job has a page size of 0 bytes");
	*m = (struct skv_disk_memory){.work = work, .header = ret, .fd = work->fds[SKV_DISK_FD_SEQ]};
	skv_parked_lay_out(&h);
	skv_parked_seal(&h);
	wrong = skv_parked_check(&h, UINT64_MAX);
	if (wrong)
		return skv_disk_refuse(work, -EINVAL, "the daemon's job is not valid: %s", wrong);
	skv_wire_to_model(&model, &h.model);
	skv_seqmem_layout(&model, h.max_tokens, &m->layout);
	r = get_seqmem(m);
	if (r == 0)
		r = state_bytes(m, &h.state_bytes);
	if (r < 0)
		return r;
	skv_parked_lay_out(&h);
	*ret = h;
	skv_disk_list_begin(&m->list, work, 0, h.n_entries);
	return 0;
}

/*
 * Copies token ids. The last one is the next input token, taken from the committed `next`: a step that was interrupted
 * may have overwritten the id in the array.
 */
static int give_ids(const struct skv_disk_memory *m, uint64_t at, int32_t *to, size_t bytes)
{
	int r = get(m, m->layout.tokens + at, to, bytes);

	if (at + bytes == m->header->n_ids * sizeof(*to))
		to[bytes / sizeof(*to) - 1] = m->seqmem.next[skv_commit_epoch(m->header->commit) & 1];
	return r;
}

/*
 * Converts page table entries of the daemon's list to those of the file, which number pages in the order of the file.
 */
static int give_entries(struct skv_disk_memory *m, skv_pte *to, size_t n)
{
	for (size_t done = 0; done < n;) {
		uint32_t some = entries_of_table(m, n - done);

		for (uint32_t i = 0; i < some; i++) {
			const char *wrong;
			skv_pte e;
			int r = skv_disk_list_next(&m->list, &e);

			if (r < 0)
				return r;
			to[done + i] = skv_pte_resident(e) ? skv_pte_make(SKV_PTE_PRIVATE, (uint32_t)m->n_pages)
			                                   : skv_pte_make(skv_pte_kind(e), 0);
			wrong = entry_wrong(m, to[done + i]);
			if (wrong) {
				entry_text(m, i, e, wrong, m->work->why);
				return -EINVAL;
			}
			m->n_pages += skv_pte_resident(e) ? 1 : 0;
		}
		m->index += some;
		done += some;
	}
	return 0;
}

static int give_section(struct skv_disk_memory *m, char *to, size_t most, size_t *ret_bytes)
{
	uint64_t at;

	switch (section(m, most, &at, ret_bytes)) {
	case SEQMEM: memcpy(to, (const char *)&m->seqmem + at, *ret_bytes); return 0;
	case IDS: return give_ids(m, at, (int32_t *)to, *ret_bytes);
	case STATE: return get(m, m->layout.state + at, to, *ret_bytes);
	default: return give_entries(m, (skv_pte *)to, *ret_bytes / sizeof(skv_pte));
	}
}

int skv_disk_memory_give(struct skv_disk_memory *m, void *to, size_t bytes)
{
	size_t n;

	for (size_t done = 0; done < bytes; done += n) {
		int r = give_section(m, (char *)to + done, bytes - done, &n);

		if (r < 0)
			return r;
		m->at += n;
	}
	m->sum = skv_crc32c(m->sum, to, bytes);
	return 0;
}

int skv_disk_memory_unchanged(struct skv_disk_memory *m)
{
	uint64_t commit;
	int r = get(m, offsetof(struct skv_seqmem, commit), &commit, sizeof(commit));

	return r < 0 ? r : commit != m->header->commit ? busy(m, commit) : 0;
}

/* ---- into the memory of a sequence ----------------------------------------------------------- */

void skv_disk_memory_begin(struct skv_disk_memory *m, struct skv_disk_work *work, const struct skv_parked_header *h, int fd)
{
	struct skv_model model;

	*m = (struct skv_disk_memory){.work = work, .header = h, .fd = fd};
	skv_wire_to_model(&model, &h->model);
	skv_seqmem_layout(&model, h->max_tokens, &m->layout);
	skv_disk_list_begin(&m->list, work, 0, h->n_pages);
}

static void check_seqmem(struct skv_disk_memory *m)
{
	const char *wrong = skv_seqmem_check(&m->seqmem, &m->layout);

	if (!wrong && m->seqmem.commit != m->header->commit)
		wrong = "the file's sequence memory has another commit than its header";
	if (!wrong && (m->seqmem.holder || m->seqmem.journal_n || m->seqmem.journal_epoch))
		wrong = "the file's sequence memory was in use when it was parked";
	if (wrong)
		snprintf(m->wrong, sizeof(m->wrong), "%s", wrong);
}

static int take_seqmem(struct skv_disk_memory *m, uint64_t at, const char *from, size_t bytes)
{
	memcpy((char *)&m->seqmem + at, from, bytes);
	if (at + bytes == sizeof(m->seqmem))
		check_seqmem(m);
	return 0;
}

/* Converts entries of one page table and writes them: the k-th page of the file gets the k-th page id of the list. */
static int take_window(struct skv_disk_memory *m, const skv_pte *from, uint32_t n)
{
	uint64_t at = m->layout.table + ((uint64_t)m->table * m->layout.max_pages + m->index) * sizeof(skv_pte);
	skv_pte window[WINDOW];

	for (uint32_t i = 0; i < n; i++) {
		const char *wrong = entry_wrong(m, from[i]);
		uint32_t page = 0;
		int r;

		if (!wrong && skv_pte_resident(from[i]) && m->n_pages == m->header->n_pages)
			wrong = "is a page more than the file has";
		if (wrong) {
			entry_text(m, i, from[i], wrong, m->wrong);
			return 0;
		}
		window[i] = from[i];
		if (!skv_pte_resident(from[i]))
			continue;
		m->n_pages++;
		if (m->fd < 0)
			continue;
		r = skv_disk_list_pages(&m->list, 1, &page);
		if (r < 0)
			return r;
		window[i] = skv_pte_make(SKV_PTE_PRIVATE, page);
	}
	m->index += n;
	return m->fd < 0 ? 0 : put_sparse(m, at, window, n * sizeof(*window));
}

static int take_entries(struct skv_disk_memory *m, const skv_pte *from, size_t n)
{
	int r = 0;

	for (size_t done = 0; r == 0 && done < n && !*m->wrong;) {
		uint32_t some = entries_of_table(m, n - done < WINDOW ? n - done : WINDOW);

		r = take_window(m, from + done, some);
		done += some;
	}
	return r;
}

static int take_section(struct skv_disk_memory *m, const char *from, size_t most, size_t *ret_bytes)
{
	uint64_t at;
	enum section s = section(m, most, &at, ret_bytes);

	if (*m->wrong)
		return 0;
	switch (s) {
	case SEQMEM: return take_seqmem(m, at, from, *ret_bytes);
	case IDS: return m->fd < 0 ? 0 : put(m, m->layout.tokens + at, from, *ret_bytes);
	case STATE: return m->fd < 0 ? 0 : put_sparse(m, m->layout.state + at, from, *ret_bytes);
	default: return take_entries(m, (const skv_pte *)from, *ret_bytes / sizeof(skv_pte));
	}
}

int skv_disk_memory_take(struct skv_disk_memory *m, const void *from, size_t bytes)
{
	size_t n;

	m->sum = skv_crc32c(m->sum, from, bytes);
	for (size_t done = 0; done < bytes; done += n) {
		int r = take_section(m, (const char *)from + done, bytes - done, &n);

		if (r < 0)
			return r;
		m->at += n;
	}
	return 0;
}

int skv_disk_memory_check(struct skv_disk_memory *m)
{
	const struct skv_parked_header *h = m->header;

	if (m->sum != h->memory_sum)
		return skv_disk_refuse(m->work, -EBADMSG, "the sequence memory has another checksum than when it was parked: %#x, expected %#x",
		                       m->sum, h->memory_sum);
	if (*m->wrong)
		return skv_disk_refuse(m->work, -EBADMSG, "%s", m->wrong);
	if (m->n_pages != h->n_pages)
		return skv_disk_refuse(m->work, -EBADMSG, "the file's page tables have %llu pages, its header says %llu",
		                       (unsigned long long)m->n_pages, (unsigned long long)h->n_pages);
	return 0;
}

int skv_disk_memory_commit(struct skv_disk_memory *m)
{
	return put(m, 0, &m->seqmem, sizeof(m->seqmem));
}
