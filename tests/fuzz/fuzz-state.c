/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state of the daemon that is damaged after its process has ended: bytes and words of its tables and undo log, its
 * size, missing or exchanged descriptors. The next daemon accepts it or rejects it with a text. An accepted state
 * balances, and continues to balance whatever clients do. An undamaged state must be accepted.
 *
 * The input determines what clients do before (fewer calls than in fuzz-core, but they create rows of each kind), the
 * damage, and what clients do afterwards.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/fd.h"
#include "daemon/core/memory/memory.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/state/core-priv.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/requests.h"
#include "daemon/core/operations/turns.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "state";
const int fuzz_copies = 20;

#define CLIENTS 3u
#define SEQS 10u
#define KEPT 512u
#define STOCK 256u
#define DISCARDS 64u
#define DEVICE SKV_DEVICE_CUDA(0)

static struct skv_core *core;
static struct {
	char name[SKV_FDSTORE_NAME];
	int fd;
} kept[KEPT];
static size_t n_kept;
static struct {
	uint32_t id, session, pool, stock[STOCK], n_stock;
} clients[CLIENTS];

static const struct skv_core_config config = {
	.pool_bytes = 4 << 20, .segment_bytes = 64 << 10, .account_bytes = 2 << 20, .account_clients = 3,
	.account_sequences = 8, .device_bytes = 4 << 20, .device_segment_bytes = 64 << 10, .max_clients = 4, .max_sequences = SEQS,
	.max_sessions = 8, .max_pools = 6, .account_pools = 2, .client_sessions = 2,
};

/* ---- environment of the core ----------------------------------------------------------------- */

static bool keep_no_more(void *ctx, const char *name)
{
	(void)ctx;
	for (size_t i = 0; i < n_kept; i++)
		if (!strcmp(kept[i].name, name)) {
			close(kept[i].fd);
			kept[i] = kept[--n_kept];
			return true;
		}
	return true;
}

static bool keep(void *ctx, const char *name, int fd)
{
	(void)ctx;
	MUST(n_kept < KEPT);
	snprintf(kept[n_kept].name, sizeof(kept[0].name), "%s", name);
	kept[n_kept++].fd = dup(fd);
	return true;
}

static const struct skv_core_fdstore store = {.add = keep, .remove = keep_no_more};

/* Discards complete immediately, or when mem_discarded() reports them. */
static struct skv_mem_ops host_mem;
static struct skv_mem_range discards[DISCARDS];
static uint32_t n_discards;
static bool slow;

static bool discard(const struct skv_mem_ops *mem, int fd, const struct skv_mem_range *range)
{
	(void)mem, (void)fd;
	if (!slow || n_discards == DISCARDS)
		return true;
	discards[n_discards++] = *range;
	return false;
}

static void mem_discarded(void)
{
	if (n_discards)
		skv_core_segment_discarded(core, &discards[--n_discards]);
}

static void destroy(const struct skv_mem_ops *mem, struct skv_mem_handle *h, size_t bytes)
{
	(void)mem, (void)bytes;
	h->fd = skv_close_fd(h->fd);
}

static int on_device(void *ctx, struct skv_core *c, uint32_t device)
{
	static const struct skv_mem_ops ops = {.granularity = 65536, .handle_kind = SKV_HANDLE_CUDA_FD, .destroy = destroy};
	static const struct skv_core_memory_limits limits = {
		.pool_bytes = 4 << 20, .segment_bytes = 64 << 10, .account_bytes = 2 << 20, .most_bytes = 4 << 20};

	(void)ctx;
	if (device == DEVICE)
		skv_core_set_device(c, device, &ops, &limits);
	return device != DEVICE;
}

static void make_segments(void)
{
	struct skv_core_pending p;

	while (skv_core_next_pending(core, &p)) {
		struct skv_mem_handle h = {.fd = skv_memfd_new("device", p.bytes)};

		MUST(h.fd >= 0);
		skv_core_segment_made(core, &p, &h);
	}
}

static int on_client(void *ctx, const struct skv_core_past_client *c)
{
	(void)ctx;
	MUST(c->client);
	skv_close_fd(c->pidfd);
	return 0;
}

