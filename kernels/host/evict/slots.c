/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/slots.c - slot allocation: slots for new tokens, and the resulting slot metadata.
 *
 * A work item is one kv head of a sequence. These kernels write to no memory that they read. Metadata is read from the
 * last commit's set and written to the other set; rows are read from entries in use as of the last commit and written
 * to free entries. So a step may be repeated, wherever the step was interrupted.
 */
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"

struct slot_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_slot_mapping *slots;
};

/* Returns the sequence of a work item, and its kv head in *ret_h. */
static const struct skv_kseq *item_of(const struct slot_params *c, uint32_t item, uint32_t *ret_h)
{
	*ret_h = item % c->sh->n_kv_heads;
	return &c->batch->seq[item / c->sh->n_kv_heads];
}

static void run_heads(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                      const struct skv_workspace *work, skv_item_fn *fn)
{
	struct slot_params c = {.sh = sh, .batch = batch, .slots = slots};

	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, fn, &c);
}

static const struct skv_slot_meta free_meta = {.pos = SKV_SLOT_FREE};

static void write_free(struct meta_iter *now, uint32_t end)
{
	while (now->u < end)
		*meta_next(now) = free_meta;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * Copies n K rows and the V rows of the same tokens (or rows of minima and of maxima), with their fp8 scales. Neither
 * range of rows crosses a page boundary.
 */
static void copy_pair(const struct skv_shape *sh, const uint8_t *src, uint8_t *dst, uint32_t n)
{
	const size_t v = skv_v_offset(sh), bytes = n * skv_row_bytes(sh), scale = skv_dtype_scale_bytes(sh->dtype);

	memcpy(dst, src, bytes);
	memcpy(dst + v, src + v, bytes);
	if (!scale)
		return;
	memcpy(skv_row_scale(sh, dst), skv_row_scale(sh, src), n * scale);
	memcpy(skv_row_scale(sh, dst + v), skv_row_scale(sh, src + v), n * scale);
}

/*
 * Copies the K and V rows of n slots from slot `from` on to the slots from `to` on. Neither range of slots crosses a
 * page boundary. Rows of pages that are not resident are not copied.
 */
static void copy_rows(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t from, uint32_t to,
                      uint32_t n)
{
	const skv_pte *table = skv_layer_table(sh, s);
	const skv_pte a = table[from / SKV_PAGE_TOKENS], b = table[to / SKV_PAGE_TOKENS];

	if (skv_pte_resident(a) && skv_pte_resident(b))
		copy_pair(sh, skv_key_row(sh, a, h, from), skv_key_row(sh, b, h, to), n);
}

static void copy_bounds(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t from, uint32_t to)
{
	const skv_pte *state = skv_state_table(sh, s);
	const skv_pte a = state[from / SKV_PAGE_TOKENS], b = state[to / SKV_PAGE_TOKENS];

	if (skv_pte_resident(a) && skv_pte_resident(b))
		copy_pair(sh, skv_bounds_row(sh, a, h, from), skv_bounds_row(sh, b, h, to), 1);
}

static void copy_entry(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t tokens, uint32_t from,
                       uint32_t to)
{
	copy_rows(sh, s, h, from * tokens, to * tokens, tokens);
	if (tokens > 1)
		copy_bounds(sh, s, h, from, to);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Stores the metadata of the iterator's next retained entry before `end` in *ret; returns false if there is none. */
static bool next_retained(struct meta_iter *m, uint32_t end, struct skv_slot_meta *ret)
{
	while (m->u < end) {
		*ret = *meta_next(m);
		if (meta_retained(*ret))
			return true;
	}
	return false;
}

static void alloc_item(void *ctx, uint32_t item, int thread)
{
	const struct slot_params *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t tokens = c->slots->granularity, n = entries_of(s->len, tokens), end = entries_of(s->slot_end,
			tokens);
	const bool begins = s->n_q && (s->len - 1) % tokens == 0; /* does the new token begin a new entry? */
	struct meta_iter was = meta_from(c->sh, s, h, !s->set, 0), beyond = meta_from(c->sh, s, h, !s->set, n);
	struct meta_iter now = meta_from(c->sh, s, h, s->set, 0);
	uint32_t latest = 0, at = 0; /* the largest pos, and the entry with it, in which the new token is stored */
	(void)thread;

	for (uint32_t u = 0; u < n; u++) {
		struct skv_slot_meta meta = u < end ? *meta_next(&was) : free_meta;
		if (!meta_retained(meta)) {
			if (next_retained(&beyond, end, &meta))
				copy_entry(c->sh, s, h, tokens, beyond.u - 1, u);
			else
				meta = begins ? (struct skv_slot_meta){.pos = (s->n_tokens - 1) / tokens} : free_meta;
		}
		if (meta_retained(meta) && meta.pos >= latest) {
			latest = meta.pos;
			at = u;
		}
		*meta_next(&now) = meta;
	}
	write_free(&now, skv_pages_of(s->len) * SKV_PAGE_TOKENS / tokens);
	if (s->n_q)
		c->slots->slot[item] = at * tokens + (s->len - 1) % tokens;
}

void ISA(alloc_slots)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                const struct skv_workspace *work)
{
	run_heads(sh, batch, slots, work, alloc_item);
}

static void move_item(void *ctx, uint32_t item, int thread)
{
	const struct slot_params *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t pages = skv_pages_of(s->len), last = pages - 1;
	struct meta_iter was = meta_from(c->sh, s, h, !s->set, 0), now = meta_from(c->sh, s, h, s->set, 0);
	struct skv_slot_meta partial = {0}, end = {0}; /* metadata of the page with the largest pos; of the last page */
	uint32_t at = 0;                          /* entry of the partial page */
	(void)thread;

	for (uint32_t u = 0; u < pages; u++) {
		end = *meta_next(&was);
		*meta_next(&now) = end;
		if (end.pos >= partial.pos) {
			partial = end;
			at = u;
		}
	}
	write_free(&now, pages + 2);
	if (at == last)
		return;
	copy_entry(c->sh, s, h, SKV_PAGE_TOKENS, last, pages);
	copy_entry(c->sh, s, h, SKV_PAGE_TOKENS, at, pages + 1);
	*skv_slot_meta_at(c->sh, s, h, s->set, pages) = end;
	*skv_slot_meta_at(c->sh, s, h, s->set, pages + 1) = partial;
	*skv_slot_meta_at(c->sh, s, h, s->set, at) = *skv_slot_meta_at(c->sh, s, h, s->set, last) = free_meta;
}

void ISA(move_partial_page)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_workspace *work)
{
	run_heads(sh, batch, NULL, work, move_item);
}

