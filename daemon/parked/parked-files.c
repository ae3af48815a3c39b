/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parked-files.c - files of parked sequences: quotas, removal, and the sealed prefixes among them.
 *
 * A sealed prefix on disk can be computed again, a parked sequence cannot. So prefixes get what sequences leave of
 * the user's quota and of the disk: the quota check of a sequence does not count prefixes, and the least recently
 * used ones are evicted for it. Reading a prefix leaves its file in place: a prefix never changes, so its memory can
 * be freed later without writing.
 *
 * Prefixes on disk are found by their blocks, like those in memory. Their files contain the keys, with a tag that
 * proves that these follow from the secret; files of another secret are removed. So are files whose keys do not fit
 * into the user's quota of host memory.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/prefix/prefix-priv.h"
#include "daemon/sys/log.h"

_Static_assert(SKV_PARKED_TAG == SKV_PREFIX_KEY, "one size");

/* ---- removal ---------------------------------------------------------------------------------- */

struct removal {
	struct skv_worker_job work; /* first */
	struct skv_disk_job m;
	struct skv_parking *parking;
	struct skv_parked *file;
	int fds[2];
};

static void not_removed(const struct skv_parked *p, int error)
{
	skv_log_peer(LOG_ERR, "parked file %u/%s cannot be removed: %s", p->uid, p->file, strerror(-error));
}

void skv_parking_forget(struct skv_parking *k, struct skv_parked *p)
{
	if (p->indexed)
		skv_block_index_remove(&k->prefixes, (uintptr_t)p, p->keys->key, p->n_keys);
	skv_core_unpin(k->server->core, (uid_t)p->uid, &p->pinned);
	skv_files_forget(&k->files, p);
}

/* A missing folder counts as a removed file. When the workers are closed, skv_parking_remove_rest() removes what is left. */
static void removed(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	struct removal *x = (struct removal *)work;
	struct skv_parked *p = x->file;

	(void)why, (void)answer;
	p->leaving = false;
	x->parking->settled = true;
	if (error == 0 || error == -ENOENT)
		skv_parking_forget(x->parking, p);
	else if (!x->parking->closed)
		not_removed(p, error);
	free(x);
}

static void begin_removal(struct skv_parking *k, struct skv_parked *p)
{
	struct removal *x = malloc(sizeof(*x));

	if (!x) {
		not_removed(p, -ENOMEM);
		return;
	}
	*x = (struct removal){
		.work = {.job = &x->m, .bytes = sizeof(x->m), .fds = x->fds, .n_fds = 2, .user = p->uid, .done = removed},
		.m = {.kind = SKV_DISK_REMOVE, .n_fds = 2, .uid = p->uid},
		.parking = k,
		.file = p,
		.fds = {k->files.folder, k->files.folder},
	};
	memcpy(x->m.file, p->file, sizeof(x->m.file));
	p->leaving = true;
	skv_worker_submit(k->workers[SKV_PARKING_REMOVE], &x->work);
}

/* The file is forgotten only once it is gone: the next daemon would take a remaining file for a parked sequence. */
void skv_parking_remove(struct skv_parking *k, struct skv_parked *p)
{
	skv_files_set_going(p, true);
	begin_removal(k, p);
}

void skv_parking_remove_again(struct skv_parking *k, struct skv_parked *p)
{
	if (p->going && !p->leaving)
		begin_removal(k, p);
}

void skv_parking_remove_rest(struct skv_parking *k)
{
	for (size_t i = 0; i < k->files.n && !k->server->failure; i++) {
		const struct skv_parked *p = k->files.all[i];
		int user = p->going ? skv_files_user(k->files.folder, p->uid, false) : -1;
		int r = user < 0 ? user : skv_files_remove(user, p->file);

		if (p->going && r < 0 && r != -ENOENT)
			not_removed(p, r);
		skv_close_fd(user);
	}
}

