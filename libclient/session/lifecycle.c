/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/lifecycle.c - opens and closes sessions: one model and one policy on a connection. */
#include "libclient/session/lifecycle.h"
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"
#include "common/spec.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/fence.h"
#include "libclient/conn/reconnect.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/session/model.h"
#include "libclient/pages/pages.h"
#include "libclient/pages/seq-table.h"
#include "libclient/pages/stock.h"
#include "libclient/seq.h"
#include "libclient/session/policy-config.h"
#include "libclient/session/seq-lifecycle.h"
#include "libclient/step/transaction.h"

/* ---- opened ---------------------------------------------------------------------------------- */

/* Choose the kernels for the session's model, and set the session's shape except the pool's address. */
static int choose_kernels(struct skv_session *s)
{
	const struct skv_model *m = &s->model;
	const char *isa = getenv("SPARSEKV_ISA"), *wrong;
	int e = m->device == SKV_DEVICE_HOST ? 0 : device_open(s, transaction_finished);

	if (e < 0)
		return e;
	s->shape = (struct skv_shape){
	        .n_heads = m->n_heads,
	        .n_kv_heads = m->n_kv_heads,
	        .head_dim = m->head_dim,
	        .dtype = m->kv_dtype,
	        .io_dtype = s->device ? m->io_dtype : SKV_F32, /* the library converts rows in host memory to fp32 */
	        .page_bytes = skv_page_bytes(m),
	};
	if (!s->device)
		s->kernels = skv_kernels_host(NULL);
	if (!s->kernels)
		return error_set(
			-EINVAL,
			"SPARSEKV_ISA is '%.30s': expected avx512, avx2 or generic, as the processor has",
			isa ? isa : "");
	wrong = s->kernels->unsupported(&s->shape);
	return wrong ? error_set(-EINVAL, "model: %s", wrong) : 0;
}

/* Set up the session from the daemon's reply to OPEN. */
static int settle_in(struct skv_session *s, struct request *r)
{
	const struct skv_msg_open_ok *ok = r->body;
	void *page;
	int e;

	s->id = ok->session;
	s->pool = r->pool;
	if (ok->page_bytes != s->shape.page_bytes)
		return error_set(-EPROTO, "the daemon's pages have %llu bytes, expected %zu",
		            (unsigned long long)ok->page_bytes, s->shape.page_bytes);
	if (ok->session_page_bytes < sizeof(*s->page))
		return error_set(-EPROTO, "the daemon's session page has %llu bytes, expected at least %zu",
		            (unsigned long long)ok->session_page_bytes, sizeof(*s->page));
	e = skv_map_fd(r->fds[0], ok->session_page_bytes, PROT_READ | PROT_WRITE, true, &page);
	if (e < 0)
		return error_set(e == -EBADMSG ? -EPROTO : e, "cannot map the session page: %s", strerror(-e));
	madvise(page, ok->session_page_bytes, MADV_DONTFORK);
	s->page = page;
	s->page_bytes = ok->session_page_bytes;
	return policy_get(s, &ok->policy, r->fds[1], &s->policy);
}

/* Make the parts of a session that do not need the daemon. */
static int session_new(struct skv_client *c, const struct skv_model *model, struct skv_session **ret)
{
	static _Atomic uint64_t serials;
	struct skv_session *s = calloc(1, sizeof(*s));
	int e;

	if (!s)
		return error_set(-ENOMEM, "out of memory");
	s->client = c;
	s->serial = atomic_fetch_add(&serials, 1);
	s->recall_every = -1;
	pthread_mutex_init(&s->lock, NULL);
	e = model_copy(&s->model, model);
	if (e == 0)
		e = choose_kernels(s);
	if (e == 0)
		e = features_open(s);
	if (e < 0) {
		session_free(s);
		return e;
	}
	*ret = s;
	return 0;
}

int skv_open(struct skv_client *c, const struct skv_model *model, const char *policy_spec,
             struct skv_session **ret_session)
{
	char name[SKV_NAME_MAX], text[SKV_TEXT_MAX];
	struct skv_msg_open m = {0};
	struct skv_session *s = NULL;
	struct request *r;
	int e;

	if (fence_forked(c))
		return fence_check(c);
	if (!policy_spec)
		return error_set(-EINVAL, "skv_open: policy_spec is NULL");
	if (skv_spec_name(policy_spec, name, text, sizeof(text)) < 0)
		return error_set(-EINVAL, "%s", text);
	e = session_new(c, model, &s);
	if (e < 0)
		return e;
	skv_wire_from_model(&m.model, &s->model);
	if (s->device)
		memcpy(m.device_uuid, s->device->info.uuid, sizeof(m.device_uuid));
	skv_wire_string(m.spec, sizeof(m.spec), policy_spec);
	/* read before the request is sent, so that a swap in between is noticed later */
	s->swap.seen_generation = atomic_load_explicit(&c->control->policy_generation, memory_order_acquire);
	e = conn_call(c, SKV_MSG_OPEN, &m, sizeof(m), &r);
	if (e < 0) {
		session_free(s);
		return e;
	}
	e = settle_in(s, r);
	if (e < 0) {
		session_free(s);
		conn_orphan(c, r); /* the reply is undone: the daemon closes the session */
		return e;
	}
	policy_ack(s, s->policy->generation, 0, "");
	request_free(r);
	pthread_mutex_lock(&c->lock);
	s->next = c->sessions;
	c->sessions = s;
	pthread_mutex_unlock(&c->lock);
	*ret_session = s;
	return 0;
}