static void alloc_prompt_item(void *ctx, uint32_t item, int thread)
{
	const struct slot_params *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t tokens = c->slots->granularity, before = entries_of(s->len - s->n_q, tokens), n = entries_of(s->len, tokens);
	struct meta_iter was = meta_from(c->sh, s, h, !s->set, 0), now = meta_from(c->sh, s, h, s->set, 0);
	(void)thread;

	for (uint32_t u = 0; u < before; u++) {
		const struct skv_slot_meta meta = *meta_next(&was);
		*meta_next(&now) = (struct skv_slot_meta){meta.pos, fabsf(meta.score)};
	}
	for (uint32_t u = before; u < n; u++)
		*meta_next(&now) = (struct skv_slot_meta){.pos = (s->n_tokens - s->len + u * tokens) / tokens};
	write_free(&now, skv_pages_of(s->len) * SKV_PAGE_TOKENS / tokens);
	c->slots->slot[item] = s->len - 1;
}

void ISA(alloc_prompt_slots)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                       const struct skv_workspace *work)
{
	run_heads(sh, batch, slots, work, alloc_prompt_item);
}

static void init_item(void *ctx, uint32_t item, int thread)
{
	const struct slot_params *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const skv_pte *table = skv_layer_table(c->sh, s);
	const uint32_t tokens = c->slots->granularity, n = entries_of(s->slot_end, tokens);
	struct meta_iter now = meta_from(c->sh, s, h, !s->set, 0);
	(void)thread;

	for (uint32_t u = 0; u < n; u++) {
		const bool resident = skv_pte_resident(table[u * tokens / SKV_PAGE_TOKENS]);
		*meta_next(&now) = resident ? (struct skv_slot_meta){.pos = u} : free_meta;
	}
}

void ISA(init_slot_meta)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                        const struct skv_workspace *work)
{
	run_heads(sh, batch, slots, work, init_item);
}
