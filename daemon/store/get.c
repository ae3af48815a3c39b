/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/get.c - finds blocks of a sealed prefix in the prefix store (FIND), and reads them into memory (GET).
 *
 * No other process uses the pages of a GET job until the job has reported how many blocks are valid. So each part is
 * written to its pages as soon as it is verified, even if its block turns out to be incomplete.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/store/import.h"

#define RETRY_MS 120u /* the connection is not retried for 100 ms after a failure (conn.h) */

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
		if (!found && v->status[i] == 0) /* block i is missing: errors of keys after it make no difference */
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
	struct skv_store_part_number at[SKV_STORE_BATCH_KEYS]; /* parts that the current call reads */
	struct skv_store_part_number next; /* the first part that is not known to be valid */
	/* of each part of the call: it is valid and in its pages; its record was found, but its value not read yet */
	bool right[SKV_STORE_BATCH_KEYS], unknown[SKV_STORE_BATCH_KEYS];
	struct skv_store_import import; /* records that the call has found */
	int error; /* error of the job's memory or of the daemon's socket, not of the store */
	bool ends; /* a part is missing: no further call is made */
};

static void take_part(struct get *g, uint32_t i, const void *value, size_t bytes)
{
	struct skv_store_values *v = g->v;
	const uint32_t block = g->at[i].block, part = g->at[i].part;

	skv_store_cut_to(&v->cut, block);
	if (g->error < 0 || !value || !skv_store_part_open(&v->cipher, &v->cut, v->names[block], part, value, bytes, v->staging))
		return;
	g->error = skv_store_values_write_part(v, part);
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

/* Receives a value of the store, which is a part or the record of a part. */
static void take(void *ctx, uint32_t i, const void *value, size_t bytes)
{
	struct get *g = ctx;
	struct skv_store_wanted *w = &g->import.wanted[g->import.n];

	if (!value || !*g->v->what.nixl || !skv_store_is_record(value, bytes)) {
		take_part(g, i, value, bytes);
		return;
	}
	*w = (struct skv_store_wanted){.i = i};
	skv_store_cut_to(&g->v->cut, g->at[i].block);
	g->unknown[i] = skv_store_record_open(&g->v->cipher, &g->v->cut, g->v->names[g->at[i].block], g->at[i].part, value, bytes, &w->record);
	g->import.n += g->unknown[i];
}

/* Returns whether the store has an invalid value for key i; also one of another type (-EBADMSG) or size (-EPROTO). */
static bool is_wrong(const struct get *g, uint32_t i)
{
	const int status = g->v->status[i];

	return status == 1 ? !g->right[i] && !g->unknown[i] : status == -EBADMSG || status == -EPROTO;
}

/*
 * Deletes invalid values of the call's n keys from the store. A value that is too large ends the connection, so all
 * keys after it fail with -EPROTO, too. So of the keys with -EPROTO only the first is deleted, after the delay before
 * the connection can be opened again. Returns true if there were invalid values and they are deleted.
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

/* Sets the keys of the parts that the next call reads, as many as fit into a call. Returns their number. */
static uint32_t next_parts(struct get *g)
{
	struct skv_store_values *v = g->v;
	struct skv_store_part_number at = g->next;
	size_t bytes = 0;
	uint32_t n = 0;

	for (; at.block < v->what.n_blocks && n < SKV_STORE_BATCH_KEYS; at = (struct skv_store_part_number){at.block + 1, 0}) {
		skv_store_cut_to(&v->cut, at.block);
		for (; at.part < v->cut.n_parts && n < SKV_STORE_BATCH_KEYS; at.part++) {
			bytes += skv_store_cut_bytes(&v->cut, at.part);
			if (n > 0 && bytes > SKV_STORE_CALL_BYTES)
				return n;
			skv_store_values_key(v, n, at.block, at.part);
			g->right[n] = g->unknown[n] = false;
			g->at[n++] = at;
		}
	}
	return n;
}

/* Advances g->next after a call whose first i parts are valid. */
static void take_right(struct get *g, uint32_t i)
{
	struct skv_store_values *v = g->v;

	if (i == 0)
		return;
	g->next = g->at[i - 1];
	skv_store_cut_to(&v->cut, g->next.block);
	if (++g->next.part == v->cut.n_parts)
		g->next = (struct skv_store_part_number){g->next.block + 1, 0};
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
	g->import.n = 0;
	r = skv_store_get(v->store, v->keys, n, left_ms, take, g, v->status);
	if (r < 0)
		r = skv_store_values_failed(v, r);
	imported = g->error < 0 ? 0 : skv_store_import_read(v, &g->import, take_imported, g);
	if (g->error < 0)
		return g->error;
	deleted = delete_wrong(g, n);
	while (i < n && g->right[i])
		i++;
	take_right(g, i);
	g->ends = i < n;
	if (imported < 0)
		return imported;
	if (g->ends && (v->status[i] >= 0 || (is_wrong(g, i) && deleted)))
		return 0; /* part i does not exist or is invalid: errors of keys after it make no difference */
	return r;
}

static int get_all(struct get *g)
{
	struct skv_store_values *v = g->v;
	int r = 0;

	while (r == 0 && !g->ends && g->next.block < v->what.n_blocks)
		r = get_some(g, next_parts(g));
	v->work->n_blocks = g->next.block;
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

static int put_entries(struct skv_store_values *v, const struct skv_seqmem_layout *l, uint32_t table, uint32_t page, const skv_pte *entries, uint32_t n)
{
	return put_memory(v, l->table + ((uint64_t)table * l->max_pages + page) * sizeof(*entries), entries, n * sizeof(*entries));
}

/* Writes the page table entries of the pages whose first bytes belong to this block. */
static int put_pages(struct skv_store_values *v, const struct skv_seqmem_layout *l, uint32_t block)
{
	const struct skv_store_piece *piece = v->cut.piece;
	int r = 0;

	skv_store_cut_to(&v->cut, block);
	for (uint32_t i = 0, n; r == 0 && i < v->cut.n_pieces; i += n) {
		n = 1;
		if (piece[i].offset)
			continue;
		while (i + n < v->cut.n_pieces && n < SKV_STORE_RUN && piece[i + n].table == piece[i].table && piece[i + n].listed == piece[i].listed + n)
			n++;
		r = skv_store_values_ids(v, i, n);
		for (uint32_t k = 0; k < n; k++)
			v->ids[k] = skv_pte_make(SKV_PTE_PRIVATE, v->ids[k]);
		if (r == 0)
			r = put_entries(v, l, piece[i].table, piece[i].page, v->ids, n);
	}
	return r;
}

/* Writes page table entries without a page (holes) for the K and V rows that the layer has compressed into records. */
static int put_holes(struct skv_store_values *v, const struct skv_seqmem_layout *l, uint32_t layer)
{
	skv_pte hole[SKV_STORE_BLOCK_PAGES];
	const uint32_t end = v->work->n_blocks * SKV_STORE_BLOCK_PAGES;
	uint32_t page = v->what.made.form[layer].kind ? v->what.made.form[layer].first : end;
	int r = 0;

	for (uint32_t i = 0; i < SKV_STORE_BLOCK_PAGES; i++)
		hole[i] = skv_pte_make(SKV_PTE_HOLE, 0);
	for (uint32_t n; r == 0 && page < end; page += n) {
		n = end - page < SKV_STORE_BLOCK_PAGES ? end - page : SKV_STORE_BLOCK_PAGES;
		r = put_entries(v, l, skv_table(l->n_layers, SKV_PAGES_KV, layer), page, hole, n);
	}
	return r;
}

/* Writes the token ids of the blocks that were read, and -1 after them: the sequence has no next input token. */
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

/* Writes the sequence memory. Its header is written last, since the header's commit word makes it a valid sequence. */
static int commit(struct skv_store_values *v)
{
	const uint32_t n_blocks = v->work->n_blocks;
	struct skv_seqmem *s = calloc(1, sizeof(*s));
	struct skv_seqmem_layout l;
	int r = s ? 0 : skv_disk_refuse(v->work, -ENOMEM, "no memory for a sequence's memory");

	skv_seqmem_layout(&v->model, v->work->job->max_tokens, &l);
	for (uint32_t block = 0; r == 0 && block < n_blocks; block++) {
		r = put_pages(v, &l, block);
		if (r == 0)
			r = skv_disk_progress(v->work, 0);
	}
	for (uint32_t layer = 0; r == 0 && layer < l.n_layers; layer++)
		r = put_holes(v, &l, layer);
	if (r == 0)
		r = put_ids(v, &l);
	if (r == 0) {
		skv_seqmem_init_header(s, &l);
		skv_seqmem_begin_with(s, n_blocks * SKV_BLOCK_TOKENS, l.n_layers, &v->what.made);
		r = put_memory(v, 0, s, sizeof(*s));
	}
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
