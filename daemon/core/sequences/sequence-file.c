/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/sequences/sequence-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/records.h"

/* Result of a read or write of `bytes` bytes of a memfd: 0 if all bytes were transferred, else a negative errno. */
static int whole(ssize_t n, size_t bytes)
{
	return n == (ssize_t)bytes ? 0 : n < 0 ? -errno : -EIO;
}

/* Writes the committed id of the next input token to tokens[len]. */
static int show_next(const struct skv_seq_local *l, uint32_t len)
{
	uint64_t commit = atomic_load_explicit(&l->mem->commit, memory_order_acquire);
	int32_t next = l->mem->next[skv_commit_epoch(commit) & 1];

	return whole(pwrite(l->fd, &next, sizeof(next), (off_t)(l->layout.tokens + len * sizeof(next))), sizeof(next));
}

int skv_seqfile_new(struct skv_seq_local *ret, uint32_t index, const struct skv_model *m, uint32_t max_tokens)
{
	struct skv_seq_local l = {0};
	char name[32];
	void *map;
	int r;

	skv_seqmem_layout(m, max_tokens, &l.layout);
	snprintf(name, sizeof(name), "seq-%u", index);
	l.fd = skv_memfd_new(name, l.layout.total);
	if (l.fd < 0)
		return l.fd;
	/* maps the header alone: a mapping of the whole memfd would need page tables for all of it */
	r = skv_map_fd(l.fd, l.layout.table, PROT_READ | PROT_WRITE, 0, &map);
	if (r < 0) {
		skv_close_fd(l.fd);
		return r;
	}
	l.mem = map;
	skv_seqmem_init_header(l.mem, &l.layout);
	r = show_next(&l, 0);
	if (r < 0)
		skv_seqfile_close(&l);
	else
		*ret = l;
	return r;
}

int skv_seqfile_open(struct skv_seq_local *ret, int fd, const struct skv_model *m, uint32_t max_tokens)
{
	struct skv_seq_local l = {.fd = fd};
	struct stat st;
	void *map;
	int r;

	skv_seqmem_layout(m, max_tokens, &l.layout);
	r = fstat(fd, &st) < 0 ? -errno : (uint64_t)st.st_size != l.layout.total ? -EBADMSG : 0;
	if (r == 0)
		r = skv_map_fd(fd, l.layout.table, PROT_READ | PROT_WRITE, 1, &map);
	if (r < 0) {
		skv_close_fd(fd);
		return r;
	}
	l.mem = map;
	*ret = l;
	return 0;
}

int skv_seqfile_put_back(int fd, uint64_t offset, const void *was, size_t bytes)
{
	uint32_t magic = 0;
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	if (pread(fd, &magic, sizeof(magic), offsetof(struct skv_seqmem, magic)) < 0)
		return -errno;
	if (magic != SKV_SEQMEM_MAGIC)
		return 0;
	if (offset >= sizeof(struct skv_seqmem) && offset <= (uint64_t)st.st_size &&
	    bytes <= (uint64_t)st.st_size - offset)
		return whole(pwrite(fd, was, bytes, (off_t)offset), bytes);
	return 0;
}

void skv_seqfile_close(struct skv_seq_local *l)
{
	munmap(l->mem, l->layout.table);
	skv_close_fd(l->fd);
	*l = (struct skv_seq_local){.fd = -1};
}

void skv_seqfile_free(struct skv_core *c, struct skv_seq_local *l)
{
	const struct skv_mem_ops *host = c->memory[SKV_DEVICE_HOST].mem;

	munmap(l->mem, l->layout.table);
	host->close(host, l->fd);
	*l = (struct skv_seq_local){.fd = -1};
}

/* ---- windows --------------------------------------------------------------------------------- */

uint64_t skv_seqfile_entry_at(const struct skv_seq_local *l, uint32_t table, uint32_t index)
{
	return l->layout.table + ((uint64_t)table * l->layout.max_pages + index) * sizeof(skv_pte);
}

int skv_seqfile_read(const struct skv_seq_local *l, uint32_t table, uint32_t first, uint32_t n, skv_pte *to)
{
	size_t bytes = n * sizeof(*to);

	return whole(pread(l->fd, to, bytes, (off_t)skv_seqfile_entry_at(l, table, first)), bytes);
}

int skv_seqfile_write(const struct skv_seq_local *l, uint32_t table, uint32_t first, uint32_t n, const skv_pte *from)
{
	size_t bytes = n * sizeof(*from);

	return whole(pwrite(l->fd, from, bytes, (off_t)skv_seqfile_entry_at(l, table, first)), bytes);
}