/* ---- closed ---------------------------------------------------------------------------------- */

void session_free(struct skv_session *s)
{
	device_settle(s);
	while (s->seqs)
		seq_free(s->seqs);
	for (uint32_t i = 0; i < POLICIES_KEPT; i++)
		policy_put(s->client, s->kept[i]);
	policy_put(s->client, s->policy);
	features_close(s);
	if (s->page)
		munmap(s->page, s->page_bytes);
	pthread_mutex_destroy(&s->lock);
	model_free(&s->model);
	free(s);
}

/* Tell the daemon that the session's sequences, then its pages, then the session end: the daemon needs this order. */
static void say_goodbye(struct skv_session *s)
{
	struct skv_client *c = s->client;
	int64_t deadline = conn_deadline(c);
	struct request *r = NULL, *get;
	bool late;

	while (s->seqs) {
		struct skv_seq *q = s->seqs;
		struct skv_msg_seq m = {.session = s->id, .seq = q->id};

		reconnect_pin(c);
		stock_release(q, true);
		seq_unhold(q, SKV_PTE_SHARED);
		if (q->named || q->fork)
			seq_unhold(q, SKV_PTE_PRIVATE);
		else
			seq_take_own(q);
		conn_post(c, SKV_MSG_SEQ_DETACH, &m, sizeof(m), NULL);
		seq_free(q);
		reconnect_unpin(c);
	}
	stock_return(s);
	get = s->stock.get;
	if (get)
		conn_wait(c, get, deadline);
	s->stock.get = NULL;

	pthread_mutex_lock(&c->lock);
	late = get && !get->done;
	if (late) {
		/* the daemon may still lease pages to this session: CLOSE is sent after they are given back */
		get->then_close = true;
		get->pool = s->pool;
	}
	pthread_mutex_unlock(&c->lock);
	conn_orphan(c, get); /* leased pages that have arrived are given back now, before the session is closed */
	if (late)
		return;
	pthread_mutex_lock(&c->lock);
	conn_close_session_locked(c, s->id, s->pool, &r);
	pthread_mutex_unlock(&c->lock);
	if (r) {
		conn_wait(c, r, deadline);
		conn_orphan(c, r);
	}
}

void skv_close(struct skv_session *s)
{
	struct skv_client *c;

	if (!s)
		return;
	c = s->client;
	if (fence_forked(c))
		return; /* the session belongs to the parent process */
	skv_step_abort(s);
	pthread_mutex_lock(&s->lock);
	device_settle(s); /* after a failure the device runs nothing any more */
	say_goodbye(s);
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&c->lock);
	for (struct skv_session **at = &c->sessions; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			break;
		}
	pthread_mutex_unlock(&c->lock);
	session_free(s);
}

/* ---- getters --------------------------------------------------------------------------------- */

int skv_session_stats(struct skv_session *s, struct skv_stats *ret)
{
	struct skv_stats t;
	int e;

	if (ret->size == 0 || ret->size > sizeof(t))
		return error_set(-EINVAL, "stats: size is %u, expected sizeof(struct skv_stats), at most %zu",
		            ret->size, sizeof(t));
	e = fence_enter(s);
	if (e < 0)
		return e;
	device_poll(s);
	t = s->stats;
	t.n_seqs = s->n_seqs;
	t.stock_pages = s->stock.n;
	pthread_mutex_unlock(&s->lock);
	t.size = ret->size;
	memcpy(ret, &t, ret->size);
	return 0;
}

int skv_session_room(struct skv_session *s, struct skv_room *ret)
{
	struct skv_room room = {.page_bytes = s->shape.page_bytes};
	int e;

	if (ret->size == 0 || ret->size > sizeof(room))
		return error_set(-EINVAL, "room: size is %u, expected sizeof(struct skv_room), at most %zu", ret->size, sizeof(room));
	e = fence_enter(s);
	if (e < 0)
		return e;
	for (struct skv_seq *q = s->seqs; q && s->stock.n_release > 0; q = q->next)
		stock_release(q, true); /* released pages count as room, also for other sessions */
	e = stock_room(s, &room.pages);
	room.stock_pages = s->stock.n;
	pthread_mutex_unlock(&s->lock);
	room.size = ret->size;
	if (e == 0)
		memcpy(ret, &room, ret->size);
	return e;
}

int skv_seq_need(struct skv_session *s, uint32_t n_tokens, uint32_t chunk, uint64_t *ret_pages)
{
	int e = fence_enter(s);

	if (e < 0)
		return e;
	if (n_tokens == 0 || n_tokens > s->model.max_tokens)
		e = error_set(-EINVAL, "skv_seq_need: n_tokens is %u, expected 1 to the model's %u", n_tokens, s->model.max_tokens);
	else
		*ret_pages = pages_of_prompt(s, n_tokens, chunk > 0 && chunk < n_tokens);
	pthread_mutex_unlock(&s->lock);
	return e;
}

const char *skv_backend(const struct skv_session *s)
{
	return s->kernels->name;
}

const char *skv_version(void)
{
	return PACKAGE_VERSION;
}
