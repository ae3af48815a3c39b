/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/session/seq-lifecycle.c - creates, attaches, forks, seals, truncates, detaches and drops sequences.
 *
 * A sequence's previous holder wrote the sequence's memory. When the memory is mapped, everything in it is checked
 * once, against the pool as this process has mapped it. From then on only the daemon also writes to it, while it
 * answers a fork.
 *
 * Pages of a dropped sequence stay on lease to this client (daemon/core/core.h says why). The pages go into the stock
 * after the daemon has confirmed that the sequence is gone.
 */
#include "libclient/session/seq-lifecycle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"
#include "libclient/compress/compressor.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/fence.h"
#include "libclient/conn/reconnect.h"
#include "libclient/device/steps.h"
#include "libclient/device/tables.h"
#include "libclient/error.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/seq-table.h"
#include "libclient/pages/stock.h"
#include "libclient/ranks/joint.h"
#include "libclient/seq.h"
#include "libclient/session/adopt.h"
#include "libclient/session/policy-config.h"
#include "libclient/session/seal.h"
#include "libclient/session/truncate.h"

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
	stock_put_aside(q, 0);
	conn_orphan(s->client, q->fork);
	device_seq_close(q);
	policy_leave(s, q->own);
	if (q->mem)
		munmap(q->mem, q->layout.total);
	free(q->slots);
	free(q->next_slots);
	free(q->evicted);
	free(q->release.pages);
	free(q);
}

/* Map and check the sequence memory in a reply, and count its pages as held by this client. */
static int adopt_memory(struct skv_seq *q, struct request *r)
{
	const struct skv_msg_seq_ok *ok = r->body;
	struct skv_session *s = q->session;
	const char *wrong;
	uint64_t commit;
	void *mem;
	int e;

	if (ok->max_tokens == 0 || ok->max_tokens > SKV_MAX_TOKENS)
		return error_set(-EPROTO, "the daemon made a sequence of %u tokens", ok->max_tokens);
	skv_seqmem_layout(&s->model, ok->max_tokens, &q->layout);
	if (ok->bytes != q->layout.total)
		return error_set(-EPROTO, "the daemon's sequence memory has %llu bytes, expected %zu",
		            (unsigned long long)ok->bytes, q->layout.total);
	e = skv_map_fd(r->fds[0], q->layout.total, PROT_READ | PROT_WRITE, true, &mem);
	if (e < 0)
		return error_set(e == -EBADMSG ? -EPROTO : e, "cannot map the sequence's memory: %s",
		            strerror(-e));
	q->mem = mem;
	madvise(mem, q->layout.total, MADV_DONTFORK);
	wrong = skv_seqmem_check(q->mem, &q->layout);
	if (wrong)
		return error_set(-EBADMSG, "%s", wrong);
	if (atomic_load(&q->mem->journal_n) > 0)
		skv_seqmem_recover(q->mem, &q->layout);
	commit = atomic_load_explicit(&q->mem->commit, memory_order_acquire);
	q->len = skv_commit_len(commit);
	q->epoch = skv_commit_epoch(commit);
	q->about = q->mem->about[q->epoch & 1];
	q->slots = calloc(q->layout.n_layers, sizeof(*q->slots));
	q->next_slots = calloc(q->layout.n_layers, sizeof(*q->next_slots));
	q->evicted = calloc(q->layout.n_layers, sizeof(*q->evicted));
	if (!q->slots || !q->next_slots || !q->evicted)
		return error_set(-ENOMEM, "out of memory");
	memcpy(q->slots, q->mem->lay[q->epoch & 1].slots, q->layout.n_layers * sizeof(*q->slots));
	q->prompt.now = q->mem->lay[q->epoch & 1].prompt;
	wrong = skv_layer_slots_check(q->slots, q->about, q->len, q->layout.n_layers);
	if (!wrong && q->about & SKV_ABOUT_PREFILL && q->prompt.now.begin > q->len)
		wrong = "a prompt begins where the sequence has no token";
	if (wrong)
		return error_set(-EBADMSG, "damaged sequence memory: %s", wrong);
	if (q->about & SKV_ABOUT_SLOTS)
		pages_unpark(q);
	return seq_claim_pages(q);
}

