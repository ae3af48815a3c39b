/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/parking.c - the core's part of moving sequences to files and back.
 *
 * The core decides which sequences are parked (age.c), says where their pages are and lists the pages that they name;
 * disk workers move the bytes. While a sequence is being written to a file it remains usable: a client may attach it,
 * and the file is then discarded. So parking never delays a client. A sequence is removed from memory only when it is
 * complete in a file.
 *
 * A sequence that is read from a file has neither name nor holder until all of it is in memory, so it cannot be found
 * before. If the daemon dies meanwhile, the next daemon removes the row, like that of a sequence that was being
 * dropped.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/park-queue.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/joint.h"
#include "daemon/core/operations/leases.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Limit of a list's memory, as a multiple of the memory that the sequence takes. The entries of one 4 KiB page of a
 * table lie in at most three 4 KiB pages of the list.
 */
#define LIST_PER_BYTE 4u
#define TAKE_PAGES 16384u /* number of pages taken in one call, at most; takes less than a millisecond */

void skv_core_set_parking(struct skv_core *c, bool on)
{
	c->parks = on;
}

static bool is_idle(const struct skv_seq_row *q)
{
	return q->session == SKV_NO_INDEX && q->name[0];
}

/*
 * May the sequence leave memory? Only a named sequence without a holder may leave memory. A rank's sequence may not
 * while another rank of its tensor-parallel group is held, and a sealed prefix may not while it is being forked.
 */
static bool may_leave(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return is_idle(q) && !skv_joint_held(c, seq) && !(skv_is_prefix(q) && skv_task_forks(c, seq));
}

/* Finds the row of a named sequence without a holder. */
static int find_idle(struct skv_core *c, uint32_t seq_id, uint32_t *ret_seq)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX || !is_idle(skv_seq_row(&c->state, seq)))
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the sequence is held by a client, or was dropped");
	*ret_seq = seq;
	return 0;
}

/* ---- to a file --------------------------------------------------------------------------------- */

bool skv_core_next_park(struct skv_core *c, uint32_t *ret_seq)
{
	uint32_t seq;

	while ((seq = skv_park_next(c)) != SKV_NO_INDEX) {
		const bool may = may_leave(c, seq);

		skv_park_set(c, seq, may ? SKV_PARK_STARTED : SKV_PARK_NOT);
		if (!may)
			continue;
		*ret_seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, seq);
		return true;
	}
	return false;
}

bool skv_core_has_park(const struct skv_core *c)
{
	return skv_bitset_next(&c->park_queue.ready, 0) != SKV_BITSET_NONE;
}

bool skv_core_may_park(const struct skv_core *c, uid_t uid)
{
	const uint32_t account = skv_account_find(c, uid);

	return account == SKV_NO_INDEX || skv_park_has_room(c, account);
}

bool skv_core_park_name(struct skv_core *c, uid_t uid, const char *model, const char *name, uint32_t *row,
                        uint32_t *ret_seq, uint32_t *ret_held)
{
	const uint32_t account = skv_account_find(c, uid);

	while (account != SKV_NO_INDEX && (*row = skv_names_next(c, *row, account, model, name)) != SKV_NO_INDEX) {
		/* a rank stays in memory while another is held: the last commits of all ranks are compared later */
		const bool held = !may_leave(c, *row);

		*ret_held += held;
		if (held || c->seqs[*row].parking == SKV_PARK_STARTED || c->seqs[*row].parking == SKV_PARK_READ)
			continue;
		skv_park_set(c, *row, SKV_PARK_STARTED);
		*ret_seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, *row);
		return true;
	}
	return false;
}

void skv_core_park_failed(struct skv_core *c, uint32_t seq_id, uint64_t now_ns)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq != SKV_NO_INDEX)
		skv_park_set(c, seq, SKV_PARK_FAILED);
	c->park_failed_ns = now_ns;
}

int skv_core_park_done(struct skv_core *c, const struct skv_core_listing *l)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, l->seq);
	const struct skv_seq_row *q;

	if (seq == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_BUSY, "the sequence was dropped meanwhile");
	q = skv_seq_row(&c->state, seq);
	skv_park_set(c, seq, SKV_PARK_NOT);
	if (!is_idle(q) || (skv_is_prefix(q) && skv_task_forks(c, seq)) || q->used != l->used ||
	    atomic_load(&c->seqs[seq].mem->commit) != l->commit)
		return skv_core_refuse(c, SKV_CORE_E_BUSY, "sequence '%s' was attached meanwhile", q->name);
	return skv_task_drop(c, seq, SKV_NO_INDEX, 0);
}

