/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions. A session is one model with one policy, of one client, on the pool of the client's UID, the model's memory
 * and its page size.
 *
 * A session's row has three policies: `wanted`, which was requested; `given`, which was last given to the client; and
 * `running`, which the client reports to run. A policy swap increments the policy generation in the control page. Every
 * session then asks for its policy; a session outside the scope of the swap is given the policy that it already has.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/announce.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/sessions.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "common/fd.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/views.h"

/* Maps a session page. `fd` is consumed, also on failure. */
static int page_map(struct skv_session_local *ret, int fd)
{
	void *map;
	int r = skv_map_fd(fd, SKV_SESSION_BYTES, PROT_READ, 1, &map);

	if (r < 0) {
		skv_close_fd(fd);
		return r;
	}
	*ret = (struct skv_session_local){.fd = fd, .page = map};
	return 0;
}

/* Makes a session page; the fd store gets its descriptor with the next commit. */
static int page_new(struct skv_core *c, uint32_t session)
{
	char name[SKV_FDSTORE_NAME];
	int fd, r;

	skv_fdstore_name(&c->state, SKV_TABLE_SESSIONS, session, name);
	fd = skv_memfd_new(name, SKV_SESSION_BYTES);
	if (fd < 0)
		return fd;
	r = page_map(&c->sessions[session], fd);
	if (r < 0)
		return r;
	skv_write_session(&c->state, session)->file = skv_fdstore_file(fd);
	skv_fdstore_add(c, name, fd);
	return 0;
}

int skv_session_adopt(struct skv_core *c, uint32_t session, int fd)
{
	return fd >= 0 ? page_map(&c->sessions[session], fd) : page_new(c, session);
}

void skv_session_leave(struct skv_core *c, uint32_t session)
{
	munmap(c->sessions[session].page, SKV_SESSION_BYTES);
	skv_close_fd(c->sessions[session].fd);
	c->sessions[session] = (struct skv_session_local){.fd = -1};
}

static int check_open(struct skv_core *c, uint32_t client, const struct skv_model *m, const char *spec)
{
	const char *problem = skv_model_check(m);

	if (problem)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "%s", problem);
	if (!c->memory[m->device].mem)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "there is no CUDA device %u", m->device - 1);
	if (strnlen(spec, SKV_SPEC_MAX) == SKV_SPEC_MAX)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "a policy spec has at most %u bytes",
		                  SKV_SPEC_MAX - 1);
	if (skv_client_row(&c->state, client)->sessions >= c->config.client_sessions)
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                  "this client already has %u sessions, the most that are allowed",
		                  c->config.client_sessions);
	return 0;
}

static void choose(struct skv_choice *to, uint64_t generation, const char *spec, uint32_t plugin)
{
	to->generation = generation;
	to->plugin = plugin;
	snprintf(to->spec, sizeof(to->spec), "%s", spec);
}

/* Makes a session's row and its session page; the session does not join a pool yet. */
static int make(struct skv_core *c, uint32_t account, const struct skv_model *m, const char *spec, uint32_t plugin,
                uint32_t *ret_session)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);
	struct skv_session_row *s;
	uint32_t session;
	int r = skv_charge_allows(c, account, SKV_SESSION_BYTES);

	if (r)
		return r;
	if (!skv_share_allows(c, SKV_TABLE_SESSIONS, a->sessions))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "UID %u has %u sessions; the rest of the daemon's %u is reserved for others",
		                       a->uid, a->sessions,
		                       c->config.max_sessions);
	r = skv_fdstore_allows(c);
	if (r)
		return r;
	session = skv_state_take(&c->state, SKV_TABLE_SESSIONS);
	r = page_new(c, session);
	if (r < 0) {
		skv_state_give(&c->state, SKV_TABLE_SESSIONS, session);
		return skv_core_refuse_system(c, r, "memory for a session");
	}
	s = skv_write_session(&c->state, session);
	s->model = *m;
	choose(&s->wanted, c->state.header->policy_generation, spec, plugin);
	s->given = s->running = s->wanted;
	*ret_session = session;
	return 0;
}

static void unmake(struct skv_core *c, uint32_t session)
{
	char kept[SKV_FDSTORE_NAME];

	skv_fdstore_name(&c->state, SKV_TABLE_SESSIONS, session, kept);
	skv_fdstore_remove(c, kept);
	skv_session_leave(c, session);
	skv_state_give(&c->state, SKV_TABLE_SESSIONS, session);
}

int skv_core_session_open(struct skv_core *c, uint32_t client_id, const struct skv_model *m, const char *spec,
                          uint32_t plugin, struct skv_core_session_info *ret)
{
	uint32_t client, session, pool, account;
	const struct skv_pool_row *p;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	r = check_open(c, client, m, spec);
	if (r)
		return r;
	account = skv_client_row(&c->state, client)->account;
	r = make(c, account, m, spec, plugin, &session);
	if (r)
		return r;
	r = skv_pool_get(c, account, m->device, skv_page_bytes(m), &pool);
	if (r) {
		unmake(c, session);
		return r;
	}
	skv_write_session(&c->state, session)->client = client;
	skv_write_session(&c->state, session)->pool = pool;
	skv_write_client(&c->state, client)->sessions++;
	skv_write_account(&c->state, account)->sessions++;
	skv_write_account(&c->state, account)->other_bytes += SKV_SESSION_BYTES;
	skv_write_pool(&c->state, pool)->sessions++;
	skv_member_join(c, pool, client);
	p = skv_pool_row(&c->state, pool);
	*ret = (struct skv_core_session_info){
		.session = skv_state_id(&c->state, SKV_TABLE_SESSIONS, session),
		.pool = pool,
		.page_bytes = p->page_bytes,
		.segment_bytes = p->segment_bytes,
		.pages_per_segment = p->pages_per_segment,
		.max_segments = p->max_segments,
		.page_fd = c->sessions[session].fd,
		.page_fd_bytes = SKV_SESSION_BYTES,
	};
	return 0;
}

