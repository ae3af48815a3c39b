/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/memory/pins.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/restart/resume.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/park-queue.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/operations/sessions.h"
#include "daemon/core/operations/task.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/fd.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/turns.h"

#define RAISE 4u             /* factor by which a reload can raise pool_bytes: the tables are made for that */
#define MIN_PAGE_BYTES 1024u /* bytes of a page of the smallest model that types.h allows */
#define DEVICE_PAGE_BYTES 8192u /* page size for which tables can cover a device; smaller pages get a part of it */

static void config_defaults(struct skv_core_config *k)
{
	if (!k->account_pools)
		k->account_pools = 8;
	if (!k->client_sessions)
		k->client_sessions = 16;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static int geometry_of(const struct skv_core_config *k, struct skv_geometry *ret)
{
	uint64_t pages, segments;

	if (!k->segment_bytes || k->segment_bytes > k->pool_bytes || k->pool_bytes > UINT64_MAX / RAISE)
		return -EINVAL;
	pages = k->pool_bytes * RAISE / MIN_PAGE_BYTES;
	segments = k->pool_bytes * RAISE / k->segment_bytes;
	if (k->device_segment_bytes) {
		pages = larger(pages, k->device_bytes / DEVICE_PAGE_BYTES);
		segments = larger(segments, k->device_bytes / k->device_segment_bytes);
	}
	*ret = (struct skv_geometry){
		.max_clients = k->max_clients,
		.max_sessions = k->max_sessions,
		.max_sequences = k->max_sequences,
		.max_pools = k->max_pools,
		.max_segments = segments < SKV_PTE_ID_MASK ? (uint32_t)segments : SKV_PTE_ID_MASK,
		.max_pages = pages < SKV_PTE_ID_MASK ? pages : SKV_PTE_ID_MASK,
		.segment_bytes = k->segment_bytes,
		.pool_bytes = k->pool_bytes * RAISE,
	};
	return 0;
}

static void limit_host(struct skv_core *c)
{
	const struct skv_geometry *g = &c->state.header->geometry;

	c->memory[SKV_DEVICE_HOST].limits = (struct skv_core_memory_limits){
		.pool_bytes = c->config.pool_bytes,
		.segment_bytes = g->segment_bytes,
		.account_bytes = c->config.account_bytes,
		.most_bytes = g->pool_bytes,
	};
}

/*
 * Makes the control page, which all clients read. The daemon maps it writable and then seals it, so that no other
 * process can map it writable.
 */
static int control_new(struct skv_core *c, uint32_t clients)
{
	size_t bytes = (sizeof(*c->control) + clients * sizeof(c->control->fence[0]) + 4095) / 4096 * 4096;
	void *map;

	c->control_fd = memfd_create("sparsekvd-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (c->control_fd < 0 || ftruncate(c->control_fd, (off_t)bytes) < 0)
		return -errno;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->control_fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	c->control = map;
	c->control_bytes = bytes;
	c->control->n_fences = clients;
	if (fcntl(c->control_fd, F_ADD_SEALS,
	          F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	return 0;
}

int skv_core_make(const struct skv_core_config *config, const struct skv_mem_ops *mem, struct skv_state *state,
                  struct skv_core **ret)
{
	const struct skv_geometry *g = &state->header->geometry;
	struct skv_core *c = calloc(1, sizeof(*c));
	int r = -ENOMEM;

	if (!c) {
		skv_state_deinit(state);
		return -ENOMEM;
	}
	c->config = *config;
	c->state = *state;
	c->control_fd = -1;
	c->seqs = calloc(g->max_sequences, sizeof(*c->seqs));
	c->sessions = calloc(g->max_sessions, sizeof(*c->sessions));
	c->pools = calloc(g->max_pools, sizeof(*c->pools));
	for (uint32_t i = 0; c->pools && i < g->max_pools; i++)
		c->pools[i].fd = -1;
	if (c->seqs && c->sessions && c->pools)
		r = skv_names_init(&c->names, g->max_sequences);
	if (r == 0)
		r = skv_park_queue_init(&c->park_queue, (uint32_t)state->header->elements[SKV_TABLE_ACCOUNTS]);
	if (r == 0)
		r = control_new(c, g->max_clients);
	if (r == 0)
		r = skv_idle_init(c);
	if (r < 0) {
		skv_core_abandon(c);
		return r;
	}
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		skv_names_add(c, i);
	c->memory[SKV_DEVICE_HOST].mem = mem;
	limit_host(c);
	atomic_store(&c->control->policy_generation, c->state.header->policy_generation);
	*ret = c;
	return 0;
}

int skv_core_new(const struct skv_core_config *config, const struct skv_mem_ops *mem, struct skv_core **ret)
{
	struct skv_core_config k = *config;
	struct skv_state state = SKV_STATE_NULL;
	struct skv_geometry g;
	int r;

	config_defaults(&k);
	r = geometry_of(&k, &g);
	if (r == 0)
		r = skv_state_new(&state, &g);
	if (r < 0)
		return r;
	skv_write_header(&state)->policy_generation = 1;
	return skv_core_make(&k, mem, &state, ret);
}

/* Unmaps and closes the mappings and descriptors of all rows. */
static void close_companions(struct skv_core *c)
{
	const struct skv_geometry *g = &c->state.header->geometry;

	for (uint32_t i = 0; c->seqs && i < g->max_sequences; i++) {
		free(c->seqs[i].blocks);
		if (c->seqs[i].mem)
			skv_seqfile_close(&c->seqs[i]);
	}
	for (uint32_t i = 0; c->sessions && i < g->max_sessions; i++)
		if (c->sessions[i].page)
			skv_session_leave(c, i);
	for (uint32_t i = 0; c->pools && i < g->max_pools; i++)
		skv_pool_leave(c, i);
}

struct skv_core *skv_core_free(struct skv_core *c)
{
	if (c)
		skv_core_drop_all(c);
	return skv_core_abandon(c);
}

struct skv_core *skv_core_abandon(struct skv_core *c)
{
	if (!c)
		return NULL;
	skv_task_free_all(c);
	skv_reconnect_free_all(c);
	skv_pins_free_all(c);
	close_companions(c);
	skv_block_index_deinit(&c->prefixes);
	skv_names_deinit(&c->names);
	skv_park_queue_deinit(&c->park_queue);
	skv_idle_deinit(&c->idle);
	free(c->seqs);
	free(c->sessions);
	free(c->pools);
	free(c->fd_changes);
	if (c->control)
		munmap(c->control, c->control_bytes);
	skv_close_fd(c->control_fd);
	skv_state_deinit(&c->state);
	free(c);
	return NULL;
}

void skv_core_give_up(struct skv_core *c)
{
	c->given_up = true;
}

bool skv_core_commit(struct skv_core *c)
{
	if (c->given_up)
		return false;
	skv_fdstore_before_commit(c);
	skv_undo_commit(&c->state);
	skv_fdstore_after_commit(c);
	return true;
}

#define DROP_UNITS 60000u /* units of work that are committed as one change */

/*
 * Completes all tasks in turns and commits after each turn: the undo log of all turns together would be larger than the
 * state. False: a turn failed.
 */
static bool work_off(struct skv_core *c)
{
	struct skv_core_done done;

	do {
		skv_core_work(c, DROP_UNITS, &done);
		skv_core_commit(c);
	} while (done.more && !done.failed);
	return !done.failed;
}

/* Drops the sequences before it ends the clients: ending a client would validate its sequences, which takes memory. */
void skv_core_drop_all(struct skv_core *c)
{
	if (c->given_up)
		return;
	if (!work_off(c))
		skv_task_free_all(c);
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		if (skv_task_drop(c, i, SKV_NO_INDEX, 0) < 0)
			skv_seq_remove(c, i);
		(void)work_off(c);
	}
	SKV_EACH(i, &c->state, SKV_TABLE_CLIENTS)
		(void)skv_core_client_gone(c, skv_state_id(&c->state, SKV_TABLE_CLIENTS, i), 0);
	(void)work_off(c);
}

void skv_core_device_lost(struct skv_core *c, uint32_t device)
{
	skv_task_lose(c, device);
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES)
		if (skv_pool_row(&c->state, skv_seq_row(&c->state, i)->pool)->device == device)
			skv_seq_remove(c, i);
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) /* sessions of fenced clients: all others have disconnected */
		if (skv_pool_row(&c->state, skv_session_row(&c->state, i)->pool)->device == device)
			skv_session_end(c, i);
}

bool skv_core_reconfigure(struct skv_core *c, const struct skv_core_config *config)
{
	const struct skv_geometry *g = &c->state.header->geometry;
	struct skv_core_config k = *config;
	bool kept;

	config_defaults(&k);
	kept = k.segment_bytes == g->segment_bytes && k.max_clients == g->max_clients &&
	       k.max_sequences == g->max_sequences && k.max_sessions == g->max_sessions &&
	       k.max_pools == g->max_pools;
	if (k.pool_bytes > g->pool_bytes) {
		k.pool_bytes = g->pool_bytes;
		kept = false;
	}
	k.segment_bytes = g->segment_bytes;
	k.max_clients = g->max_clients;
	k.max_sequences = g->max_sequences;
	k.max_sessions = g->max_sessions;
	k.max_pools = g->max_pools;
	c->config = k;
	limit_host(c);
	return kept;
}

void skv_core_set_device(struct skv_core *c, uint32_t device, const struct skv_mem_ops *mem,
                         const struct skv_core_memory_limits *limits)
{
	struct skv_memory *p = &c->memory[device];
	struct skv_core_memory_limits was = p->limits;

	assert(device > SKV_DEVICE_HOST && device < SKV_MEMORY_KINDS);
	p->limits = *limits;
	if (p->mem) {
		p->limits.segment_bytes = was.segment_bytes;
		p->limits.most_bytes = was.most_bytes;
	}
	p->mem = mem;
}

uint32_t skv_core_sequences(const struct skv_core *c)
{
	return c->state.header->live[SKV_TABLE_SEQUENCES];
}

int skv_core_state_fd(const struct skv_core *c)
{
	return c->state.fd;
}

int skv_core_control_fd(const struct skv_core *c, uint64_t *ret_bytes)
{
	*ret_bytes = c->control_bytes;
	return c->control_fd;
}

void skv_core_on_corrupt(struct skv_core *c,
                         void (*cb)(void *, uid_t, const char *, const char *, const char *), void *userdata)
{
	c->corrupt_cb = cb;
	c->corrupt_data = userdata;
}