static void on_lost(void *ctx, const char *name, const char *why)
{
	(void)ctx;
	MUST(*name && *why);
}

static void must_balance(bool empty)
{
	const char *problem = skv_core_balance(core, empty);

	if (problem)
		fprintf(stderr, "%s\n", problem);
	MUST(!problem);
}

/* ---- clients --------------------------------------------------------------------------------- */

static const char *a_name(struct fuzz_input *in)
{
	static const char *const names[] = {"a", "b", "c", ""};

	return names[fuzz_u8(in) % 4];
}

/* Returns the id of an arbitrary sequence of the core. */
static uint32_t a_seq(struct fuzz_input *in)
{
	uint32_t i = fuzz_u8(in) % SEQS;

	return i < core->state.header->high[SKV_TABLE_SEQUENCES] ? skv_state_id(&core->state, SKV_TABLE_SEQUENCES, i) : 0;
}

static void join(uint32_t i)
{
	struct skv_model m = SKV_MODEL_INIT;
	struct skv_core_session_info s;

	m.n_layers = 2;
	m.n_heads = m.n_kv_heads = 1;
	m.head_dim = 16 + 16 * (i % 2);
	m.kv_dtype = SKV_F16;
	m.max_tokens = 4096;
	m.device = i == 2 ? DEVICE : 0;
	memcpy(m.name, "m", 2);
	clients[i].id = clients[i].session = clients[i].n_stock = 0;
	if (skv_core_client_add(core, 1000 + i / 2, 1, "fuzz", &clients[i].id) == 0 &&
	    skv_core_session_open(core, clients[i].id, &m, "full", 1, &s) == 0) {
		clients[i].session = s.session;
		clients[i].pool = s.pool;
	}
}

static void lease(uint32_t i, struct fuzz_input *in)
{
	struct skv_wire_run runs[16];
	uint32_t n, n_pages = fuzz_u8(in);

	for (int again = 0; again < 2; again++) {
		int r = skv_core_lease_get(core, clients[i].id, clients[i].session, 0, n_pages, runs, 16, &n);

		if (r == SKV_CORE_E_WAIT && fuzz_u8(in) % 4)
			make_segments();
		for (uint32_t k = 0; r == 0 && k < n; k++)
			for (uint32_t page = 0; page < runs[k].count && clients[i].n_stock < STOCK; page++)
				clients[i].stock[clients[i].n_stock++] = runs[k].first + page;
		if (r != SKV_CORE_E_WAIT)
			return;
	}
}

/* Appends pages leased by the client to an arbitrary sequence. */
static void append(uint32_t i, struct fuzz_input *in)
{
	uint32_t seq = skv_state_find(&core->state, SKV_TABLE_SEQUENCES, a_seq(in)), pages = 1 + fuzz_u8(in) % 4, at;
	struct skv_seq_local *l;

	if (seq == SKV_NO_INDEX)
		return;
	l = &core->seqs[seq];
	at = skv_pages_of(skv_commit_len(l->mem->commit));
	if ((at + pages) * SKV_PAGE_TOKENS > l->layout.max_tokens || clients[i].n_stock < pages * l->layout.n_layers)
		return;
	for (uint32_t t = 0; t < l->layout.n_layers; t++)
		for (uint32_t k = 0; k < pages; k++) {
			skv_pte e = skv_pte_make(SKV_PTE_PRIVATE, clients[i].stock[--clients[i].n_stock]);

			MUST(pwrite(l->fd, &e, sizeof(e), (off_t)(l->layout.table + ((uint64_t)t * l->layout.max_pages + at + k) * sizeof(e))) ==
			     (ssize_t)sizeof(e));
		}
	l->mem->commit = (uint64_t)(skv_commit_epoch(l->mem->commit) + 1) << 32 | (at + pages) * SKV_PAGE_TOKENS;
}

static void work(uint32_t units)
{
	struct skv_core_done d;

	skv_core_work(core, units, &d);
}