uint32_t skv_seqfile_len(const struct skv_seq_local *l)
{
	uint32_t len = skv_commit_len(atomic_load_explicit(&l->mem->commit, memory_order_acquire));

	/* a client may write at the same time: the length may not be the one that skv_seqmem_check() has checked */
	return len < l->layout.max_tokens ? len : l->layout.max_tokens;
}

/* ---- recovery -------------------------------------------------------------------------------- */

#define JOURNAL_WINDOW 512u /* number of journal entries that are read at a time */
#define CALL_UNITS 50u /* approximate cost of a system call in units of work */

/* Carries out one entry of the eviction journal; ignores an entry that is out of bounds. */
static int evict(const struct skv_seq_local *l, const struct skv_eviction *j)
{
	skv_pte entry;

	if (j->table >= l->layout.n_tables || j->page >= l->layout.max_pages)
		return 0;
	entry = skv_seqmem_evicted(&l->layout, j->table);
	return skv_seqfile_write(l, j->table, j->page, 1, &entry);
}

int skv_seqfile_read_ids(const struct skv_seq_local *l, uint32_t first, uint32_t n, int32_t *to)
{
	return whole(pread(l->fd, to, n * sizeof(*to), (off_t)(l->layout.tokens + first * sizeof(*to))),
	             n * sizeof(*to));
}

int skv_seqfile_read_state(const struct skv_seq_local *l, void *to, size_t bytes)
{
	return whole(pread(l->fd, to, bytes, (off_t)l->layout.state), bytes);
}

int skv_seqfile_write_state(const struct skv_seq_local *l, const void *from, size_t bytes)
{
	return whole(pwrite(l->fd, from, bytes, (off_t)l->layout.state), bytes);
}

int skv_seqfile_replay(const struct skv_seq_local *l, uint32_t *at, uint32_t *units)
{
	struct skv_eviction window[JOURNAL_WINDOW];
	uint32_t epoch = skv_commit_epoch(atomic_load_explicit(&l->mem->commit, memory_order_acquire));
	uint32_t n = atomic_load(&l->mem->journal_epoch) == epoch ? atomic_load(&l->mem->journal_n) : 0;

	if (n > l->layout.journal_most)
		n = (uint32_t)l->layout.journal_most;
	while (*at < n) {
		uint32_t some = n - *at < JOURNAL_WINDOW ? n - *at : JOURNAL_WINDOW;
		size_t bytes = some * sizeof(*window);
		int r;

		if (!skv_units_take(units, some * CALL_UNITS))
			return 1;
		r = whole(pread(l->fd, window, bytes, (off_t)(l->layout.journal + *at * sizeof(*window))), bytes);
		for (uint32_t i = 0; i < some && r == 0; i++)
			r = evict(l, &window[i]);
		if (r < 0)
			return r; /* the journal is not emptied, so the replay can be repeated */
		*at += some;
	}
	atomic_store(&l->mem->journal_n, 0);
	return 0;
}

#define PAGE_BYTES 4096u
#define PUNCH_BYTES (1u << 20)   /* bytes of memory that are freed at a time */
#define PUNCH_BYTES_OF_UNIT 100u /* bytes of existing memory that are freed for one unit of work */

/*
 * Punches a hole into the memfd from offset `from` to `to`, from *at on, a piece at a time; parts of 4 KiB pages are
 * zeroed. *at may end beyond `to`, at the next offset that has memory, so that tables without memory cost no further
 * system call. 0: complete; 1: there is more; negative errno.
 */
static int punch_some(const struct skv_seq_local *l, uint64_t from, uint64_t to, uint64_t *at, uint32_t *units)
{
	if (*at < from)
		*at = from;
	while (*at < to) {
		off_t data;
		uint64_t n;

		if (!skv_units_take(units, CALL_UNITS))
			return 1;
		data = lseek(l->fd, (off_t)*at, SEEK_DATA);
		*at = data < 0 ? l->layout.total : (uint64_t)data;
		if (*at >= to)
			break;
		n = PUNCH_BYTES - *at % PAGE_BYTES; /* up to the end of a page: only whole pages are freed */
		n = to - *at < n ? to - *at : n;
		if (fallocate(l->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, data, (off_t)n) < 0)
			return -errno;
		(void)skv_units_take(units, (uint32_t)n / PUNCH_BYTES_OF_UNIT);
		*at += n;
	}
	return 0;
}

uint64_t skv_seqfile_least(const struct skv_seq_local *l)
{
	/* header, tokens, journal and references are rounded up to pages, too: these are the other four pages */
	return (l->layout.n_tables + UINT64_C(4)) * PAGE_BYTES + l->layout.state_bytes;
}