/* ---- quotas ---------------------------------------------------------------------------------- */

static void sum_jobs(const struct skv_queue *jobs, uint32_t uid, bool prefixes, uint64_t *files, uint64_t *bytes)
{
	SKV_QUEUE_EACH(e, jobs) {
		const struct skv_parking_job *j = SKV_QUEUED_OWNER(e, struct skv_parking_job, queued);

		if (j->m.kind != SKV_DISK_PARK || j->m.uid != uid || (j->m.n_keys > 0) != prefixes)
			continue;
		*files += 1;
		*bytes += j->m.max_bytes;
	}
}

/*
 * Files and bytes of the user's sequences, or of its prefixes, including those that are being written. The size of
 * imports is not known.
 */
static void sum(const struct skv_parking *k, uint32_t uid, bool prefixes, uint64_t *ret_files, uint64_t *ret_bytes)
{
	skv_files_sum(&k->files, uid, prefixes, ret_files, ret_bytes);
	sum_jobs(&k->in[SKV_PARKING_MOVING], uid, prefixes, ret_files, ret_bytes);
}

bool skv_parking_quota_allows(struct skv_parking *k, uint32_t uid, uint64_t more, uint64_t *ret_left)
{
	const struct skv_config *config = &k->server->config;
	uint64_t files, bytes;

	sum(k, uid, false, &files, &bytes);
	*ret_left = bytes < config->account_parked_bytes && files < config->account_sequences ? config->account_parked_bytes - bytes : 0;
	return more <= *ret_left;
}

/* The least recently used prefix, of a user or (UINT32_MAX) of all, that is not being read. */
static struct skv_parked *oldest_prefix(const struct skv_parking *k, uint32_t uid)
{
	struct skv_parked *found = NULL;

	for (size_t i = 0; i < k->files.n; i++) {
		struct skv_parked *p = k->files.all[i];

		if (skv_parked_is_prefix(p) && !p->going && !p->busy && (uid == UINT32_MAX || p->uid == uid) && (!found || p->used_ns < found->used_ns))
			found = p;
	}
	return found;
}

static void evict(struct skv_parking *k, struct skv_parked *p)
{
	skv_count(k->server->counts, (uid_t)p->uid, SKV_COUNT_PREFIXES_EVICTED, 1);
	skv_parking_remove(k, p);
}

void skv_parking_trim_prefixes(struct skv_parking *k, uint32_t uid)
{
	const struct skv_config *config = &k->server->config;
	uint64_t files, bytes, prefixes, prefix_bytes;
	struct skv_parked *p;

	sum(k, uid, false, &files, &bytes);
	for (;;) {
		sum(k, uid, true, &prefixes, &prefix_bytes);
		if (files + prefixes <= config->account_sequences && bytes + prefix_bytes <= config->account_parked_bytes)
			return;
		p = oldest_prefix(k, uid);
		if (!p)
			return;
		evict(k, p);
	}
}

bool skv_parking_free_disk(struct skv_parking *k)
{
	struct skv_parked *p = oldest_prefix(k, UINT32_MAX);

	if (p)
		evict(k, p);
	return p != NULL;
}

bool skv_parking_frees_disk(const struct skv_parking *k)
{
	for (size_t i = 0; i < k->files.n; i++)
		if (k->files.all[i]->leaving && skv_parked_is_prefix(k->files.all[i]))
			return true;
	return false;
}

/* ---- sealed prefixes ------------------------------------------------------------------------- */

static void make_tag(const struct skv_parking *k, uint32_t uid, const struct skv_block_key *keys, uint32_t n, uint8_t ret[SKV_PREFIX_KEY])
{
	uint8_t tenant[SKV_PREFIX_KEY];

	skv_prefix_tenant(k->server->prefix->secret, (uid_t)uid, tenant);
	skv_prefix_tag(tenant, keys, n, ret);
	OPENSSL_cleanse(tenant, sizeof(tenant));
}