static void sequence(uint32_t i, struct fuzz_input *in, uint8_t what)
{
	const uint32_t id = clients[i].id, session = clients[i].session;
	struct skv_core_seq_info info;

	switch (what % 5) {
	case 0: (void)skv_core_seq_new(core, id, session, a_name(in), fuzz_u8(in) * 4u, &info); break;
	case 1: (void)skv_core_seq_attach(core, id, session, a_name(in), &info); break;
	case 2: (void)skv_core_seq_fork(core, id, session, a_seq(in), a_name(in), SKV_ALL, &info); break;
	case 3: (void)skv_core_seq_detach(core, id, session, a_seq(in)); break;
	case 4: (void)skv_core_seq_drop(core, id, session, a_seq(in)); break;
	}
}

static void hear(uint32_t i)
{
	struct skv_core_segment s;

	while (skv_core_next_segment(core, clients[i].id, &s))
		if (s.gone)
			(void)skv_core_segment_ack(core, clients[i].id, s.pool, s.segment);
}

static void other(uint32_t i, struct fuzz_input *in, uint8_t what)
{
	struct skv_wire_run run = {fuzz_u8(in), 1 + fuzz_u8(in) % 8};
	uint32_t at = 0;

	switch (what % 8) {
	case 0: (void)skv_core_client_gone(core, clients[i].id, 1); break;
	case 1: (void)skv_core_lease_put(core, clients[i].id, clients[i].session, &run, 1); break;
	case 2: skv_core_measure(core, &at, 10000); break;
	case 3: (void)skv_core_age(core, run.first * 1000 + 1, 0, 5000, run.count * 10); break;
	case 4: (void)skv_core_seq_drop_name(core, 1000 + i / 2, "m", a_name(in)); break;
	case 5: (void)skv_core_client_fence(core, clients[i].id); break;
	case 7: mem_discarded(); break;
	case 6:
		if (skv_core_reconnect(core, clients[i].id) == 0)
			(void)skv_core_reconnect_done(core, clients[i].id);
		break;
	}
}

static bool is_there(uint32_t i)
{
	return skv_state_find(&core->state, SKV_TABLE_CLIENTS, clients[i].id) != SKV_NO_INDEX;
}

