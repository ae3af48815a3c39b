/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/put.c - sends blocks of a sealed prefix from memory to the prefix store (PUT).
 *
 * Blocks are sent in order, because a block is useless without all blocks before it. Of each block, the first part is
 * sent last. Other hosts search for the first part only (FIND), so if a job ends early, they find no incomplete block.
 */
#include <errno.h>
#include <stdlib.h>
#include "daemon/store/export.h"

/* A PUT job, with the parts that are sealed but not sent yet. */
struct put {
	struct skv_store_values *v;
	struct skv_store_export *export; /* NULL: without NIXL */
	uint8_t *sealed; /* buffer of `room` bytes for sealed values, of which `used` are in use */
	size_t room, used;
	uint32_t n;
	struct skv_store_bytes keys[SKV_STORE_BATCH_KEYS], values[SKV_STORE_BATCH_KEYS];
	size_t bytes[SKV_STORE_BATCH_KEYS]; /* size of each part's value, whether in the store or in the window */
	uint8_t records[SKV_STORE_BATCH_KEYS][SKV_STORE_RECORD_BYTES];
};

/* Sends all sealed parts to the store by one call. */
static int send_sealed(struct put *p)
{
	struct skv_store_values *v = p->v;
	const uint32_t left_ms = skv_store_values_left_ms(v), n = p->n;
	int status[SKV_STORE_BATCH_KEYS], r, said;
	uint64_t bytes = 0;

	if (n == 0)
		return 0;
	p->n = 0;
	p->used = 0;
	if (!left_ms)
		return skv_store_values_late(v);
	r = skv_store_set(v->store, p->keys, p->values, n, v->what.ttl_ms, false, left_ms, status);
	for (uint32_t i = 0; i < n; i++)
		bytes += status[i] == 1 ? p->bytes[i] : 0;
	said = skv_disk_progress(v->work, bytes);
	return r < 0 ? skv_store_values_failed(v, r) : said;
}

/* Seals a part of the current block; sends the parts sealed before if the buffer is full. `key` must stay valid. */
static int put_part(struct put *p, const struct skv_store_bytes *key, uint32_t block, uint32_t part)
{
	struct skv_store_values *v = p->v;
	const size_t bytes = skv_store_cut_bytes(&v->cut, part) + SKV_STORE_PART_OVERHEAD;
	uint8_t *value = NULL;
	int r = p->used + bytes > p->room ? send_sealed(p) : 0;

	if (r == 0)
		r = skv_store_values_read_part(v, part);
	if (r < 0)
		return r;
	if (p->export)
		value = skv_store_export_room(p->export, bytes, key->at);
	p->values[p->n] = value ? (struct skv_store_bytes){p->records[p->n], SKV_STORE_RECORD_BYTES} : (struct skv_store_bytes){p->sealed + p->used, bytes};
	if (!skv_store_part_seal(&v->cipher, &v->cut, v->names[block], part, v->staging, value ? value : p->sealed + p->used) ||
	    (value && !skv_store_export_record(p->export, v, block, part, value, bytes, p->records[p->n])))
		return skv_disk_refuse(v->work, -ENOTRECOVERABLE, "OpenSSL failed to encrypt a value");
	p->keys[p->n] = *key;
	p->bytes[p->n++] = bytes;
	p->used += bytes;
	return skv_disk_progress(v->work, 0);
}

/* Sends those of n parts that the store does not have. v->keys have been set to the keys of these parts. */
static int put_some(struct put *p, const struct skv_store_part_number *at, uint32_t n)
{
	struct skv_store_values *v = p->v;
	int r = skv_store_values_exist(v, n);

	for (uint32_t i = 0; r == 0 && i < n; i++)
		if (v->status[i] == 0) {
			skv_store_cut_to(&v->cut, at[i].block);
			r = put_part(p, &v->keys[i], at[i].block, at[i].part);
		}
	if (r == 0)
		r = send_sealed(p);
	if (r == 0 && p->export)
		r = skv_store_export_clean(p->export, v); /* this reuses v->keys, which are not needed any more */
	return r < 0 ? r : skv_disk_progress(v->work, 0);
}

static int put_blocks(struct put *p)
{
	struct skv_store_part_number at[SKV_STORE_BATCH_KEYS];
	struct skv_store_values *v = p->v;
	uint32_t n = 0;
	int r = 0;

	for (uint32_t block = 0; r == 0 && block < v->what.n_blocks; block++) {
		skv_store_cut_to(&v->cut, block);
		for (uint32_t part = v->cut.n_parts; r == 0 && part-- > 0;) {
			at[n] = (struct skv_store_part_number){block, part};
			skv_store_values_key(v, n++, block, part);
			if (n < SKV_STORE_BATCH_KEYS && (part > 0 || block + 1 < v->what.n_blocks))
				continue;
			r = put_some(p, at, n);
			n = 0;
			skv_store_cut_to(&v->cut, block);
		}
	}
	return r;
}

static int put_all(struct put *p)
{
	struct skv_store_values *v = p->v;
	const size_t largest = v->cut.most_bytes + SKV_STORE_PART_OVERHEAD;
	int r;

	p->room = largest > SKV_STORE_CALL_BYTES ? largest : SKV_STORE_CALL_BYTES;
	p->sealed = malloc(p->room);
	if (!p->sealed)
		return skv_disk_refuse(v->work, -ENOMEM, "no memory for values of the prefix store");
	r = skv_store_export_begin(v, &p->export);
	if (r == 0)
		r = put_blocks(p);
	free(p->sealed);
	return r;
}

int skv_store_put_job(struct skv_disk_work *work)
{
	struct put p = {0};
	int r = skv_store_values_begin_with_pages(work, &p.v);

	if (r < 0)
		return r;
	r = put_all(&p);
	if (p.v->gave_up && work->bytes > 0)
		r = 0;
	skv_store_values_end(p.v);
	return r;
}