int skv_core_park_known(struct skv_core *c, uint32_t seq_id)
{
	uint32_t seq;
	int r = find_idle(c, seq_id, &seq);

	if (r == 0 && !may_leave(c, seq))
		r = skv_core_refuse(c, SKV_CORE_E_BUSY, "the prefix is being forked");
	return r ? r : skv_task_drop(c, seq, SKV_NO_INDEX, 0);
}

/* ---- location ---------------------------------------------------------------------------------- */

static void locate(const struct skv_core *c, uint32_t seq, struct skv_core_location *ret)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	const struct skv_pool_row *p = skv_pool_row(&c->state, q->pool);

	*ret = (struct skv_core_location){
		.uid = skv_account_row(&c->state, q->account)->uid,
		.model = &q->model,
		.name = q->name,
		.max_tokens = q->max_tokens,
		.commit = atomic_load(&c->seqs[seq].mem->commit),
		.fd = c->seqs[seq].fd,
		.pages_fd = c->pools[q->pool].fd,
		.page_bytes = p->page_bytes,
		.segment_bytes = p->segment_bytes,
		.max_pages = (uint64_t)p->high * p->pages_per_segment,
		.pages_per_segment = p->pages_per_segment,
	};
}

int skv_core_seq_location(struct skv_core *c, uint32_t seq_id, struct skv_core_location *ret)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX || skv_seq_row(&c->state, seq)->session != SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the sequence is held by a client, or was dropped");
	locate(c, seq, ret);
	return 0;
}

const struct skv_mem_handle *skv_core_seq_segment(const struct skv_core *c, uint32_t seq_id, uint32_t segment)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id), pool;

	if (seq == SKV_NO_INDEX)
		return NULL;
	pool = skv_seq_row(&c->state, seq)->pool;
	if (!c->pools[pool].handles || segment >= skv_pool_row(&c->state, pool)->high ||
	    skv_segment_row(&c->state, pool, segment)->state != SKV_SEGMENT_LIVE)
		return NULL;
	return &c->pools[pool].handles[segment];
}

int skv_core_list_begin(struct skv_core *c, uint32_t seq_id, int fd, struct skv_core_listing *ret)
{
	struct skv_walk *w;
	uint64_t n_entries = 0, most;
	uint8_t *marks;
	uint32_t seq;
	int r = find_idle(c, seq_id, &seq);

	if (r)
		return r;
	r = skv_validate_header(c, seq);
	if (r)
		return skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0 ? -ENOMEM : r;
	w = malloc(sizeof(*w));
	marks = skv_marks_new(c, skv_seq_row(&c->state, seq)->pool);
	if (!w || !marks) {
		free(w);
		skv_marks_free(marks);
		return -ENOMEM;
	}
	skv_walk_begin(c, seq, skv_owner_make(SKV_OWNER_SEQ, seq), marks, w);
	w->list = fd;
	for (uint32_t t = 0; t < c->seqs[seq].layout.n_tables; t++)
		n_entries += skv_seqmem_entries(&c->seqs[seq].layout, t, w->len);
	skv_charge_seq(c, seq);
	most = LIST_PER_BYTE * skv_seq_row(&c->state, seq)->bytes;
	*ret = (struct skv_core_listing){
		.seq = seq_id,
		.commit = atomic_load(&c->seqs[seq].mem->commit),
		.used = skv_seq_row(&c->state, seq)->used,
		.most_bytes = n_entries * sizeof(skv_pte) < most ? n_entries * sizeof(skv_pte) : most,
		.walk = w,
	};
	return 0;
}

void skv_core_list_end(struct skv_core_listing *l)
{
	if (l->walk)
		skv_marks_free(l->walk->marks);
	free(l->walk);
	l->walk = NULL;
}

