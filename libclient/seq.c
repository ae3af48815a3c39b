/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/seq.c - sequences: made, taken over, forked, let go.
 *
 * A sequence's memory was written by whoever held it before: everything in it is checked once, when it
 * is mapped, against the pool as it is mapped here. From then on nobody else writes to it but the
 * daemon, and that only while it answers a fork.
 *
 * Pages of a sequence that is dropped stay on lease to this client (daemon/core/core.h says why): they
 * go into the stock, after the daemon has confirmed that the sequence is gone.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"

/* ---- the table ------------------------------------------------------------------------------- */

struct census {
	uint64_t full, shared;
};

/* A page of K and V may be a hole, but for the one that is written next. */
static bool may_be_hole(const struct skv_seq *q, uint32_t layer, uint32_t i)
{
	uint32_t extent = seq_extent(q, layer);

	return i != extent / SKV_PAGE_TOKENS || extent % SKV_PAGE_TOKENS == 0;
}

/* May kernels follow entry i of the table? A page counts into *n. Needs client->lock. */
static int look_at(struct skv_seq *q, uint32_t table, uint32_t i, struct census *n)
{
	static const char *const of[SKV_GROUPS] = {"", "bounds ", "notes ", "codes ", "references ", "kept "};
	enum skv_group group = skv_table_group(q->layout.n_layers, table);
	bool kv = group == SKV_GROUP_PAGES;
	uint32_t layer = skv_table_layer(q->layout.n_layers, table);
	skv_pte e = seq_table(q, table)[i];
	enum skv_pte_kind kind = skv_pte_kind(e);

	if (!kv && kind == SKV_PTE_NONE)
		return 0;
	if (kv && kind == SKV_PTE_HOLE && may_be_hole(q, layer, i))
		return 0;
	if (!skv_pte_resident(e))
		return fail(-EBADMSG, "damaged sequence memory: %spage %u of layer %u is of kind %u", of[group], i, layer,
		            kind);
	if (!pool_has(q->session->pool, skv_pte_id(e)))
		return fail(-EBADMSG,
		            "damaged sequence memory: %spage %u of layer %u is page %u, which the pool has not",
		            of[group], i, layer, skv_pte_id(e));
	n->full += kind == SKV_PTE_PRIVATE;
	n->shared += kind == SKV_PTE_SHARED;
	return 0;
}

/* All committed entries. */
static int look(struct skv_seq *q, struct census *ret)
{
	int e = 0;

	*ret = (struct census){0};
	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		for (uint32_t i = 0; i < seq_entries(q, table) && e == 0; i++)
			e = look_at(q, table, i, ret);
	return e;
}

/* Hold every page of the table, which look() passed. Needs client->lock. */
static void hold_all(struct skv_seq *q)
{
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_resident(t[i]))
				pool_hold(q->session->pool, skv_pte_id(t[i]));
	}
}

