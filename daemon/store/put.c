/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/put.c - from memory to the store.
 *
 * Blocks go in order, since one is of no use without those before it, and a block's first part last: it is what is looked for, so a
 * job that ends early leaves no block that is found and is not whole.
 */
#include <errno.h>
#include <stdlib.h>
#include "daemon/store/export.h"

/* Parts that are sealed and not sent. */
struct put {
	struct skv_store_values *v;
	struct skv_store_export *export; /* NULL: without NIXL */
	uint8_t *sealed; /* bytes of `room` */
	size_t room, used;
	uint32_t n;
	struct skv_store_bytes keys[SKV_STORE_BATCH_KEYS], values[SKV_STORE_BATCH_KEYS];
	size_t bytes[SKV_STORE_BATCH_KEYS]; /* of the part's value, wherever it is */
	uint8_t records[SKV_STORE_BATCH_KEYS][SKV_STORE_RECORD_BYTES];
};

static int read_part(struct skv_store_values *v, uint32_t block, uint32_t part)
{
	const uint32_t first = part * v->cut.part_pages, end = first + skv_store_cut_pages(&v->cut, part);
	const uint64_t n_pages = (uint64_t)v->what.n_blocks * SKV_STORE_BLOCK_PAGES; /* of a layer */
	struct skv_disk_list list;

	for (uint32_t at = first, n; at < end; at += n) {
		const uint32_t in_layer = at % SKV_STORE_BLOCK_PAGES;
		const uint64_t entry = at / SKV_STORE_BLOCK_PAGES * n_pages + (uint64_t)block * SKV_STORE_BLOCK_PAGES + in_layer;
		int r;

		n = SKV_STORE_BLOCK_PAGES - in_layer < end - at ? SKV_STORE_BLOCK_PAGES - in_layer : end - at;
		skv_disk_list_begin(&list, v->work, entry, entry + n);
		r = skv_disk_list_pages(&list, n, v->ids + at - first);
		if (r < 0)
			return r;
	}
	return skv_disk_pages_read(&v->pages, v->ids, end - first, v->staging);
}

/* Send what is sealed. */
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

/* Its key lies in the job's until all that is sealed is sent. */
static int put_part(struct put *p, const struct skv_store_bytes *key, uint32_t block, uint32_t part)
{
	struct skv_store_values *v = p->v;
	const size_t bytes = skv_store_cut_bytes(&v->cut, part) + SKV_STORE_PART_OVERHEAD;
	uint8_t *value = NULL;
	int r = p->used + bytes > p->room ? send_sealed(p) : 0;

	if (r == 0)
		r = read_part(v, block, part);
	if (r < 0)
		return r;
	if (p->export)
		value = skv_store_export_room(p->export, bytes, key->at);
	p->values[p->n] = value ? (struct skv_store_bytes){p->records[p->n], SKV_STORE_RECORD_BYTES} : (struct skv_store_bytes){p->sealed + p->used, bytes};
	if (!skv_store_part_seal(&v->cipher, &v->cut, v->names[block], part, v->staging, value ? value : p->sealed + p->used) ||
	    (value && !skv_store_export_record(p->export, v, block, part, value, bytes, p->records[p->n])))
		return skv_disk_refuse(v->work, -ENOTRECOVERABLE, "OpenSSL does not encrypt");
	p->keys[p->n] = *key;
	p->bytes[p->n++] = bytes;
	p->used += bytes;
	return skv_disk_progress(v->work, 0);
}

/* Parts from number `first` on: which of them has the store not? */
static int put_some(struct put *p, uint64_t first, uint32_t n)
{
	struct skv_store_values *v = p->v;
	const uint32_t n_parts = v->cut.n_parts;
	int r;

	for (uint32_t i = 0; i < n; i++)
		skv_store_values_key(v, i, (uint32_t)((first + i) / n_parts), n_parts - 1 - (uint32_t)((first + i) % n_parts));
	r = skv_store_values_exist(v, n);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		if (v->status[i] == 0)
			r = put_part(p, &v->keys[i], (uint32_t)((first + i) / n_parts), n_parts - 1 - (uint32_t)((first + i) % n_parts));
	if (r == 0)
		r = send_sealed(p);
	return r < 0 || !p->export ? r : skv_store_export_clean(p->export, v); /* by now keys are free */
}

static int put_all(struct put *p)
{
	struct skv_store_values *v = p->v;
	const uint64_t n = (uint64_t)v->what.n_blocks * v->cut.n_parts;
	const size_t largest = skv_store_cut_bytes(&v->cut, 0) + SKV_STORE_PART_OVERHEAD;
	int r = 0;

	p->room = largest > SKV_STORE_CALL_BYTES ? largest : SKV_STORE_CALL_BYTES;
	p->sealed = malloc(p->room);
	if (!p->sealed)
		return skv_disk_refuse(v->work, -ENOMEM, "no memory for values of the prefix store");
	r = skv_store_export_begin(v, &p->export);
	for (uint64_t first = 0; r == 0 && first < n; first += SKV_STORE_BATCH_KEYS) {
		r = put_some(p, first, n - first < SKV_STORE_BATCH_KEYS ? (uint32_t)(n - first) : SKV_STORE_BATCH_KEYS);
		if (r == 0)
			r = skv_disk_progress(v->work, 0);
	}
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
