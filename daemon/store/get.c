/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/get.c - what the store has, and from there to memory.
 *
 * Pages are fresh, and nobody sees them before the job says how many blocks are right. So those of a part are written as soon as it was
 * found right itself, whatever becomes of its block.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/store/import.h"

#define RETRY_MS 120u /* a connection that failed is not tried again for 100 (conn.h) */

int skv_store_find_job(struct skv_disk_work *work)
{
	struct skv_store_values *v;
	int r = skv_store_values_begin(work, &v);
	bool found = r == 0;

	if (r < 0)
		return r;
	while (r == 0 && found && work->n_blocks < v->what.n_blocks) {
		const uint32_t left = v->what.n_blocks - work->n_blocks, n = left < SKV_STORE_BATCH_KEYS ? left : SKV_STORE_BATCH_KEYS;
		uint32_t i = 0;

		for (; i < n; i++) {
			skv_store_values_key(v, i, work->n_blocks + i, 0);
			v->status[i] = -ETIMEDOUT;
		}
		r = skv_store_values_exist(v, n);
		for (i = 0; i < n && v->status[i] == 1; i++)
			;
		work->n_blocks += i;
		found = i == n;
		if (!found && v->status[i] == 0) /* others may have failed: it makes no difference */
			r = 0;
		if (r == 0)
			r = skv_disk_progress(work, 0);
	}
	if (v->gave_up && work->n_blocks > 0)
		r = 0;
	skv_store_values_end(v);
	return r;
}

/* ---- parts ----------------------------------------------------------------------------------- */

struct get {
	struct skv_store_values *v;
	uint64_t first; /* of the call's parts: they are numbered on from block to block */
	bool right[SKV_STORE_BATCH_KEYS], unknown[SKV_STORE_BATCH_KEYS];
	struct skv_store_import import; /* its records */
	int error; /* of the memory, not of the store */
	uint64_t n_right; /* parts from the first one on */
	bool ends; /* with the one after these */
};

static int write_part(struct skv_store_values *v, uint32_t block, uint32_t part)
{
	const uint64_t at = (uint64_t)block * v->cut.n_pages + (uint64_t)part * v->cut.part_pages;
	const uint32_t n = skv_store_cut_pages(&v->cut, part);
	struct skv_disk_list list;
	int r;

	skv_disk_list_begin(&list, v->work, at, at + n);
	r = skv_disk_list_pages(&list, n, v->ids);
	return r < 0 ? r : skv_disk_pages_write(&v->pages, v->ids, n, v->staging);
}

static uint32_t block_of(const struct get *g, uint32_t i)
{
	return (uint32_t)((g->first + i) / g->v->cut.n_parts);
}

static uint32_t part_of(const struct get *g, uint32_t i)
{
	return (uint32_t)((g->first + i) % g->v->cut.n_parts);
}

static void take_part(struct get *g, uint32_t i, const void *value, size_t bytes)
{
	struct skv_store_values *v = g->v;
	const uint32_t block = block_of(g, i), part = part_of(g, i);

	if (g->error < 0 || !value || !skv_store_part_open(&v->cipher, &v->cut, v->names[block], part, value, bytes, v->staging))
		return;
	g->error = write_part(v, block, part);
	if (g->error < 0)
		return;
	g->right[i] = true;
	g->error = skv_disk_progress(v->work, bytes);
}

static void take_imported(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct get *g = ctx;

	g->unknown[i] = false;
	take_part(g, i, value, bytes);
	g->v->work->n_nixl += g->right[i];
	g->v->work->nixl_bytes += g->right[i] ? bytes : 0;
}

/* Of the store: a part, or where it is. */
static void take(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct get *g = ctx;
	struct skv_store_wanted *w = &g->import.wanted[g->import.n];

	if (!value || !*g->v->what.nixl || !skv_store_is_record(value, bytes)) {
		take_part(g, i, value, bytes);
		return;
	}
	*w = (struct skv_store_wanted){.i = i};
	g->unknown[i] = skv_store_record_open(&g->v->cipher, &g->v->cut, g->v->names[block_of(g, i)], part_of(g, i), value, bytes, &w->record);
	g->import.n += g->unknown[i];
}

