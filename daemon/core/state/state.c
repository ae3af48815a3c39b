/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/state/state.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "common/fd.h"

/* The id of a row is generation << 16 | index. */
#define ID_INDEX_BITS 16
#define ID_MAX_ROWS 65535u

const char skv_no_memory[] = "there is no memory to check the state";

static const uint32_t element_bytes[SKV_TABLE_COUNT] = {
	[SKV_TABLE_ACCOUNTS] = sizeof(struct skv_account_row),
	[SKV_TABLE_CLIENTS] = sizeof(struct skv_client_row),
	[SKV_TABLE_SESSIONS] = sizeof(struct skv_session_row),
	[SKV_TABLE_SEQUENCES] = sizeof(struct skv_seq_row),
	[SKV_TABLE_POOLS] = sizeof(struct skv_pool_row),
	[SKV_TABLE_MEMBERS] = sizeof(struct skv_member),
	[SKV_TABLE_SEGMENTS] = sizeof(struct skv_segment_row),
	[SKV_TABLE_TOLD] = sizeof(uint8_t),
	[SKV_TABLE_PAGES] = sizeof(skv_owner),
	[SKV_TABLE_REFS] = sizeof(uint64_t),
	[SKV_TABLE_UNDO] = sizeof(uint64_t),
};

/*
 * Number of words of the undo log. A change consists of the work of one turn of the event loop, which hardly changes
 * the owner of a page more than twice. The log takes memory only where it was written.
 */
static uint64_t undo_words(const struct skv_geometry *g)
{
	const uint64_t owners = 4 * 3 * g->max_pools * g->max_pages, refs = 4 * g->max_sequences * skv_ref_words(g);

	return owners + refs + 8 * (uint64_t)g->max_pools * g->max_clients * (g->max_segments + 8) +
	       (UINT64_C(64) << 20);
}

/*
 * Number of elements of a table. Accounts have one element more than there can be clients and sequences: an account has
 * a client or a sequence, or is about to get its first one.
 */
static uint64_t elements_of(const struct skv_geometry *g, enum skv_table t)
{
	switch (t) {
	case SKV_TABLE_ACCOUNTS: return (uint64_t)g->max_clients + g->max_sequences + 1;
	case SKV_TABLE_CLIENTS: return g->max_clients;
	case SKV_TABLE_SESSIONS: return g->max_sessions;
	case SKV_TABLE_SEQUENCES: return g->max_sequences;
	case SKV_TABLE_POOLS: return g->max_pools;
	case SKV_TABLE_MEMBERS: return (uint64_t)g->max_pools * g->max_clients;
	case SKV_TABLE_SEGMENTS: return (uint64_t)g->max_pools * g->max_segments;
	case SKV_TABLE_TOLD: return (uint64_t)g->max_pools * g->max_clients * g->max_segments;
	case SKV_TABLE_PAGES: return g->max_pools * g->max_pages;
	case SKV_TABLE_REFS: return g->max_sequences * skv_ref_words(g);
	case SKV_TABLE_UNDO: return undo_words(g);
	case SKV_TABLE_COUNT: break;
	}
	return 0;
}

static bool within(uint64_t x, uint64_t most)
{
	return x && x <= most;
}

/* Computes the header of a state with this geometry. False: a size of the geometry is out of bounds. */
static bool header_of(const struct skv_geometry *g, struct skv_state_header *ret)
{
	struct skv_state_header h = {
		.magic = SKV_STATE_MAGIC,
		.version = SKV_STATE_VERSION,
		.header_bytes = sizeof(h),
		.geometry = *g,
	};
	uint64_t at = (sizeof(h) + 4095) / 4096 * 4096;

	if (!within(g->max_clients, ID_MAX_ROWS) || !within(g->max_sessions, ID_MAX_ROWS) ||
	    !within(g->max_sequences, ID_MAX_ROWS) || !within(g->max_pools, ID_MAX_ROWS) ||
	    !within(g->max_segments, SKV_PTE_ID_MASK) || !within(g->max_pages, SKV_PTE_ID_MASK) || g->reserved)
		return false;
	for (int t = 0; t < SKV_TABLE_COUNT; t++) {
		h.offset[t] = at;
		h.elements[t] = elements_of(g, t);
		h.element_bytes[t] = element_bytes[t];
		if (h.elements[t] > (UINT64_C(1) << 46) / element_bytes[t])
			return false;
		at += (h.elements[t] * element_bytes[t] + 4095) / 4096 * 4096;
	}
	h.total_bytes = at;
	*ret = h;
	return at < UINT64_C(1) << 46; /* a larger state could not be mapped into the address space */
}

int skv_state_new(struct skv_state *s, const struct skv_geometry *g)
{
	struct skv_state_header h;
	const char *why;
	int fd;

	if (!header_of(g, &h))
		return -EINVAL;
	fd = skv_memfd_new("sparsekvd-state", h.total_bytes);
	if (fd < 0)
		return fd;
	if (pwrite(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h)) {
		int r = -errno;

		skv_close_fd(fd);
		return r;
	}
	return skv_state_map(s, fd, &why);
}