/* Room to note down every shared page that the sequence may give up. */
static int grow_release(struct skv_seq *q, uint64_t shared)
{
	uint64_t cap = q->n_release + shared;
	uint32_t *ids;

	if (cap <= q->cap_release)
		return 0;
	ids = realloc(q->release, cap * sizeof(*ids));
	if (!ids)
		return fail(-ENOMEM, "out of memory");
	q->release = ids;
	q->cap_release = (uint32_t)cap;
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void seq_free(struct skv_seq *q)
{
	struct skv_session *s = q->session;

	if (q->prev) {
		*q->prev = q->next;
		if (q->next)
			q->next->prev = q->prev;
		s->n_seqs--;
	}
	conn_orphan(s->client, q->fork);
	device_seq_close(q);
	policy_put(s->client, q->own);
	if (q->mem)
		munmap(q->mem, q->layout.total);
	free(q->slots);
	free(q->next_slots);
	free(q->gone);
	free(q->release);
	free(q);
}

/* Map and check the memory in a reply; its pages are counted as ours. */
static int adopt_memory(struct skv_seq *q, struct request *r)
{
	const struct skv_msg_seq_ok *ok = r->body;
	struct skv_session *s = q->session;
	struct census n;
	const char *wrong;
	uint64_t commit;
	void *mem;
	int e;

	if (ok->max_tokens == 0 || ok->max_tokens > SKV_MAX_TOKENS)
		return fail(-EPROTO, "the daemon made a sequence of %u tokens", ok->max_tokens);
	skv_seqmem_layout(&s->model, ok->max_tokens, &q->layout);
	if (ok->bytes != q->layout.total)
		return fail(-EPROTO, "the daemon's sequence memory has %llu bytes, expected %zu",
		            (unsigned long long)ok->bytes, q->layout.total);
	e = skv_map_fd(r->fds[0], q->layout.total, PROT_READ | PROT_WRITE, true, &mem);
	if (e < 0)
		return fail(e == -EBADMSG ? -EPROTO : e, "cannot map the sequence's memory: %s",
		            strerror(-e));
	q->mem = mem;
	madvise(mem, q->layout.total, MADV_DONTFORK);
	wrong = skv_seqmem_check(q->mem, &q->layout);
	if (wrong)
		return fail(-EBADMSG, "%s", wrong);
	if (atomic_load(&q->mem->journal_n) > 0)
		skv_seqmem_recover(q->mem, &q->layout);
	commit = atomic_load_explicit(&q->mem->commit, memory_order_acquire);
	q->len = skv_commit_len(commit);
	q->epoch = skv_commit_epoch(commit);
	q->about = q->mem->about[q->epoch & 1];
	q->slots = calloc(q->layout.n_layers, sizeof(*q->slots));
	q->next_slots = calloc(q->layout.n_layers, sizeof(*q->next_slots));
	q->gone = calloc(q->layout.n_layers, sizeof(*q->gone));
	if (!q->slots || !q->next_slots || !q->gone)
		return fail(-ENOMEM, "out of memory");
	memcpy(q->slots, q->mem->lay[q->epoch & 1].slots, q->layout.n_layers * sizeof(*q->slots));
	q->prompt = q->mem->lay[q->epoch & 1].prompt;
	wrong = skv_layer_slots_check(q->slots, q->about, q->len, q->layout.n_layers);
	if (!wrong && q->about & SKV_ABOUT_READING && q->prompt.begin > q->len)
		wrong = "a prompt begins where the sequence has no token";
	if (wrong)
		return fail(-EBADMSG, "damaged sequence memory: %s", wrong);
	if (q->about & SKV_ABOUT_SLOTS)
		pages_unpark(q);

	pthread_mutex_lock(&s->client->lock);
	e = look(q, &n);
	if (e == 0)
		e = grow_release(q, n.shared);
	if (e == 0)
		e = stock_grow(s, n.full);
	if (e == 0) {
		q->n_shared = n.shared;
		hold_all(q);
	}
	pthread_mutex_unlock(&s->client->lock);
	return e;
}

/*
 * A sequence from the reply to NEW, ATTACH or FORK; consumes the reply, undoes it on failure. `own`: the policy that it
 * is to run, if it is not the session's.
 */
static int seq_make(struct skv_session *s, struct request *r, bool named, struct policy *own, struct skv_seq **ret)
{
	const struct skv_msg_seq_ok *ok = r->body;
	struct skv_seq *q = calloc(1, sizeof(*q));
	int e;

	if (!q) {
		conn_orphan(s->client, r);
		return fail(-ENOMEM, "out of memory");
	}
	*q = (struct skv_seq){.session = s, .id = ok->seq, .named = named, .own = own};
	if (own)
		own->users++;
	e = adopt_memory(q, r);
	if (e < 0) {
		seq_free(q);
		conn_orphan(s->client, r);
		return e;
	}
	if (r->type == SKV_MSG_SEQ_NEW)
		policy_start(q);
	else
		e = policy_take_over(q);
	if (e == 0)
		e = device_seq_open(q); /* the tables are what they will be */
	if (e < 0) {
		seq_unhold(q, SKV_PTE_SHARED);
		seq_unhold(q, SKV_PTE_PRIVATE);
		seq_free(q);
		conn_orphan(s->client, r);
		return e;
	}
	request_free(r);
	q->next = s->seqs;
	q->prev = &s->seqs;
	if (q->next)
		q->next->prev = &q->next;
	s->seqs = q;
	s->n_seqs++;
	*ret = q;
	return 0;
}

/* ---- made, taken over ------------------------------------------------------------------------ */

static int fill_name(struct skv_msg_seq_name *m, const char *name)
{
	if (!name)
		return 0;
	if (!skv_name_valid(name))
		return fail(
			-EINVAL,
			"sequence name '%.70s': expected 1 to %u of printable ASCII, no space, no '/'",
			name, SKV_NAME_MAX - 1);
	skv_wire_string(m->name, sizeof(m->name), name);
	return 0;
}

int skv_seq_new(struct skv_session *s, const char *name, uint32_t max_tokens, struct skv_seq **ret_seq)
{
	struct skv_msg_seq_name m = {.session = s->id, .max_tokens = max_tokens};
	struct request *r;
	int e = fill_name(&m, name);

	if (e < 0)
		return e;
	if (max_tokens > s->model.max_tokens)
		return fail(-EINVAL, "max_tokens is %u, expected at most the model's %u", max_tokens,
		            s->model.max_tokens);
	pthread_mutex_lock(&s->lock);
	e = conn_call(s->client, SKV_MSG_SEQ_NEW, &m, sizeof(m), &r);
	if (e == 0)
		e = seq_make(s, r, name != NULL, NULL, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

int skv_seq_attach(struct skv_session *s, const char *name, struct skv_seq **ret_seq)
{
	struct skv_msg_seq_name m = {.session = s->id};
	struct request *r;
	int e = name ? fill_name(&m, name) : fail(-EINVAL, "skv_seq_attach: name is NULL");

	if (e < 0)
		return e;
	pthread_mutex_lock(&s->lock);
	e = conn_call(s->client, SKV_MSG_SEQ_ATTACH, &m, sizeof(m), &r);
	if (e == 0)
		e = seq_make(s, r, true, NULL, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- forked ---------------------------------------------------------------------------------- */

/*
 * The daemon made the parent's pages shared: they are copied before they are written, and never come
 * back to the stock.
 */
static int recount(struct skv_seq *q)
{
	struct census n;
	int e;

	pthread_mutex_lock(&q->session->client->lock);
	e = look(q, &n);
	pthread_mutex_unlock(&q->session->client->lock);
	if (e == 0)
		e = grow_release(q, n.shared);
	if (e == 0)
		e = device_seq_refresh(q);
	if (e == 0) {
		q->session->stock.leased -= n.shared - q->n_shared;
		q->n_shared = n.shared;
	}
	return e;
}

int seq_settle_fork(struct skv_seq *q)
{
	struct request *r = q->fork;
	int e;

	if (!r)
		return 0;
	if (!request_done(q->session->client, r))
		return fail(-ETIMEDOUT, "a fork of the sequence still waits for the daemon's answer");
	e = r->error ? 0 : recount(q);
	if (e < 0)
		return e;
	q->fork = NULL;
	conn_orphan(q->session->client, r);
	return 0;
}

static int fork_locked(struct skv_seq *q, const struct skv_msg_seq_name *m, struct skv_seq **ret)
{
	struct skv_session *s = q->session;
	struct request *r;
	int e;

	if (q->in_step)
		return fail(-EBUSY, "the sequence is in an open step");
	e = device_settle(s); /* the daemon shares what is committed */
	if (e == 0)
		e = seq_settle_fork(q);
	if (e < 0)
		return e;
	stock_release(q, true); /* the daemon must not count what is about to be given up */
	e = conn_post(s->client, SKV_MSG_SEQ_FORK, m, sizeof(*m), &r);
	if (e < 0)
		return e;
	q->fork = r;
	if (conn_wait(s->client, r, conn_deadline(s->client)) < 0)
		return fail(-ETIMEDOUT, "the daemon did not answer SEQ_FORK within %u ms",
		            atomic_load(&s->client->timeout_ms));
	if (r->error) {
		e = fail(r->error, "%s", r->text);
		q->fork = request_free(r);
		return e;
	}
	e = recount(q);
	if (e < 0)
		return e; /* stays in q->fork: the next step tries again */
	q->fork = NULL;
	return seq_make(s, r, m->name[0], q->own, ret);
}

int skv_seq_fork(struct skv_seq *q, const char *name, struct skv_seq **ret_seq)
{
	struct skv_session *s = q->session;
	struct skv_msg_seq_name m = {.session = s->id, .seq = q->id};
	int e = fill_name(&m, name);

	if (e < 0)
		return e;
	pthread_mutex_lock(&s->lock);
	e = fork_locked(q, &m, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- let go ---------------------------------------------------------------------------------- */

uint64_t seq_resident(const struct skv_seq *q)
{
	uint64_t n = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		if (!skv_group_holds_tokens(skv_table_group(q->layout.n_layers, table)))
			continue;
		for (uint32_t i = 0; i < skv_pages_of(q->len); i++)
			n += skv_pte_resident(seq_table(q, table)[i]);
	}
	return n;
}

int seq_check_pages(struct skv_seq *q)
{
	const char *wrong = pages_check(q);

	return wrong ? fail(-EBADMSG, "damaged sequence memory: %s", wrong) : 0;
}

void seq_unhold(struct skv_seq *q, enum skv_pte_kind kind)
{
	struct skv_session *s = q->session;

	pthread_mutex_lock(&s->client->lock);
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++) {
			if (skv_pte_kind(t[i]) != kind)
				continue;
			pool_unhold(s->pool, skv_pte_id(t[i]));
			s->stock.leased -= kind == SKV_PTE_PRIVATE;
		}
	}
	while (kind == SKV_PTE_SHARED && q->n_release > 0) {
		pool_unhold(s->pool, q->release[--q->n_release]);
		s->stock.n_release--;
	}
	pthread_mutex_unlock(&s->client->lock);
}

void seq_take_own(struct skv_seq *q)
{
	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		const skv_pte *t = seq_table(q, table);

		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_kind(t[i]) == SKV_PTE_PRIVATE)
				stock_push(&q->session->stock, skv_pte_id(t[i]));
	}
}

/* Give the sequence's own pages back behind a DROP that was not answered so far. */
static void put_own(struct skv_seq *q)
{
	size_t most = 1;
	uint32_t *ids, n = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++)
		most += seq_entries(q, table);
	ids = malloc(most * sizeof(*ids));
	for (uint32_t table = 0; table < q->layout.n_tables && ids; table++)
		for (uint32_t i = 0; i < seq_entries(q, table); i++)
			if (skv_pte_kind(seq_table(q, table)[i]) == SKV_PTE_PRIVATE)
				ids[n++] = skv_pte_id(seq_table(q, table)[i]);
	if (ids)
		stock_post(q->session, SKV_MSG_LEASE_PUT, 0, ids, n);
	free(ids);
}

/* The own pages of a sequence that was dropped: the stock's, or the daemon's if it did not answer. */
static void keep_own(struct skv_seq *q, int error)
{
	if (error == 0) {
		seq_take_own(q);
		return;
	}
	seq_unhold(q, SKV_PTE_PRIVATE);
	/* an unanswered fork may have made them shared: then they go with the last reference */
	if (!q->fork)
		put_own(q);
}

static int seq_end(struct skv_seq *q, uint16_t type)
{
	struct skv_session *s = q->session;
	struct skv_msg_seq m = {.session = s->id, .seq = q->id};
	bool drop = type == SKV_MSG_SEQ_DROP || !q->named;
	struct request *r = NULL;
	int e;

	pthread_mutex_lock(&s->lock);
	if (q->in_step) {
		e = fail(-EBUSY, "the sequence is in an open step");
	} else {
		device_settle(s); /* should it fail, nothing runs any more either */
		stock_release(q, true);
		seq_unhold(q, SKV_PTE_SHARED);
		if (!drop)
			seq_unhold(q, SKV_PTE_PRIVATE);
		e = conn_call(s->client, type, &m, sizeof(m), &r);
		request_free(r);
		if (drop)
			keep_own(q, e);
		seq_free(q);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}

int skv_seq_detach(struct skv_seq *q)
{
	return q ? seq_end(q, SKV_MSG_SEQ_DETACH) : 0;
}

int skv_seq_drop(struct skv_seq *q)
{
	return q ? seq_end(q, SKV_MSG_SEQ_DROP) : 0;
}

/* ---- looked at ------------------------------------------------------------------------------- */

uint32_t skv_seq_len(const struct skv_seq *q)
{
	uint32_t len;

	pthread_mutex_lock(&q->session->lock);
	len = q->len;
	pthread_mutex_unlock(&q->session->lock);
	return len;
}

const int32_t *skv_seq_tokens(const struct skv_seq *q, uint32_t *ret_len)
{
	pthread_mutex_lock(&q->session->lock);
	device_settle(q->session);
	if (ret_len)
		*ret_len = q->len;
	pthread_mutex_unlock(&q->session->lock);
	return skv_seqmem_tokens(q->mem, &q->layout);
}

void skv_seq_pages(const struct skv_seq *q, uint64_t *ret_resident, uint64_t *ret_total)
{
	pthread_mutex_lock(&q->session->lock);
	device_settle(q->session);
	*ret_resident = seq_resident(q);
	*ret_total = (uint64_t)skv_pages_of(q->len) * q->layout.n_layers;
	pthread_mutex_unlock(&q->session->lock);
}

void skv_seq_attended(const struct skv_seq *q, uint64_t *ret_attended, uint64_t *ret_causal)
{
	pthread_mutex_lock(&q->session->lock);
	device_settle(q->session);
	*ret_attended = q->attended;
	*ret_causal = q->causal;
	pthread_mutex_unlock(&q->session->lock);
}
