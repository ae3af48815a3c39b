/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parked-prefixes.c - the sealed prefixes among the files of parked sequences.
 *
 * Prefixes on disk are found by the keys of their blocks, like prefixes in memory. A prefix's file contains the block
 * keys, with a tag that proves that they were made with the daemon's secret. A file is removed if its keys were made
 * with another secret, or do not fit into the user's quota of host memory.
 *
 * A prefix's file stays when it has been read: a prefix never changes, so its memory can be freed later without
 * writing.
 */
#include "daemon/parked/parking-priv.h"

#include <openssl/crypto.h>
#include <string.h>
#include "daemon/core/memory/pins.h"

/* Returns whether the prefix's name and block keys match, and the keys were made with this daemon's secret. */
static bool is_ours(const struct skv_parking *k, const struct skv_parked *p)
{
	uint8_t tag[SKV_PARKED_TAG];
	char name[SKV_NAME_MAX];

	if (!p->keys)
		return false;
	k->ops->tag(k->server, (uid_t)p->uid, p->keys->key, p->n_keys, tag);
	skv_prefix_name(&p->keys->key[p->n_keys - 1], name);
	return CRYPTO_memcmp(tag, p->keys->tag, sizeof(tag)) == 0 && strcmp(name, p->name) == 0;
}

bool skv_parking_index_prefix(struct skv_parking *k, struct skv_parked *p)
{
	p->indexed = is_ours(k, p) &&
	             skv_core_pin(k->server->core, (uid_t)p->uid, skv_block_index_bytes(p->n_keys), &p->pinned) == 0 &&
	             skv_block_index_add(&k->prefixes, (uintptr_t)p, p->keys->key, p->n_keys) == 0;
	if (!p->indexed)
		skv_parking_remove(k, p);
	return p->indexed;
}

unsigned skv_parking_index_prefixes(struct skv_server *s, unsigned *ret_gone)
{
	struct skv_parking *k = s->parking;
	unsigned n = 0;

	*ret_gone = 0;
	for (size_t i = 0; k && i < k->files.n; i++) {
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

/* Restricts a search of the index to files of one user and model. */
struct owners {
	struct skv_block_owners base; /* the first member, so that keys_of() gets a pointer to this struct */
	const struct skv_model *model;
	uint32_t uid;
};

/* Returns the block keys of a file. NULL: the file is being removed, or belongs to another user or model. */
static const struct skv_block_key *keys_of(const struct skv_block_owners *owners, uintptr_t owner, uint32_t *ret_n)
{
	const struct owners *x = (const void *)owners;
	const struct skv_parked *p = (const struct skv_parked *)owner;
	const struct skv_wire_model *o = &p->model;
	const struct skv_model *m = x->model;

	*ret_n = p->n_keys;
	return p->uid == x->uid && !p->going && !strcmp(o->name, m->name) && o->rank == m->rank &&
	                       o->n_ranks == m->n_ranks && o->n_layers == m->n_layers && o->n_heads == m->n_heads &&
	                       o->n_kv_heads == m->n_kv_heads && o->head_dim == m->head_dim &&
	                       o->kv_dtype == m->kv_dtype
	               ? p->keys->key
	               : NULL;
}

static bool is_smaller(const struct skv_block_owners *owners, uintptr_t owner, uintptr_t than)
{
	(void)owners;
	return ((const struct skv_parked *)owner)->bytes < ((const struct skv_parked *)than)->bytes;
}

/*
 * Returns the prefix on disk that shares the most of its first blocks with these n keys, at least `least` (1 or more);
 * of several with equally many, that with the smallest file. NULL: there is none.
 */
static struct skv_parked *find(const struct skv_parking *k, uint32_t uid, const struct skv_model *m,
                               const struct skv_block_key *keys, uint32_t n, uint32_t least)
{
	const struct owners owners = {{keys_of, is_smaller}, m, uid};
	uintptr_t owner = 0;

	return skv_block_index_longest(&k->prefixes, &owners.base, keys, n, &owner) < least
	               ? NULL
	               : (struct skv_parked *)owner;
}

bool skv_parking_read_prefix(struct skv_server *s, uid_t uid, const struct skv_model *m,
                             const struct skv_block_key *keys, uint32_t n, uint32_t least, char ret_name[SKV_NAME_MAX])
{
	struct skv_parking *k = s->parking;
	struct skv_parked *p = k ? find(k, (uint32_t)uid, m, keys, n, least) : NULL;
	char why[SKV_TEXT_MAX];

	if (!p || (!p->busy && skv_parking_begin_resume(k, p, m->device, NULL, why) < 0))
		return false;
	strcpy(ret_name, p->name);
	return true;
}

bool skv_parking_sum_prefixes(const struct skv_server *s, bool all, uid_t uid, uint64_t *ret_files, uint64_t *ret_bytes)
{
	if (s->parking)
		skv_files_sum(&s->parking->files, all ? UINT32_MAX : (uint32_t)uid, true, ret_files, ret_bytes);
	return s->parking != NULL;
}