/*
 * Checks a header, which has no checksum. The header has the geometry and also the table offsets that follow from it;
 * the check computes the offsets again and compares them. The other fields of the header change all the time; whether
 * they are right is seen from the rows and counts (verify.h, balance.h). An error in segment_bytes or pool_bytes of the
 * geometry is not found: they only determine sizes of future segments, within bounds that the other sizes set
 * (pools.c).
 */
static const char *header_check(const struct skv_state_header *h)
{
	struct skv_state_header want;

	if (h->magic != SKV_STATE_MAGIC)
		return "not a sparsekvd state: wrong magic";
	if (h->version != SKV_STATE_VERSION || h->header_bytes != sizeof(*h))
		return "state of another version of sparsekvd";
	if (!header_of(&h->geometry, &want))
		return "state with impossible table sizes";
	if (h->total_bytes != want.total_bytes || memcmp(h->offset, want.offset, sizeof(want.offset)) ||
	    memcmp(h->elements, want.elements, sizeof(want.elements)) ||
	    memcmp(h->element_bytes, want.element_bytes, sizeof(want.element_bytes)))
		return "state whose tables are not where its sizes put them";
	for (int t = 0; t < SKV_TABLE_ROWS; t++)
		if (h->high[t] > h->elements[t] || h->live[t] > h->high[t] || h->free[t] > h->high[t])
			return "state with more rows than its tables hold";
	return NULL;
}

static int read_header(int fd, struct skv_state_header *ret, const char **ret_why)
{
	const ssize_t n = pread(fd, ret, sizeof(*ret), 0);
	const int r = n < 0 ? -errno : n == (ssize_t)sizeof(*ret) ? 0 : -EBADMSG;

	*ret_why = r == 0          ? header_check(ret)
	           : r == -EBADMSG ? "state is shorter than its header"
	                           : "state cannot be read";
	return r == 0 && *ret_why ? -EBADMSG : r;
}

int skv_state_check(int fd, const char **ret_why)
{
	struct skv_state_header h;

	return read_header(fd, &h, ret_why);
}

int skv_state_map(struct skv_state *s, int fd, const char **ret_why)
{
	struct skv_state_header h;
	void *map;
	int r;

	r = read_header(fd, &h, ret_why);
	if (r == 0) {
		r = skv_map_fd(fd, h.total_bytes, PROT_READ | PROT_WRITE, 1, &map);
		*ret_why = "state cannot be mapped: it is shorter than it says, or not sealed";
	}
	if (r < 0) {
		skv_close_fd(fd);
		return r;
	}
	s->fd = fd;
	s->header = map;
	s->change = 1;
	return 0;
}

void skv_state_deinit(struct skv_state *s)
{
	if (s->header)
		munmap((void *)(uintptr_t)s->header, s->header->total_bytes);
	s->header = NULL;
	s->fd = skv_close_fd(s->fd);
}

uint32_t skv_state_take(struct skv_state *s, enum skv_table t)
{
	struct skv_state_header *h = skv_write_header(s);
	uint32_t index, generation;
	struct skv_row *row;

	assert(t < SKV_TABLE_ROWS);
	if (h->free[t])
		index = h->free[t] - 1;
	else if (h->high[t] < h->elements[t])
		index = h->high[t]++;
	else
		return SKV_NO_INDEX;
	row = skv_undo_save(s, skv_state_at(s, t, index), h->element_bytes[t]);
	if (h->free[t]) /* only a row of the free list has a next_free; the bytes of a row never used are unverified */
		h->free[t] = row->next_free;
	generation = row->generation % 0xffff + 1; /* the next one of 1 … 65535 */
	memset(row, 0, h->element_bytes[t]);
	row->generation = generation;
	row->live = 1;
	h->live[t]++;
	return index;
}

void skv_state_give(struct skv_state *s, enum skv_table t, uint32_t index)
{
	struct skv_state_header *h = skv_write_header(s);
	struct skv_row *row = skv_undo_save(s, skv_state_at(s, t, index), sizeof(*row));

	assert(t < SKV_TABLE_ROWS && row->live);
	row->live = 0;
	row->next_free = h->free[t];
	h->free[t] = index + 1;
	h->live[t]--;
}

uint32_t skv_state_id(const struct skv_state *s, enum skv_table t, uint32_t index)
{
	const struct skv_row *row = skv_state_at(s, t, index);

	return row->generation << ID_INDEX_BITS | index;
}

uint32_t skv_state_find(const struct skv_state *s, enum skv_table t, uint32_t id)
{
	uint32_t index = id & ((1u << ID_INDEX_BITS) - 1);
	const struct skv_row *row;

	if (index >= s->header->high[t])
		return SKV_NO_INDEX;
	row = skv_state_at(s, t, index);
	return row->live && row->generation == id >> ID_INDEX_BITS ? index : SKV_NO_INDEX;
}

uint32_t skv_state_next(const struct skv_state *s, enum skv_table t, uint32_t index)
{
	for (; index < s->header->high[t]; index++)
		if (((const struct skv_row *)skv_state_at(s, t, index))->live)
			return index;
	return SKV_NO_INDEX;
}