/* What is under a key may be no value at all (-EBADMSG), or too large for one (-EPROTO). */
static bool is_wrong(const struct get *g, uint32_t i)
{
	const int status = g->v->status[i];

	return status == 1 ? !g->right[i] && !g->unknown[i] : status == -EBADMSG || status == -EPROTO;
}

/*
 * Values that are not what was sealed leave the store. One that is too large ends the connection, as other replies that were not asked for:
 * it is the first one of those that failed so, and the connection is not made again for a moment. True: they are gone.
 */
static bool delete_wrong(struct get *g, uint32_t n)
{
	struct skv_store_values *v = g->v;
	struct skv_store_bytes wrong[SKV_STORE_BATCH_KEYS];
	int status[SKV_STORE_BATCH_KEYS];
	uint32_t n_wrong = 0, left_ms = skv_store_values_left_ms(v);
	bool too_large = false;

	for (uint32_t i = 0; i < n; i++)
		if (is_wrong(g, i) && !(too_large && v->status[i] == -EPROTO)) {
			too_large |= v->status[i] == -EPROTO;
			wrong[n_wrong++] = v->keys[i];
		}
	if (too_large) {
		(void)poll(NULL, 0, (int)(left_ms < RETRY_MS ? left_ms : RETRY_MS));
		left_ms = skv_store_values_left_ms(v);
	}
	return n_wrong > 0 && left_ms > 0 && skv_store_del(v->store, wrong, n_wrong, left_ms, status) == 0;
}

static int get_some(struct get *g, uint32_t n)
{
	struct skv_store_values *v = g->v;
	const uint32_t left_ms = skv_store_values_left_ms(v);
	uint32_t i = 0;
	bool deleted;
	int r, imported;

	if (!left_ms)
		return skv_store_values_late(v);
	for (; i < n; i++) {
		skv_store_values_key(v, i, block_of(g, i), part_of(g, i));
		g->right[i] = g->unknown[i] = false;
	}
	g->import.n = 0;
	r = skv_store_get(v->store, v->keys, n, left_ms, take, g, v->status);
	if (r < 0)
		r = skv_store_values_failed(v, r);
	imported = g->error < 0 ? 0 : skv_store_import_read(v, &g->import, take_imported, g);
	if (g->error < 0)
		return g->error;
	deleted = delete_wrong(g, n);
	for (i = 0; i < n && g->right[i]; i++)
		;
	g->n_right = g->first + i;
	g->ends = i < n;
	if (imported < 0)
		return imported;
	if (g->ends && (v->status[i] >= 0 || (is_wrong(g, i) && deleted)))
		return 0; /* there is no such part, whatever became of those behind it */
	return r;
}

static int get_all(struct get *g)
{
	struct skv_store_values *v = g->v;
	const uint64_t n = (uint64_t)v->what.n_blocks * v->cut.n_parts;
	const size_t part = skv_store_cut_bytes(&v->cut, 0), fit = part < SKV_STORE_CALL_BYTES ? SKV_STORE_CALL_BYTES / part : 1;
	const uint32_t most = fit < SKV_STORE_BATCH_KEYS ? (uint32_t)fit : SKV_STORE_BATCH_KEYS;
	int r = 0;

	for (; r == 0 && !g->ends && g->first < n; g->first = g->n_right)
		r = get_some(g, n - g->first < most ? (uint32_t)(n - g->first) : most);
	v->work->n_blocks = (uint32_t)(g->n_right / v->cut.n_parts);
	return v->gave_up && v->work->n_blocks > 0 ? 0 : r;
}

/* ---- the sequence ---------------------------------------------------------------------------- */

