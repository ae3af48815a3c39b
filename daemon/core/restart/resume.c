/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/restart/resume.c - makes a core from the state of a process that has died.
 *
 * Uncommitted changes are undone. All rows are verified and all counts recounted before a row is used (verify.h,
 * balance.h). After that each row gets its companion (fds, mappings) from the stored descriptors. Where a descriptor is
 * missing or wrong, an empty memfd takes its place. When all rows have companions, objects whose memory was lost are
 * dropped: a sequence, or everything in a pool. Work that was in progress is repeated or taken back:
 *
 *   attach, detach   the pages of a held sequence go back on lease to its holder, also those that are SEQ
 *   drop             a sequence that has neither holder nor name was being dropped, and is dropped
 *   fork             the client holds the child, and does not name it on reconnect if it never learned of it
 *   segments         pending segments are cancelled; memory that was being freed is freed again
 *
 * Finally everything is recounted. A state that does not balance is rejected.
 */
#include "daemon/core/restart/resume.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/fd.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/segment-sets.h"
#include "daemon/core/memory/segments.h"
#include "daemon/core/restart/balance.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/restart/verify.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/operations/sessions.h"

struct resume {
	struct skv_core *core;
	const struct skv_core_past *past;
	bool *seq_lost, *pool_lost;
};

/* ---- stored descriptors ------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct skv_core_found *)a)->name, ((const struct skv_core_found *)b)->name);
}

static struct skv_core_found *first_of(const struct skv_core_past *past, const char *name)
{
	const struct skv_core_found key = {.name = name};
	struct skv_core_found *f = bsearch(&key, past->found, past->n, sizeof(*f), by_name);

	while (f && f > past->found && strcmp(f[-1].name, name) == 0)
		f--;
	return f;
}

static bool is_of(const struct skv_core_past *past, const struct skv_core_found *f, const char *name)
{
	return f && f < past->found + past->n && strcmp(f->name, name) == 0;
}

/* Is `fd` the file with this identity? `file` NULL: any file matches. */
static bool is_file(int fd, void *file)
{
	return !file || skv_fdstore_is_file(fd, file);
}

static bool is_state(int fd, void *ret_why)
{
	const int e = skv_state_check(fd, ret_why);

	return e == 0 || skv_is_shortage(e);
}

/*
 * Takes the stored descriptor that has this name and that `fits`; the caller owns it now. -1: there is none. If there
 * are other files of this name, the store is told to remove the name and gets the file that fits again: it can only
 * remove all files of a name.
 */
static int claim_what(const struct skv_core_past *past, const char *name, bool (*fits)(int fd, void *ctx), void *ctx)
{
	bool others = false;
	int fd = -1;

	for (struct skv_core_found *f = first_of(past, name); is_of(past, f, name); f++) {
		f->claimed = true;
		if (fd < 0 && fits(f->fd, ctx)) {
			fd = f->fd;
			f->fd = -1;
		} else {
			others = true;
		}
	}
	if (others && past->fdstore.add) {
		(void)past->fdstore.remove(past->fdstore.ctx, name);
		if (fd >= 0)
			(void)past->fdstore.add(past->fdstore.ctx, name, fd);
	}
	return fd;
}

static int claim(const struct skv_core_past *past, const char *name, const struct skv_file_id *file)
{
	return claim_what(past, name, is_file, (void *)(uintptr_t)file);
}

static void say_lost(const struct resume *r, const char *name, const char *why)
{
	r->past->lost(r->past->ctx, name, why);
}

/* ---- companions ------------------------------------------------------------------------------ */

/* The memory of a device that no longer exists: all it can do is to close handles. */
static void forget_handle(const struct skv_mem_ops *mem, struct skv_mem_handle *handle, size_t bytes)
{
	(void)mem, (void)bytes;
	handle->fd = skv_close_fd(handle->fd);
}
static const struct skv_mem_ops no_device = {.granularity = 1,
                                             .handle_kind = SKV_HANDLE_CUDA_FD,
                                             .destroy = forget_handle};

static void adopt_segments(struct resume *r, uint32_t pool)
{
	struct skv_core *c = r->core;
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	char name[SKV_FDSTORE_NAME];

	for (uint32_t s = 0; s < p->high; s++) {
		struct skv_mem_handle *h = &c->pools[pool].handles[s];

		if (skv_segment_row(&c->state, pool, s)->state != SKV_SEGMENT_LIVE)
			continue;
		skv_fdstore_segment_name(&c->state, pool, s, name);
		h->fd = claim(r->past, name, NULL);
		if (h->fd >= 0 || r->pool_lost[pool])
			continue;
		say_lost(r, name, "a segment of a pool was not kept, so all sequences in the pool are lost");
		r->pool_lost[pool] = true;
	}
}