/*
 * Make a sequence from the reply to NEW, PREFIX_NEW, ATTACH or FORK. The reply is consumed, and undone on failure.
 * `own`: the policy of the sequence; NULL: the session's policy.
 */
static int seq_make(struct skv_session *s, struct request *r, bool named, struct policy *own, struct skv_seq **ret)
{
	const struct skv_msg_seq_ok *ok = r->body;
	struct skv_seq *q = aligned_alloc(_Alignof(struct skv_seq), sizeof(*q));
	int e;

	if (!q) {
		conn_orphan(s->client, r);
		return error_set(-ENOMEM, "out of memory");
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
	conn_acted(s->client, r);
	if (r->type == SKV_MSG_SEQ_NEW || q->len == 0)
		policy_start(q);
	else
		e = policy_take_over(q);
	if (e == 0)
		e = device_seq_open(q); /* last, because after this the tables do not change any more */
	if (e < 0) {
		reconnect_pin(s->client);
		seq_unhold(q, SKV_PTE_SHARED);
		seq_unhold(q, SKV_PTE_PRIVATE);
		seq_free(q);
		conn_orphan(s->client, r);
		reconnect_unpin(s->client);
		return e;
	}
	request_free(r);
	joint_know(q, q->epoch);
	q->next = s->seqs;
	q->prev = &s->seqs;
	if (q->next)
		q->next->prev = &q->next;
	s->seqs = q;
	s->n_seqs++;
	*ret = q;
	return 0;
}

/* ---- made, attached -------------------------------------------------------------------------- */

static int fill_name(struct skv_msg_seq_name *m, const char *name)
{
	if (!name)
		return 0;
	if (!skv_name_valid(name))
		return error_set(
			-EINVAL,
			"sequence name '%.70s': expected 1 to %u of printable ASCII, no space, no '/'",
			name, SKV_NAME_MAX - 1);
	skv_wire_string(m->name, sizeof(m->name), name);
	return 0;
}

static int new_locked(struct skv_session *s, const struct skv_msg_seq_name *m, uint16_t type, struct skv_seq **ret)
{
	struct request *r;
	int e = conn_call(s->client, type, m, sizeof(*m), &r);

	return e < 0 ? e : seq_make(s, r, m->name[0], NULL, ret);
}

int skv_seq_new(struct skv_session *s, const char *name, uint32_t max_tokens, struct skv_seq **ret_seq)
{
	struct skv_msg_seq_name m = {.session = s->id, .max_tokens = max_tokens};
	int e = fill_name(&m, name);

	if (e < 0)
		return e;
	if (max_tokens > s->model.max_tokens)
		return error_set(-EINVAL, "max_tokens is %u, expected at most the model's %u", max_tokens,
		            s->model.max_tokens);
	e = fence_enter(s);
	if (e < 0)
		return e;
	e = new_locked(s, &m, SKV_MSG_SEQ_NEW, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

int skv_seq_attach(struct skv_session *s, const char *name, struct skv_seq **ret_seq)
{
	struct skv_msg_seq_name m = {.session = s->id};
	int e = name ? fill_name(&m, name) : error_set(-EINVAL, "skv_seq_attach: name is NULL");

	if (e < 0)
		return e;
	e = fence_enter(s);
	if (e < 0)
		return e;
	e = new_locked(s, &m, SKV_MSG_SEQ_ATTACH, ret_seq);
	/* the pages that a parked sequence needs may be in the session's stock: give them back, and try again */
	if ((e == -ENOSPC || e == -EDQUOT) && stock_return_spare(s))
		e = new_locked(s, &m, SKV_MSG_SEQ_ATTACH, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- forked ---------------------------------------------------------------------------------- */

/* Prepare the sequence so that the daemon can share its committed pages. */
static int share_begin(struct skv_seq *q)
{
	struct skv_session *s = q->session;
	int e;

	if (q->in_step)
		return error_set(-EBUSY, "the sequence is in an open step");
	e = device_settle(s); /* the daemon shares only committed pages */
	if (e == 0)
		e = joint_state(s);
	return e == 0 ? seq_settle_fork(q) : e;
}

/* Ask the daemon to share the sequence's pages. *ret is the daemon's reply, which is no error. */
static int share(struct skv_seq *q, uint16_t type, const void *m, size_t bytes, struct request **ret)
{
	struct skv_session *s = q->session;
	struct request *r;
	int e;

	stock_release(q, true); /* the daemon must not count pages that the sequence has given up */
	e = conn_post(s->client, type, m, bytes, &r);
	if (e < 0)
		return e;
	q->fork = r;
	q->steady = false;
	if (conn_wait(s->client, r, conn_deadline(s->client)) < 0)
		return conn_late(s->client, skv_wire_name(type));
	e = seq_recount(q); /* also after a refusal, because the previous daemon may have shared the pages */
	if (e == 0 && r->error) {
		e = error_set(r->error, "%s", r->text);
		q->fork = request_free(r);
		return e;
	}
	if (e < 0)
		return e; /* q->fork stays set, so that the next step tries again */
	q->fork = NULL;
	*ret = r;
	return 0;
}

static int fork_locked(struct skv_seq *q, struct skv_msg_seq_name *m, struct skv_seq **ret)
{
	struct request *r;
	int e = share_begin(q);

	if (e == 0 && m->n_tokens != SKV_ALL)
		e = truncate_check(q, m->n_tokens);
	if (e == 0)
		e = share(q, SKV_MSG_SEQ_FORK, m, sizeof(*m), &r);
	return e < 0 ? e : seq_make(q->session, r, m->name[0], q->own, ret);
}

int skv_seq_fork(struct skv_seq *q, const char *name, uint32_t n_tokens, struct skv_seq **ret_seq)
{
	struct skv_session *s = q->session;
	struct skv_msg_seq_name m = {.session = s->id, .seq = q->id, .n_tokens = n_tokens};
	int e = fill_name(&m, name);

	if (e < 0)
		return e;
	e = fence_enter(s);
	if (e < 0)
		return e;
	e = fork_locked(q, &m, ret_seq);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- detached, dropped ----------------------------------------------------------------------- */

/*
 * Put the private pages of a dropped sequence into the stock, or give them back to the daemon if it did not confirm the
 * drop. After a fork without an answer, nothing is done: pages may be shared and are freed with their last reference,
 * and private pages are freed with the session.
 */
static void keep_own(struct skv_seq *q, int error)
{
	if (q->fork)
		return;
	if (error == 0) {
		seq_take_own(q);
		return;
	}
	reconnect_pin(q->session->client);
	seq_unhold(q, SKV_PTE_PRIVATE);
	seq_put_own(q);
	reconnect_unpin(q->session->client);
}

static int end_locked(struct skv_seq *q, uint16_t type)
{
	struct skv_session *s = q->session;
	struct skv_msg_seq m = {.session = s->id, .seq = q->id};
	bool drop = type == SKV_MSG_SEQ_DROP || !q->named;
	struct request *r = NULL, *answered = NULL;
	int e;

	/* steps that use the sequence end first; after a failure of the device it runs nothing any more */
	e = q->in_step ? error_set(-EBUSY, "the sequence is in an open step") : device_settle_seq(q);
	if (e != -EBUSY && e != -ENOMEM)
		e = conn_prepare(s->client, type, &m, sizeof(m), &r);
	if (e != -EBUSY && e != -ENOMEM) {
		(void)seq_settle_fork(q); /* if the fork has been answered by now */
		reconnect_pin(s->client);
		stock_release(q, true);
		seq_unhold(q, SKV_PTE_SHARED);
		if (!drop || q->fork)
			seq_unhold(q, SKV_PTE_PRIVATE);
		if (e == 0)
			conn_post_prepared(s->client, r);
		reconnect_unpin(s->client);
		if (e == 0)
			e = conn_answer(s->client, r, &answered);
		request_free(answered);
		if (drop)
			keep_own(q, e);
		seq_free(q);
	}
	return e;
}

static int seq_end(struct skv_seq *q, uint16_t type)
{
	struct skv_session *s = q->session;
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = end_locked(q, type);
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

/* ---- sealed prefixes ------------------------------------------------------------------------- */

static int seal_locked(struct skv_seq *q, uint32_t n, uint32_t *ret)
{
	struct skv_msg_seal m = {.session = q->session->id, .seq = q->id};
	struct request *r;
	int e = share_begin(q);

	if (e < 0)
		return e;
	if (n > q->len && n != SKV_ALL)
		return error_set(-EINVAL, "the first %u tokens of a sequence that has %u", n, q->len);
	m.n_tokens = (n < q->len ? n : q->len) / SKV_BLOCK_TOKENS * SKV_BLOCK_TOKENS;
	e = m.n_tokens > 0 ? seal_ready(q->session, q, m.n_tokens) : 0;
	if (e < 0 || m.n_tokens == 0)
		return e;
	*ret = m.n_tokens;
	e = share(q, SKV_MSG_PREFIX_SEAL, &m, sizeof(m), &r);
	if (e == 0)
		request_free(r);
	return e;
}

int skv_seq_seal(struct skv_seq *q, uint32_t n, uint32_t *ret_sealed)
{
	uint32_t sealed = 0;
	int e = fence_enter(q->session);

	if (e < 0)
		return e;
	e = seal_locked(q, n, &sealed);
	pthread_mutex_unlock(&q->session->lock);
	if (ret_sealed)
		*ret_sealed = e < 0 ? 0 : sealed;
	return e;
}

/*
 * Create a sequence from a sealed prefix of the prompt. The daemon takes no files from clients: so the prompt, and the
 * form of its prefixes, reach the daemon in the memory of a temporary sequence, which is dropped afterwards.
 */
static int new_from_locked(struct skv_session *s, const struct skv_msg_seq_name *m, const int32_t *tokens, struct skv_seq **ret)
{
	struct skv_msg_seq_name lent = {.session = m->session, .max_tokens = m->n_tokens}, from = *m, plain = *m;
	struct skv_seq *q;
	int e = new_locked(s, &lent, SKV_MSG_SEQ_NEW, &q);

	if (e < 0)
		return e;
	memcpy(skv_seqmem_tokens(q->mem, &q->layout), tokens, m->n_tokens * sizeof(*tokens));
	compressor_announce(s, q->mem);
	from.seq = q->id;
	e = new_locked(s, &from, SKV_MSG_PREFIX_NEW, ret);
	(void)end_locked(q, SKV_MSG_SEQ_DROP); /* if dropping fails, the temporary sequence ends with its session */
	plain.n_tokens = 0;
	/* the policy cannot continue from tokens that it has not seen itself: begin empty */
	return e == -ENOTSUP ? new_locked(s, &plain, SKV_MSG_SEQ_NEW, ret) : e;
}

/*
 * Make all ranks begin with the same tokens; tokens that only some ranks have found are computed. `e`: this rank's
 * result so far. While ranks differ, all of them begin again with the fewest tokens that any rank has found, or empty.
 */
static int agree(struct skv_session *s, const struct skv_msg_seq_name *m, const int32_t *tokens, int e, struct skv_seq **ret)
{
	struct skv_msg_seq_name shorter = *m;
	int32_t least, most;

	for (;;) {
		int r = device_settle(s);

		if (r == 0)
			r = joint_compare(s, e < 0 ? -1 : (int32_t)(*ret)->len, &least, &most);
		if (r == 0 && least == most)
			return e;
		if (e == 0)
			(void)end_locked(*ret, SKV_MSG_SEQ_DROP);
		if (r < 0)
			return r;
		if (least < 0)
			return e < 0 ? e : error_set(-ECANCELED, "another rank could not begin the sequence");
		shorter.n_tokens = least > 0 ? (uint32_t)least + 1 : 0;
		e = least > 0 ? new_from_locked(s, &shorter, tokens, ret) : new_locked(s, &shorter, SKV_MSG_SEQ_NEW, ret);
	}
}

int skv_seq_new_from(struct skv_session *s, const char *name, uint32_t max_tokens, const int32_t *tokens, uint32_t n, struct skv_seq **ret_seq)
{
	struct skv_msg_seq_name m = {.session = s->id, .max_tokens = max_tokens, .n_tokens = n};
	const uint32_t most = max_tokens ? max_tokens : s->model.max_tokens;
	struct skv_seq *q = NULL;
	int e = fill_name(&m, name);

	if (e < 0)
		return e;
	if (most > s->model.max_tokens)
		return error_set(-EINVAL, "max_tokens is %u, expected at most the model's %u", max_tokens, s->model.max_tokens);
	if (!tokens || n == 0 || n > most)
		return error_set(-EINVAL, "a prompt of %u tokens, expected 1 to %u", tokens ? n : 0, most);
	if (s->model.n_ranks > 1 && !s->joint)
		return error_set(-ENOTSUP, "ranks that find different prefixes have to agree: all_reduce_max expected");
	e = fence_enter(s);
	if (e < 0)
		return e;
	e = new_from_locked(s, &m, tokens, &q);
	if (s->joint)
		e = agree(s, &m, tokens, e, &q);
	pthread_mutex_unlock(&s->lock);
	if (e == 0)
		*ret_seq = q;
	return e;
}

/* ---- truncated ------------------------------------------------------------------------------- */

int skv_seq_truncate(struct skv_seq *q, uint32_t n, int32_t next)
{
	struct skv_session *s = q->session;
	int e = fence_enter(s);

	if (e < 0)
		return e;
	e = q->in_step ? error_set(-EBUSY, "the sequence is in an open step") : fence_check(s->client);
	if (e == 0)
		e = device_settle(s);
	if (e == 0)
		e = seq_settle_fork(q);
	if (e == 0)
		e = truncate_run(q, n, next);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- getters --------------------------------------------------------------------------------- */

uint32_t skv_seq_len(const struct skv_seq *q)
{
	uint32_t len;

	if (fence_enter(q->session) < 0)
		return 0;
	len = q->len;
	pthread_mutex_unlock(&q->session->lock);
	return len;
}

const int32_t *skv_seq_tokens(const struct skv_seq *q, uint32_t *ret_len)
{
	if (ret_len)
		*ret_len = 0;
	if (fence_enter(q->session) < 0)
		return NULL;
	device_settle(q->session);
	if (ret_len)
		*ret_len = q->len;
	pthread_mutex_unlock(&q->session->lock);
	return skv_seqmem_tokens(q->mem, &q->layout);
}

void skv_seq_pages(const struct skv_seq *q, uint64_t *ret_resident, uint64_t *ret_total)
{
	*ret_resident = *ret_total = 0;
	if (fence_enter(q->session) < 0)
		return;
	device_settle(q->session);
	*ret_resident = seq_resident(q);
	*ret_total = 0;
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		if (skv_model_kv_layer(&q->session->model, layer) == layer)
			*ret_total += skv_pages_of(q->len);
	pthread_mutex_unlock(&q->session->lock);
}

void skv_seq_attended(const struct skv_seq *q, uint64_t *ret_attended, uint64_t *ret_causal)
{
	*ret_attended = *ret_causal = 0;
	if (fence_enter(q->session) < 0)
		return;
	device_settle(q->session);
	*ret_attended = q->attended;
	*ret_causal = q->causal;
	pthread_mutex_unlock(&q->session->lock);
}