int skv_parking_list_keys(const struct skv_parking_job *j, const struct skv_block_key *keys)
{
	const size_t bytes = j->m.n_keys * sizeof(*keys);
	uint8_t tag[SKV_PREFIX_KEY];

	make_tag(j->parking, j->m.uid, keys, j->m.n_keys, tag);
	return pwrite(j->list, tag, sizeof(tag), (off_t)j->m.keys_at) == sizeof(tag) &&
	                       pwrite(j->list, keys, bytes, (off_t)(j->m.keys_at + sizeof(tag))) == (ssize_t)bytes
	               ? 0
	               : -ENOSPC;
}

/* Do its keys belong to it and to this secret? */
static bool is_ours(const struct skv_parking *k, const struct skv_parked *p)
{
	uint8_t tag[SKV_PREFIX_KEY];
	char name[SKV_NAME_MAX];

	if (!p->keys)
		return false;
	make_tag(k, p->uid, p->keys->key, p->n_keys, tag);
	skv_prefix_name(&p->keys->key[p->n_keys - 1], name);
	return CRYPTO_memcmp(tag, p->keys->tag, sizeof(tag)) == 0 && strcmp(name, p->name) == 0;
}

bool skv_parking_index_prefix(struct skv_parking *k, struct skv_parked *p)
{
	p->indexed = is_ours(k, p) && skv_core_pin(k->server->core, (uid_t)p->uid, skv_block_index_bytes(p->n_keys), &p->pinned) == 0 &&
	             skv_block_index_add(&k->prefixes, (uintptr_t)p, p->keys->key, p->n_keys) == 0;
	if (!p->indexed)
		skv_parking_remove(k, p);
	return p->indexed;
}

unsigned skv_parking_index_prefixes(struct skv_parking *k, unsigned *ret_gone)
{
	unsigned n = 0;

	*ret_gone = 0;
	for (size_t i = 0; i < k->files.n; i++) {
		struct skv_parked *p = k->files.all[i];

		if (!skv_parked_is_prefix(p) || p->indexed || p->going)
			continue;
		if (skv_parking_index_prefix(k, p))
			n++;
		else
			++*ret_gone;
	}
	return n;
}

/* Files of one user and model. */
struct owners {
	struct skv_block_owners base; /* first */
	const struct skv_model *model;
	uint32_t uid;
};

/* NULL: the file is being removed, or has K and V of another user or model. */
static const struct skv_block_key *keys_of(const struct skv_block_owners *owners, uintptr_t owner, uint32_t *ret_n)
{
	const struct owners *x = (const void *)owners;
	const struct skv_parked *p = (const struct skv_parked *)owner;
	const struct skv_wire_model *o = &p->model;
	const struct skv_model *m = x->model;

	*ret_n = p->n_keys;
	return p->uid == x->uid && !p->going && !strcmp(o->name, m->name) && o->rank == m->rank && o->n_ranks == m->n_ranks &&
	                       o->n_layers == m->n_layers && o->n_heads == m->n_heads && o->n_kv_heads == m->n_kv_heads &&
	                       o->head_dim == m->head_dim && o->kv_dtype == m->kv_dtype
	               ? p->keys->key
	               : NULL;
}

static bool is_smaller(const struct skv_block_owners *owners, uintptr_t owner, uintptr_t than)
{
	(void)owners;
	return ((const struct skv_parked *)owner)->bytes < ((const struct skv_parked *)than)->bytes;
}

struct skv_parked *skv_parking_find_prefix(const struct skv_parking *k, uint32_t uid, const struct skv_model *m, const struct skv_block_key *keys,
                                           uint32_t n, uint32_t least)
{
	const struct owners owners = {{keys_of, is_smaller}, m, uid};
	uintptr_t owner = 0;

	return skv_block_index_longest(&k->prefixes, &owners.base, keys, n, &owner) < least ? NULL : (struct skv_parked *)owner;
}