static int put_memory(struct skv_store_values *v, uint64_t at, const void *from, size_t bytes)
{
	const ssize_t n = pwrite(v->work->fds[SKV_DISK_FD_SEQ], from, bytes, (off_t)at);

	if (n == (ssize_t)bytes)
		return 0;
	return skv_disk_refuse(v->work, n < 0 ? -errno : -EIO, "writing the memory of the sequence: %s",
	                       n < 0 ? strerror(errno) : "it ends too early");
}

static int put_entries(struct skv_store_values *v, const struct skv_seqmem_layout *l, uint32_t layer, skv_pte *entries)
{
	const uint32_t n = v->work->n_blocks * SKV_STORE_BLOCK_PAGES;
	struct skv_disk_list list;

	for (uint32_t i = 0; i < n; i += SKV_STORE_BLOCK_PAGES) {
		const uint64_t at = (uint64_t)i / SKV_STORE_BLOCK_PAGES * v->cut.n_pages + (uint64_t)layer * SKV_STORE_BLOCK_PAGES;
		int r;

		skv_disk_list_begin(&list, v->work, at, at + SKV_STORE_BLOCK_PAGES);
		r = skv_disk_list_pages(&list, SKV_STORE_BLOCK_PAGES, entries + i);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < n; i++)
		entries[i] = skv_pte_make(SKV_PTE_PRIVATE, entries[i]);
	return put_memory(v, l->table + (uint64_t)skv_table(l->n_layers, SKV_PAGES_KV, layer) * l->max_pages * sizeof(*entries), entries,
	                  n * sizeof(*entries));
}

/* And behind them that there is no token to go on from. */
static int put_ids(struct skv_store_values *v, const struct skv_seqmem_layout *l)
{
	const uint64_t from = sizeof(v->what) + v->what.n_blocks * sizeof(*v->names);
	const int32_t none = -1;
	int32_t ids[SKV_BLOCK_TOKENS];
	uint64_t at = 0;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < v->work->n_blocks; i++, at += sizeof(ids)) {
		if (pread(v->work->fds[SKV_DISK_FD_STORE], ids, sizeof(ids), (off_t)(from + at)) != (ssize_t)sizeof(ids))
			return skv_disk_refuse(v->work, -EIO, "the token ids of block %u cannot be read", i);
		r = put_memory(v, l->tokens + at, ids, sizeof(ids));
	}
	return r < 0 ? r : put_memory(v, l->tokens + at, &none, sizeof(none));
}

/* It becomes a sequence with its header, which comes last. */
static int commit(struct skv_store_values *v)
{
	const uint32_t n_blocks = v->work->n_blocks;
	skv_pte *entries = malloc((n_blocks + UINT64_C(1)) * SKV_STORE_BLOCK_PAGES * sizeof(*entries));
	struct skv_seqmem *s = calloc(1, sizeof(*s));
	struct skv_seqmem_layout l;
	struct skv_model m;
	int r = entries && s ? 0 : skv_disk_refuse(v->work, -ENOMEM, "no memory for a sequence's");

	skv_wire_to_model(&m, &v->work->job->model);
	skv_seqmem_layout(&m, v->work->job->max_tokens, &l);
	for (uint32_t layer = 0; r == 0 && n_blocks > 0 && layer < l.n_layers; layer++) {
		r = put_entries(v, &l, layer, entries);
		if (r == 0)
			r = skv_disk_progress(v->work, 0);
	}
	if (r == 0)
		r = put_ids(v, &l);
	if (r == 0) {
		skv_seqmem_init_header(s, &l);
		skv_seqmem_begin_with(s, n_blocks * SKV_BLOCK_TOKENS);
		r = put_memory(v, 0, s, sizeof(*s));
	}
	free(entries);
	free(s);
	return r;
}

int skv_store_get_job(struct skv_disk_work *work)
{
	struct get *g = calloc(1, sizeof(*g));
	int r = g ? skv_store_values_begin_with_pages(work, &g->v) : skv_disk_refuse(work, -ENOMEM, "no memory for a job of the prefix store");

	if (r == 0) {
		r = get_all(g);
		if (r == 0)
			r = commit(g->v);
		skv_store_values_end(g->v);
	}
	free(g);
	return r;
}