static int adopt_pool(struct resume *r, uint32_t pool)
{
	struct skv_core *c = r->core;
	const struct skv_pool_row *p = skv_pool_row(&c->state, pool);
	char name[SKV_FDSTORE_NAME];
	int e;

	e = c->memory[p->device].mem ? 0 : r->past->device(r->past->ctx, c, p->device);
	if (e < 0)
		return e;
	if (e > 0) {
		r->pool_lost[pool] = true;
		c->memory[p->device].mem = &no_device;
	}
	skv_fdstore_name(&c->state, SKV_TABLE_POOLS, pool, name);
	e = skv_pool_adopt(c, pool, claim(r->past, name, &p->file), &r->pool_lost[pool]);
	if (e < 0)
		return e;
	if (r->pool_lost[pool])
		say_lost(r, name, "the memory of a pool was not kept, so all sequences in the pool are lost");
	if (!skv_pool_is_whole(c, pool))
		adopt_segments(r, pool);
	for (uint32_t s = 0; s < p->high; s++)
		skv_segment_file(c, pool, s);
	return 0;
}

/*
 * Makes the invalid row of a sequence valid, so that the sequence can be dropped with its pages and references, which
 * are right: gives it the model and length of the smallest possible sequence, and no name.
 */
static void make_small(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);

	q->model = (struct skv_model)SKV_MODEL_INIT;
	q->model.n_layers = q->model.n_heads = q->model.n_kv_heads = 1;
	q->model.head_dim = 16;
	q->max_tokens = q->model.max_tokens = SKV_PAGE_TOKENS;
	memset(q->name, 0, sizeof(q->name));
}

/*
 * Opens a sequence's memory. *ret_why: NULL, or why the sequence is lost. Negative errno: the system lacks something.
 */
static int open_seq(struct resume *r, uint32_t seq, int fd, const char **ret_why)
{
	struct skv_core *c = r->core;
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	int e;

	*ret_why = skv_verify_seq(&c->state, seq);
	if (!*ret_why && fd < 0)
		*ret_why = "the memory of the sequence was not kept";
	if (*ret_why) {
		skv_close_fd(fd);
		return 0;
	}
	e = skv_seqfile_open(&c->seqs[seq], fd, &q->model, q->max_tokens);
	if (e < 0) {
		*ret_why = "the memory of the sequence does not fit its model and length";
		return skv_is_shortage(e) ? e : 0;
	}
	*ret_why = skv_seqmem_check(c->seqs[seq].mem, &c->seqs[seq].layout);
	if (*ret_why)
		skv_seqfile_close(&c->seqs[seq]);
	return 0;
}

static int adopt_seq(struct resume *r, uint32_t seq)
{
	struct skv_core *c = r->core;
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	char name[SKV_FDSTORE_NAME];
	const char *why;
	int e;

	skv_fdstore_name(&c->state, SKV_TABLE_SEQUENCES, seq, name);
	e = open_seq(r, seq, claim(r->past, name, &q->file), &why);
	if (e < 0 || !why)
		return e;
	say_lost(r, name, why);
	r->seq_lost[seq] = true; /* drop_lost() drops the sequence; then the store removes the files of this name */
	if (skv_verify_seq(&c->state, seq))
		make_small(c, seq);
	return skv_seqfile_new(&c->seqs[seq], seq, &q->model, q->max_tokens);
}

static int tell_client(const struct resume *r, uint32_t client)
{
	const struct skv_core *c = r->core;
	const struct skv_client_row *row = skv_client_row(&c->state, client);
	struct skv_core_past_client past = {
		.client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, client),
		.uid = skv_account_row(&c->state, row->account)->uid,
		.pid = row->pid,
	};
	char name[SKV_FDSTORE_NAME];

	skv_fdstore_name(&c->state, SKV_TABLE_CLIENTS, client, name);
	past.pidfd = claim(r->past, name, row->kept ? &row->file : NULL);
	return r->past->client(r->past->ctx, &past);
}

static int adopt_all(struct resume *r)
{
	struct skv_core *c = r->core;
	char name[SKV_FDSTORE_NAME];
	int e = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_POOLS)
		if (e == 0)
			e = adopt_pool(r, i);
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		if (e == 0)
			e = adopt_seq(r, i);
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		skv_fdstore_name(&c->state, SKV_TABLE_SESSIONS, i, name);
		if (e == 0)
			e = skv_session_adopt(c, i, claim(r->past, name, &skv_session_row(&c->state, i)->file));
	}
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS)
		if (e == 0)
			e = tell_client(r, i);
	return e;
}

/* ---- work in progress -------------------------------------------------------------------------- */

/* Writes to memory that clients read: the holder into each sequence's memory, the fences into the control page. */
static void show_holders(struct skv_core *c)
{
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS)
		if (!skv_client_row(&c->state, i)->fenced)
			atomic_store(&c->control->fence[i], skv_state_id(&c->state, SKV_TABLE_CLIENTS, i));
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		uint32_t session = skv_seq_row(&c->state, i)->session;
		uint32_t client = session == SKV_NO_INDEX ? SKV_NO_INDEX : skv_session_row(&c->state, session)->client;

		atomic_store(&c->seqs[i].mem->holder,
		             client == SKV_NO_INDEX ? 0 : skv_state_id(&c->state, SKV_TABLE_CLIENTS, client));
	}
}