/* Makes up to n calls. A client with a call in progress makes no other. */
static void calls(struct fuzz_input *in, uint32_t n)
{
	while (n-- > 0 && in->left) {
		const uint8_t what = fuzz_u8(in);
		const uint32_t i = what % CLIENTS;

		if (!is_there(i))
			join(i);
		else if (what & 128)
			work(fuzz_u8(in) * 8u);
		else
			switch (what / 4 % 8) {
			case 0: lease(i, in); break;
			case 1: append(i, in); break;
			case 2: case 3: case 4: sequence(i, in, fuzz_u8(in)); skv_core_work_all(core); break;
			case 5: hear(i); break;
			case 6: other(i, in, fuzz_u8(in)); skv_core_work_all(core); break;
			case 7: skv_core_commit(core); break;
			}
	}
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Returns an offset in the header, the first rows of a table, or the undo log. */
static uint64_t somewhere(struct fuzz_input *in, const struct skv_state_header *h)
{
	const uint32_t t = fuzz_u8(in) % (SKV_TABLE_COUNT + 1u);
	uint64_t at = fuzz_u16(in);

	if (t == SKV_TABLE_COUNT)
		return at % sizeof(*h);
	if (t < SKV_TABLE_ROWS)
		at = at % 8 * h->element_bytes[t] + at / 8 % (at & 0x4000 ? h->element_bytes[t] : 64);
	return h->offset[t] + at % (h->elements[t] * h->element_bytes[t]);
}

static void damage_bytes(struct fuzz_input *in, uint8_t *state, const struct skv_state_header *h)
{
	const uint8_t how = fuzz_u8(in);
	uint64_t at = somewhere(in, h), from;
	uint32_t word;

	if (at > h->offset[SKV_TABLE_UNDO] + 65536)
		return;
	if (how % 8 == 0)
		state[at] ^= (uint8_t)(1u << fuzz_u8(in) % 8);
	at &= ~UINT64_C(3);
	memcpy(&word, state + at, sizeof(word));
	from = somewhere(in, h) & ~UINT64_C(3);
	switch (how % 8) {
	case 1: word = fuzz_u32(in); break;
	case 2: word = fuzz_u8(in); break;
	case 3: word++; break;
	case 4: word--; break;
	case 5: word = how & 64 ? UINT32_MAX : 0; break;
	case 6: memcpy(&word, state + at + 4u * (1 + how / 8 % 4), sizeof(word)); break;
	case 7: memcpy(&word, state + from, sizeof(word)); break;
	}
	if (how % 8)
		memcpy(state + at, &word, sizeof(word));
}

/* Removes, exchanges or overwrites a stored descriptor. */
static void damage_fd(struct fuzz_input *in)
{
	const size_t i = fuzz_u8(in) % n_kept, k = fuzz_u8(in) % n_kept;
	const int fd = kept[i].fd;

	switch (fuzz_u8(in) % 5) {
	case 0:
		close(fd);
		kept[i] = kept[--n_kept];
		break;
	case 1:
		kept[i].fd = kept[k].fd;
		kept[k].fd = fd;
		break;
	case 2:
		close(fd);
		kept[i].fd = skv_memfd_new("x", 4096u * (fuzz_u8(in) + 1u));
		break;
	case 3:
		close(fd);
		kept[i].fd = dup(kept[k == i ? (k + 1) % n_kept : k].fd);
		break;
	case 4: (void)!pwrite(fd, in->at, in->left < 64 ? in->left : 64, fuzz_u16(in)); break;
	}
}

/* Damages the state; returns how often. */
static uint32_t damage(struct fuzz_input *in, int state_fd)
{
	struct skv_state_header h;
	const uint32_t most = fuzz_u8(in) % 5;
	uint32_t n = most;
	void *state;

	MUST(pread(state_fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h));
	state = mmap(NULL, h.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
	MUST(state != MAP_FAILED);
	while (n-- > 0)
		if (fuzz_u8(in) % 4 || n_kept == 0)
			damage_bytes(in, state, &h);
		else
			damage_fd(in);
	munmap(state, h.total_bytes);
	return most;
}

/* ---- an input -------------------------------------------------------------------------------- */

static int resume(void)
{
	struct skv_core_found found[KEPT];
	const struct skv_core_past past = {
		.found = found, .n = n_kept, .fdstore = store, .device = on_device, .client = on_client, .lost = on_lost};
	const size_t n = n_kept;
	const char *why = NULL;
	char names[KEPT][SKV_FDSTORE_NAME];
	int r;

	for (size_t i = 0; i < n; i++) {
		memcpy(names[i], kept[i].name, sizeof(names[i]));
		found[i] = (struct skv_core_found){.name = names[i], .fd = dup(kept[i].fd)};
	}
	r = skv_core_resume(&config, &host_mem, &past, &core, &why);
	MUST(r == 0 || (r < 0 && why && *why));
	for (size_t i = 0; i < n; i++)
		skv_close_fd(found[i].fd);
	if (getenv("FUZZ_SAYS"))
		fprintf(stderr, "%d %s\n", r, r ? why : "");
	return r;
}

void fuzz_one(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	uint32_t damages;
	int state_fd, r;

	host_mem = skv_mem_host;
	host_mem.discard = discard;
	n_discards = 0;
	slow = size && data[0] & 128;
	MUST(skv_core_new(&config, &host_mem, &core) == 0);
	skv_core_set_fdstore(core, &store);
	(void)on_device(NULL, core, DEVICE);
	for (uint32_t i = 0; i < CLIENTS; i++)
		join(i);
	skv_core_commit(core);
	calls(&in, fuzz_u8(&in) % 64);
	must_balance(false);
	state_fd = dup(core->state.fd);
	core = skv_core_abandon(core);
	n_discards = 0; /* the process that ran these discards is gone, too */
	damages = damage(&in, state_fd);
	close(state_fd);
	r = resume();
	MUST(damages || r == 0);
	if (r == 0) {
		must_balance(false);
		calls(&in, 64);
		skv_core_work_all(core);
		must_balance(false);
		skv_core_drop_all(core);
		must_balance(true);
		core = skv_core_free(core);
	}
	while (n_kept)
		skv_close_fd(kept[--n_kept].fd);
	memset(clients, 0, sizeof(clients));
}