int skv_core_list_some(struct skv_core *c, struct skv_core_listing *l, uint32_t *units)
{
	enum skv_progress p = SKV_DONE;
	uint32_t seq;
	int r = find_idle(c, l->seq, &seq);

	if (r == 0)
		p = skv_walk_check(c, l->walk, units);
	if (p == SKV_GOES_ON)
		return skv_core_refuse(c, SKV_CORE_E_TURNS, "it takes more than a turn");
	l->n_entries = l->walk->n_entries;
	l->n_pages = l->walk->n_pages;
	/* sets the list file's length, which is too short if the list ends with a hole that was not written */
	if (p == SKV_DONE && r == 0 && ftruncate(l->walk->list, (off_t)(l->n_entries * sizeof(skv_pte))) < 0)
		p = SKV_UNWRITTEN;
	skv_core_list_end(l);
	if (p == SKV_UNWRITTEN)
		r = skv_core_refuse(c, SKV_CORE_E_NOSPC, "there is no memory for a list of a sequence's pages");
	else if (p == SKV_FAILED)
		r = skv_core_refuse_system(c, c->failed, "memory to check a sequence with");
	else if (p == SKV_CORRUPT)
		r = skv_task_drop(c, seq, SKV_NO_INDEX, 0) < 0 ? -ENOMEM : SKV_CORE_E_CORRUPT;
	return r;
}

/* ---- from a file ------------------------------------------------------------------------------ */

int skv_core_restore_new(struct skv_core *c, uid_t uid, const struct skv_model *m, const char *name,
                         uint32_t max_tokens, uint32_t *ret_seq)
{
	uint32_t account, pool, seq;
	int r;

	if (m->device >= SKV_MEMORY_KINDS || !c->memory[m->device].mem)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "the daemon has no device %u",
		                       m->device - SKV_DEVICE_CUDA(0));
	account = skv_account_get(c, uid);
	r = skv_seq_check_name(c, account, m, name);
	if (r == 0)
		r = skv_pool_get(c, account, m->device, skv_page_bytes(m), &pool);
	if (r) {
		skv_account_put(c, account);
		return r;
	}
	r = skv_seq_make(c, pool, m, "", max_tokens, &seq);
	if (r)
		skv_pool_shrink(c, pool);
	else
		*ret_seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, seq);
	return r;
}

/* Finds the row of a sequence that is being restored. */
static int find_nameless(struct skv_core *c, uint32_t seq_id, uint32_t *ret_seq)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX || skv_seq_row(&c->state, seq)->session != SKV_NO_INDEX ||
	    skv_seq_row(&c->state, seq)->name[0])
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the memory that the sequence was read into is lost");
	*ret_seq = seq;
	return 0;
}

int skv_core_restore_take(struct skv_core *c, uint32_t seq_id, uint32_t want, struct skv_wire_run *ret_runs,
                          uint32_t max_runs, uint32_t *ret_n)
{
	uint32_t seq, n = want < TAKE_PAGES ? want : TAKE_PAGES;
	int r = find_nameless(c, seq_id, &seq);

	return r ? r
	         : skv_lease_pages(c, skv_seq_row(&c->state, seq)->pool, skv_owner_make(SKV_OWNER_SEQ, seq), n, n, true,
	                           ret_runs, max_runs, ret_n);
}

int skv_core_restore_done(struct skv_core *c, uint32_t seq_id, const char *name)
{
	struct skv_seq_row *q;
	const char *problem;
	uint32_t seq;
	int r = find_nameless(c, seq_id, &seq);

	if (r)
		return r;
	q = skv_write_seq(&c->state, seq);
	r = skv_seq_check_name(c, q->account, &q->model, name);
	problem = skv_seqmem_check(c->seqs[seq].mem, &c->seqs[seq].layout);
	if (r == 0 && problem)
		r = skv_core_refuse(c, SKV_CORE_E_CORRUPT, "the file of sequence '%s' has no valid sequence memory: %s",
		                    name, problem);
	if (r)
		return r;
	snprintf(q->name, sizeof(q->name), "%s", name);
	skv_names_add(c, seq);
	q->used = ++skv_write_header(&c->state)->uses;
	skv_idle_update(c, seq);
	skv_charge_seq(c, seq);
	return 0;
}

int skv_core_restore_drop(struct skv_core *c, uint32_t seq_id)
{
	uint32_t seq;
	int r = find_nameless(c, seq_id, &seq);

	return r ? r : skv_task_drop(c, seq, SKV_NO_INDEX, 0);
}
