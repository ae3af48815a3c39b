/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: created, adopted after a restart, shrunk. A pool has the pages of one UID, of one size, in one memory. A pool
 * exists while a session or a sequence uses it.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pending.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/refuse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/fd.h"

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t t = a % b;

		a = b;
		b = t;
	}
	return a;
}

#define SPANNED_PAGES 64u /* with more pages than this, a segment can afford to lose the space of two pages */

/*
 * May a segment end within a page? That is so on a device if `unit`, the least common multiple of page and granule, is
 * larger than `wanted`, the configured size of a segment, and if a segment has more than SPANNED_PAGES pages.
 */
static bool is_spanned(uint32_t device, uint64_t page_bytes, uint64_t unit, uint64_t wanted)
{
	return device != SKV_DEVICE_HOST && unit > wanted && wanted / page_bytes > SPANNED_PAGES;
}

/*
 * Chooses the size of a pool's segments: a multiple of a unit, the least common multiple of page and granule, so that
 * pages lie without gaps. A segment is at most the configured size, so that a limit in bytes holds as many segments as
 * an administrator expects, but at least one unit.
 *
 * Granules of a device are large, and a unit may be far larger than the configured segment: 258 MiB for fp8 pages of 8
 * KV heads with a head dim of 128. Where a unit is too large, a segment has the configured size, and pages are numbered
 * on across segments: a page that would begin in one segment and end in the next is not used. So each segment has one
 * page less than would fit into it.
 */
static int pool_sizes(struct skv_core *c, uint32_t device, uint64_t page_bytes, struct skv_pool_row *p)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	const struct skv_memory *memory = &c->memory[device];
	const struct skv_core_memory_limits *k = &memory->limits;
	uint64_t unit = page_bytes / gcd(page_bytes, memory->mem->granularity) * memory->mem->granularity;
	uint64_t wanted = k->segment_bytes / memory->mem->granularity * memory->mem->granularity;
	bool spanned = is_spanned(device, page_bytes, unit, wanted);
	uint64_t bytes = spanned ? wanted : k->segment_bytes > unit ? k->segment_bytes / unit * unit : unit;
	uint64_t pages = bytes / page_bytes - spanned, segments = k->most_bytes / bytes;

	if (bytes > k->pool_bytes || pages > g->max_pages)
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "a segment for pages of %llu bytes takes %llu, expected at most %llu, the limit "
		                       "of all pools",
		                       (unsigned long long)page_bytes, (unsigned long long)bytes,
		                       (unsigned long long)k->pool_bytes);
	if (segments > g->max_segments)
		segments = g->max_segments;
	if (segments > g->max_pages / pages)
		segments = g->max_pages / pages;
	p->device = device;
	p->page_bytes = page_bytes;
	p->segment_bytes = bytes;
	p->pages_per_segment = (uint32_t)pages;
	p->max_segments = (uint32_t)segments;
	return 0;
}

static void local_free(struct skv_core *c, uint32_t device, struct skv_pool_local *l)
{
	const struct skv_mem_ops *mem = c->memory[device].mem;

	if (l->fd >= 0)
		mem->close(mem, l->fd);
	free(l->handles);
	for (uint32_t i = 0; i < SKV_RUN_CLASSES; i++)
		skv_bitset_deinit(&l->runs[i]);
	skv_bitset_deinit(&l->empty);
	skv_bitset_deinit(&l->vacant);
	*l = (struct skv_pool_local){.fd = -1};
}

/* Makes the memfd for all segments of a pool or, on a device, an array for their handles. 0 or an error of the core. */
static int local_memory(struct skv_core *c, const struct skv_pool_row *sizes, struct skv_pool_local *l)
{
	const struct skv_mem_ops *mem = c->memory[sizes->device].mem;

	if (mem->pool_new) {
		l->fd = mem->pool_new(mem, sizes->max_segments * sizes->segment_bytes);
		return l->fd < 0 ? skv_core_refuse_system(c, l->fd, "memory for a pool") : 0;
	}
	l->handles = malloc(sizeof(*l->handles) * sizes->max_segments);
	for (uint32_t i = 0; l->handles && i < sizes->max_segments; i++)
		l->handles[i] = (struct skv_mem_handle)SKV_MEM_HANDLE_NULL;
	return l->handles ? 0 : -ENOMEM;
}

static int local_sets(const struct skv_pool_row *sizes, struct skv_pool_local *l)
{
	int r = 0;

	*l = (struct skv_pool_local){.fd = -1};
	for (uint32_t i = 0; i < SKV_RUN_CLASSES && r == 0; i++)
		r = skv_bitset_init(&l->runs[i], sizes->max_segments);
	if (r == 0)
		r = skv_bitset_init(&l->empty, sizes->max_segments);
	return r ? r : skv_bitset_init(&l->vacant, sizes->max_segments);
}

static int local_make(struct skv_core *c, const struct skv_pool_row *sizes, struct skv_pool_local *l)
{
	int r = local_sets(sizes, l);

	if (r == 0)
		r = local_memory(c, sizes, l);
	if (r)
		local_free(c, sizes->device, l);
	return r;
}