static void take_back_turns(struct skv_core *c)
{
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (q->session != SKV_NO_INDEX)
			skv_pages_hand_over(c, q->pool, skv_owner_make(SKV_OWNER_SEQ, i),
			                    skv_owner_make(SKV_OWNER_LEASE,
			                                   skv_session_row(&c->state, q->session)->client),
			                    q->pages);
		else if (!q->name[0])
			skv_seq_remove(c, i);
		skv_core_commit(c); /* a commit for each sequence, since the undo log of all of them would be large */
	}
	SKV_EACH(i, &c->state, SKV_TABLE_POOLS)
		skv_segments_resume(c, i);
}

static void drop_lost(struct resume *r)
{
	struct skv_core *c = r->core;

	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		if (r->seq_lost[i] || r->pool_lost[skv_seq_row(&c->state, i)->pool]) {
			skv_seq_remove(c, i);
			skv_core_commit(c);
		}
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS)
		if (r->pool_lost[skv_session_row(&c->state, i)->pool])
			skv_session_end(c, i);
	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (c->memory[i].mem == &no_device)
			c->memory[i].mem = NULL;
}

/* ---- resuming ---------------------------------------------------------------------------------- */

struct putting {
	const struct skv_core_past *past;
	const struct skv_state *state;
};

/* Writes old bytes to a sequence's memory, found among the stored descriptors, which are claimed only later. */
static int put_back(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
{
	const struct putting *p = ctx;
	const struct skv_seq_row *q = skv_seq_row(p->state, seq);
	char name[SKV_FDSTORE_NAME];

	skv_fdstore_name(p->state, SKV_TABLE_SEQUENCES, seq, name);
	for (struct skv_core_found *f = first_of(p->past, name); is_of(p->past, f, name); f++)
		if (skv_fdstore_is_file(f->fd, &q->file))
			return skv_seqfile_put_back(f->fd, offset, was, bytes);
	return 0;
}

/* Converts the text of a failed check of the state to an errno; NULL: 0. */
static int error_of(const char *problem)
{
	return !problem ? 0 : problem == skv_no_memory ? -ENOMEM : -EUCLEAN;
}

static int open_state(const struct skv_core_past *past, struct skv_state *ret, const char **ret_why)
{
	struct putting p = {.past = past, .state = ret};
	static const char none[] = "no state was kept";
	int fd, e;

	*ret_why = none; /* is_state() replaces this text if a stored file is not a state */
	fd = claim_what(past, SKV_FDSTORE_STATE, is_state, ret_why);
	if (fd < 0)
		return *ret_why == none ? -ENOENT : -EBADMSG;
	e = skv_state_map(ret, fd, ret_why);
	if (e < 0)
		return e;
	e = skv_undo(ret, put_back, &p, ret_why);
	if (e == 0) {
		*ret_why = skv_verify(ret);
		e = error_of(*ret_why);
	}
	if (e < 0)
		skv_state_deinit(ret);
	return e;
}

static int resume(struct resume *r, const char **ret_why)
{
	struct skv_core *c = r->core;
	const struct skv_geometry *g = &c->state.header->geometry;
	int e;

	*ret_why = skv_balance_rows(c);
	if (*ret_why)
		return error_of(*ret_why);
	r->seq_lost = calloc(g->max_sequences, sizeof(*r->seq_lost));
	r->pool_lost = calloc(g->max_pools, sizeof(*r->pool_lost));
	*ret_why = "out of memory";
	e = r->seq_lost && r->pool_lost ? adopt_all(r) : -ENOMEM;
	if (e < 0)
		return e;
	show_holders(c);
	take_back_turns(c);
	drop_lost(r);
	*ret_why = skv_core_balance(c, false);
	return error_of(*ret_why);
}

int skv_core_resume(const struct skv_core_config *config, const struct skv_mem_ops *mem,
                    const struct skv_core_past *past, struct skv_core **ret, const char **ret_why)
{
	struct skv_state state = SKV_STATE_NULL;
	struct resume r = {.past = past};
	int e;

	qsort(past->found, past->n, sizeof(*past->found), by_name);
	e = open_state(past, &state, ret_why);
	if (e < 0)
		return e;
	*ret_why = "out of memory";
	e = skv_core_make(config, mem, &state, &r.core);
	if (e < 0)
		return e;
	r.core->fdstore = past->fdstore; /* not skv_core_set_fdstore(): the store has the state's descriptor already */
	(void)skv_core_reconfigure(r.core, config);
	e = resume(&r, ret_why);
	free(r.seq_lost);
	free(r.pool_lost);
	if (e < 0) {
		skv_core_abandon(r.core);
		return e;
	}
	*ret = r.core;
	return 0;
}