void skv_session_end(struct skv_core *c, uint32_t session)
{
	const struct skv_session_row *s = skv_session_row(&c->state, session);
	uint32_t client = s->client, pool = s->pool, account = skv_pool_row(&c->state, pool)->account;

	skv_write_client(&c->state, client)->sessions--;
	skv_write_account(&c->state, account)->sessions--;
	skv_write_account(&c->state, account)->other_bytes -= SKV_SESSION_BYTES;
	skv_member_leave(c, pool, client);
	skv_write_pool(&c->state, pool)->sessions--;
	unmake(c, session);
	skv_pool_shrink(c, pool);
}

int skv_core_session_pool(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t *ret_pool)
{
	uint32_t client, session;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	*ret_pool = skv_session_row(&c->state, session)->pool;
	return 0;
}

int skv_core_session_model(struct skv_core *c, uint32_t client_id, uint32_t session_id, const struct skv_model **ret)
{
	uint32_t client, session;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r == 0)
		*ret = &skv_session_row(&c->state, session)->model;
	return r;
}

int skv_core_session_policy(struct skv_core *c, uint32_t client_id, uint32_t session_id,
                            struct skv_msg_policy *ret)
{
	uint32_t client, session;
	struct skv_session_row *s;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	s = skv_write_session(&c->state, session);
	choose(&s->given, c->state.header->policy_generation, s->wanted.spec, s->wanted.plugin);
	*ret = (struct skv_msg_policy){.generation = s->given.generation, .plugin = s->given.plugin};
	snprintf(ret->spec, sizeof(ret->spec), "%s", s->given.spec);
	return 0;
}

uint32_t skv_core_next_plugin(struct skv_core *c)
{
	return ++skv_write_header(&c->state)->plugins;
}

void skv_core_replace_plugins(struct skv_core *c, uint32_t (*id_of)(void *, const char *spec), void *ctx)
{
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		struct skv_session_row *s = skv_write_session(&c->state, i);
		struct skv_choice *const choices[] = {&s->wanted, &s->given, &s->running};

		for (size_t k = 0; k < 3; k++) {
			uint32_t id = id_of(ctx, choices[k]->spec);

			if (id)
				choices[k]->plugin = id;
		}
	}
}

bool skv_core_in_scope(const struct skv_core_scope *scope, const struct skv_core_session_view *v)
{
	return (!scope->session || v->session == scope->session) && (!scope->client || v->client == scope->client) &&
	       (scope->uid == UINT32_MAX || v->uid == scope->uid) &&
	       (!*scope->model || !strcmp(v->model->name, scope->model));
}

uint32_t skv_core_swap(struct skv_core *c, const struct skv_core_scope *scope, const char *spec, uint32_t plugin)
{
	uint64_t generation = c->state.header->policy_generation + 1;
	uint32_t n = 0;

	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		const struct skv_session_row *s = skv_session_row(&c->state, i);
		struct skv_core_session_view v = {
		        .session = skv_state_id(&c->state, SKV_TABLE_SESSIONS, i),
		        .client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, s->client),
		        .uid = skv_account_row(&c->state, skv_pool_row(&c->state, s->pool)->account)->uid,
		        .model = &s->model,
		};

		if (!skv_core_in_scope(scope, &v))
			continue;
		choose(&skv_write_session(&c->state, i)->wanted, generation, spec, plugin);
		n++;
	}
	if (n) {
		skv_write_header(&c->state)->policy_generation = generation;
		atomic_store(&c->control->policy_generation, generation);
	}
	return n;
}

static bool same_choice(const struct skv_choice *a, const struct skv_choice *b)
{
	return a->plugin == b->plugin && !strcmp(a->spec, b->spec);
}

int skv_core_policy_ack(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint64_t generation,
                        int error, const char *text)
{
	uint32_t client, session;
	struct skv_session_row *s;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	s = skv_write_session(&c->state, session);
	if (generation > s->given.generation)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got policy generation %llu, expected at most %llu, the last one given",
		                  (unsigned long long)generation, (unsigned long long)s->given.generation);
	if (generation < s->given.generation)
		return 0; /* a later policy was given before this answer came, and only the answer to that one counts */
	if (!error) {
		s->running = s->given;
		s->error[0] = 0;
		return 0;
	}
	snprintf(s->error, sizeof(s->error), "%s", text && text[0] ? text : strerror(error));
	/* the failed policy is not tried again: `wanted` becomes the running one, unless another was requested since */
	if (same_choice(&s->wanted, &s->given))
		choose(&s->wanted, generation, s->running.spec, s->running.plugin);
	s->running.generation = generation;
	return 0;
}

uint64_t skv_core_policy_generation(const struct skv_core *c)
{
	return c->state.header->policy_generation;
}

void skv_core_set_recall(struct skv_core *c, uint32_t every)
{
	atomic_store(&c->control->recall_every, every);
}

bool skv_core_client_uses(const struct skv_core *c, uint32_t client_id, uint32_t device)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		const struct skv_session_row *s = skv_session_row(&c->state, i);

		if (s->client == client && skv_pool_row(&c->state, s->pool)->device == device)
			return true;
	}
	return false;
}