/* Is `fd` a memfd of exactly the size of all the pool's segments, sealed against shrinking and growing? */
static bool is_memory_of(const struct skv_pool_row *p, int fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size == p->max_segments * p->segment_bytes &&
	       (fcntl(fd, F_GET_SEALS) & seals) == seals;
}

int skv_pool_adopt(struct skv_core *c, uint32_t pool, int fd, bool *lost)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_pool_local *l = &c->pools[pool];
	const bool whole = c->memory[p->device].mem->pool_new, fits = whole && is_memory_of(p, fd);
	int r = local_sets(p, l);

	if (r == 0 && !fits)
		r = local_memory(c, p, l);
	if (fits)
		l->fd = fd;
	else
		skv_close_fd(fd);
	*lost |= whole && !fits;
	return r;
}

void skv_pool_leave(struct skv_core *c, uint32_t pool)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	struct skv_pool_local *l = &c->pools[pool];

	for (uint32_t s = 0; l->handles && s < p->max_segments; s++)
		skv_close_fd(l->handles[s].fd);
	free(l->handles);
	skv_close_fd(l->fd);
	for (uint32_t i = 0; i < SKV_RUN_CLASSES; i++)
		skv_bitset_deinit(&l->runs[i]);
	skv_bitset_deinit(&l->empty);
	skv_bitset_deinit(&l->vacant);
	*l = (struct skv_pool_local){.fd = -1};
}

static int pool_make(struct skv_core *c, uint32_t account, const struct skv_pool_row *sizes,
                     uint32_t *ret_index)
{
	uint32_t pool;
	struct skv_pool_local l;
	struct skv_pool_row *p;
	char kept[SKV_FDSTORE_NAME];
	int r;

	if (skv_account_row(&c->state, account)->pools >= c->config.account_pools)
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                  "this UID already uses %u page sizes, the most that are allowed",
		                  c->config.account_pools);
	if (!skv_share_allows(c, SKV_TABLE_POOLS, skv_account_row(&c->state, account)->pools))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "this UID has %u pools; the rest of the daemon's %u is reserved for others",
		                       skv_account_row(&c->state, account)->pools, c->config.max_pools);
	r = local_make(c, sizes, &l);
	if (r)
		return r;
	pool = skv_state_take(&c->state, SKV_TABLE_POOLS);
	c->pools[pool] = l;
	skv_fdstore_name(&c->state, SKV_TABLE_POOLS, pool, kept);
	if (l.fd >= 0)
		skv_fdstore_add(c, kept, l.fd);
	p = skv_write_pool(&c->state, pool);
	p->account = account;
	p->file = skv_fdstore_file(l.fd);
	p->device = sizes->device;
	p->page_bytes = sizes->page_bytes;
	p->segment_bytes = sizes->segment_bytes;
	p->pages_per_segment = sizes->pages_per_segment;
	p->max_segments = sizes->max_segments;
	skv_write_account(&c->state, account)->pools++;
	*ret_index = pool;
	return 0;
}

int skv_pool_get(struct skv_core *c, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index)
{
	struct skv_pool_row sizes = {0};
	int r;

	SKV_EACH(i, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, i);

		if (p->account == account && p->device == device && p->page_bytes == page_bytes) {
			*ret_index = i;
			return 0;
		}
	}
	r = pool_sizes(c, device, page_bytes, &sizes);
	return r ? r : pool_make(c, account, &sizes, ret_index);
}

void skv_pool_shrink(struct skv_core *c, uint32_t pool)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	/*
	 * A pool with sessions keeps one empty segment: else a client whose use goes up and down by a few pages could
	 * make the pool create and destroy a segment again and again. A pool on a device keeps all of them until
	 * skv_core_trim(), because to create and map them again would delay the first token of the next long prompt.
	 */
	const uint32_t most = p->device == SKV_DEVICE_HOST ? 1 : UINT32_MAX, spare = p->sessions ? most : 0;
	const uint32_t account = p->account;
	char kept[SKV_FDSTORE_NAME];

	if (!p->sessions)
		skv_pool_cancel_all(c, pool);
	else if (p->pending)
		return; /* leases that wait for the pool's pending segments need its empty segments, too */
	while (p->empty > spare)
		skv_segment_withdraw_last(c, pool);
	if (p->sessions || p->sequences)
		return;
	skv_charge(c, account, &p->stray_bytes, 0);
	skv_fdstore_name(&c->state, SKV_TABLE_POOLS, pool, kept);
	if (c->pools[pool].fd >= 0)
		skv_fdstore_remove(c, kept);
	local_free(c, p->device, &c->pools[pool]);
	skv_state_give(&c->state, SKV_TABLE_POOLS, pool);
	skv_write_account(&c->state, account)->pools--;
	skv_account_put(c, account);
}

void skv_core_trim(struct skv_core *c)
{
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		c->memory[i].full = false; /* the next lease tries again */
	SKV_EACH(pool, &c->state, SKV_TABLE_POOLS) {
		const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
		uint32_t unused = c->pools[pool].least_empty;

		if (p->device == SKV_DEVICE_HOST || p->pending)
			continue;
		for (; unused > 1 && p->empty > 1; unused--)
			skv_segment_withdraw_last(c, pool);
		c->pools[pool].least_empty = p->empty;
	}
}