int skv_seqfile_trim(const struct skv_seq_local *l, uint64_t *at, uint32_t *units)
{
	const struct skv_seqmem_layout *o = &l->layout;
	uint32_t len = skv_seqfile_len(l);
	int r = 0;

	for (uint32_t table = 0; table < o->n_tables && r == 0; table++) {
		uint64_t from = skv_seqfile_entry_at(l, table, skv_seqmem_entries(o, table, len));

		r = punch_some(l, from, skv_seqfile_entry_at(l, table + 1, 0), at, units);
	}
	if (r == 0)
		r = punch_some(l, o->tokens + (len + UINT64_C(1)) * sizeof(int32_t), o->journal, at, units);
	if (r == 0)
		r = punch_some(l, o->journal, o->state, at, units);
	return r ? r : show_next(l, len);
}

/* ---- copies ---------------------------------------------------------------------------------- */

#define COPY_BYTES (128u << 10) /* bytes copied at a time */
#define COPY_UNITS 8000u /* cost of copying COPY_BYTES in units of work */
#define BYTES_OF_UNIT (COPY_BYTES / COPY_UNITS)

static bool is_zero(const char *page)
{
	return page[0] == 0 && !memcmp(page, page + 1, PAGE_BYTES - 1);
}

/*
 * Writes n bytes, without the 4 KiB pages that are all zero: a reader cannot tell a page of zeros from a hole. `from`
 * must be zero from the n bytes on to the end of their last page.
 */
static int write_pages(int to, const char *from, off_t at, size_t n)
{
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i; end < n && !is_zero(from + end); end += PAGE_BYTES)
			;
		if (end > i) {
			const size_t some = (end < n ? end : n) - i;
			int r = whole(pwrite(to, from + i, some, at + (off_t)i), some);

			if (r < 0)
				return r;
		} else {
			end += PAGE_BYTES;
		}
	}
	return 0;
}

/* Does not use SEEK_HOLE, for which the kernel searches every page up to the next hole in one long system call. */
int skv_seqfile_copy_some(const struct skv_seq_local *to, const struct skv_seq_local *from, uint64_t *at,
                          uint32_t *units)
{
	const uint64_t total = from->layout.total;
	char piece[COPY_BYTES];

	while (*at < total) {
		off_t data = lseek(from->fd, (off_t)*at, SEEK_DATA);
		size_t n;
		int r;

		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		if (!skv_units_take(units, COPY_UNITS))
			return 1;
		*at = (uint64_t)data;
		n = total - *at < COPY_BYTES ? (size_t)(total - *at) : COPY_BYTES;
		r = whole(pread(from->fd, piece, n, data), n);
		if (r == 0)
			r = write_pages(to->fd, piece, data, n);
		if (r < 0)
			return r;
		*at += n;
	}
	return 0;
}

/*
 * Copies n bytes from offset from_at of one memfd to offset to_at of another, which is empty; byte *at is next. Pages
 * of zeros are not written, so that the copy takes no more memory than the original. 0: complete, and *at is 0 again;
 * 1: there is more; negative errno.
 */
static int copy_bytes(const struct skv_seq_local *to, uint64_t to_at, const struct skv_seq_local *from,
                      uint64_t from_at, uint64_t n, uint64_t *at, uint32_t *units)
{
	char piece[COPY_BYTES];

	while (*at < n) {
		const size_t some = n - *at < COPY_BYTES ? (size_t)(n - *at) : COPY_BYTES;
		int r;

		if (!skv_units_take(units, CALL_UNITS + (uint32_t)(some / BYTES_OF_UNIT)))
			return 1;
		r = whole(pread(from->fd, piece, some, (off_t)(from_at + *at)), some);
		memset(piece + some, 0, (PAGE_BYTES - some % PAGE_BYTES) % PAGE_BYTES);
		if (r == 0)
			r = write_pages(to->fd, piece, (off_t)(to_at + *at), some);
		if (r < 0)
			return r;
		*at += some;
	}
	*at = 0;
	return 0;
}

int skv_seqfile_copy_prefix(const struct skv_seq_local *to, const struct skv_seq_local *from, const struct skv_model *m,
                            const struct skv_made *made, uint32_t n, uint32_t *table, uint64_t *at, uint32_t *units)
{
	int r = 0;

	for (; *table < from->layout.n_tables && r == 0; *table += r == 0)
		r = copy_bytes(to, skv_seqfile_entry_at(to, *table, 0), from, skv_seqfile_entry_at(from, *table, 0),
		               skv_made_entries(made, m, *table, n) * sizeof(skv_pte), at, units);
	return r ? r : copy_bytes(to, to->layout.tokens, from, from->layout.tokens, n * sizeof(int32_t), at, units);
}
