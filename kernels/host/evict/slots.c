/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/slots.c - where a layer that keeps slots has its tokens: room for new ones, and the notes that say so.
 *
 * An item is one kv head of a sequence. Nothing that is read here is written: notes are read of the last commit's set
 * and written to the other one, rows are read of units that live as of that commit and written to those that do not.
 * So it does not matter how often a step is begun anew, nor where it broke off.
 */
#include "kernels/host/evict/slot-meta.h"

struct call {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_slots *slots;
};

/* An item's sequence and kv head. */
static const struct skv_kseq *item_of(const struct call *c, uint32_t item, uint32_t *ret_h)
{
	*ret_h = item % c->sh->n_kv_heads;
	return &c->batch->seq[item / c->sh->n_kv_heads];
}

static void run_heads(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slots *slots,
                      const struct skv_work *work, skv_item_fn *fn)
{
	struct call c = {.sh = sh, .batch = batch, .slots = slots};

	skv_run(notes_threads(sh, batch, work), batch->n * sh->n_kv_heads, fn, &c);
}

static const struct skv_note free_note = {.pos = SKV_NOTE_FREE};

static void write_free(struct notes *now, uint32_t end)
{
	while (now->u < end)
		*notes_next(now) = free_note;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* n K rows and their V rows, from slot `from` on to slot `to` on, neither leaving its page. */
static void copy_rows(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t from, uint32_t to,
                      uint32_t n)
{
	const skv_pte *table = skv_layer_table(sh, s);
	const skv_pte a = table[from / SKV_PAGE_TOKENS], b = table[to / SKV_PAGE_TOKENS];
	const size_t row = skv_row_bytes(sh);

	if (!skv_pte_resident(a) || !skv_pte_resident(b))
		return;
	const uint8_t *src = skv_key_row(sh, a, h, from);
	uint8_t *dst = skv_key_row(sh, b, h, to);
	memcpy(dst, src, n * row);
	memcpy(dst + skv_v_offset(sh), src + skv_v_offset(sh), n * row);
}

static void copy_bounds(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t from, uint32_t to)
{
	const skv_pte *state = skv_state_table(sh, s);
	const skv_pte a = state[from / SKV_PAGE_TOKENS], b = state[to / SKV_PAGE_TOKENS];

	if (!skv_pte_resident(a) || !skv_pte_resident(b))
		return;
	const uint8_t *src = skv_bounds_row(sh, a, h, from);
	uint8_t *dst = skv_bounds_row(sh, b, h, to);
	memcpy(dst, src, skv_row_bytes(sh));
	memcpy(dst + skv_v_offset(sh), src + skv_v_offset(sh), skv_row_bytes(sh));
}

static void copy_unit(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t unit, uint32_t from,
                      uint32_t to)
{
	copy_rows(sh, s, h, from * unit, to * unit, unit);
	if (unit > 1)
		copy_bounds(sh, s, h, from, to);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The next unit that lives, of those before `end`; false: there is none. */
static bool next_alive(struct notes *n, uint32_t end, struct skv_note *ret)
{
	while (n->u < end) {
		*ret = *notes_next(n);
		if (note_lives(*ret))
			return true;
	}
	return false;
}

static void place_item(void *ctx, uint32_t item, int thread)
{
	const struct call *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t unit = c->slots->unit, units = units_of(s->len, unit), extent = units_of(s->extent, unit);
	const bool begins = s->n_q && (s->len - 1) % unit == 0;
	struct notes was = notes_from(c->sh, s, h, !s->set, 0), beyond = notes_from(c->sh, s, h, !s->set, units);
	struct notes now = notes_from(c->sh, s, h, s->set, 0);
	uint32_t latest = 0, at = 0; /* the largest pos, and where: what has or gets the new token */
	(void)thread;

	for (uint32_t u = 0; u < units; u++) {
		struct skv_note note = u < extent ? *notes_next(&was) : free_note;
		if (!note_lives(note)) {
			if (next_alive(&beyond, extent, &note))
				copy_unit(c->sh, s, h, unit, beyond.u - 1, u);
			else
				note = begins ? (struct skv_note){.pos = (s->all - 1) / unit} : free_note;
		}
		if (note_lives(note) && note.pos >= latest) {
			latest = note.pos;
			at = u;
		}
		*notes_next(&now) = note;
	}
	write_free(&now, skv_pages_of(s->len) * SKV_PAGE_TOKENS / unit);
	if (s->n_q)
		c->slots->slot[item] = at * unit + (s->len - 1) % unit;
}

void ISA(place)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slots *slots,
                const struct skv_work *work)
{
	run_heads(sh, batch, slots, work, place_item);
}

static void lift_item(void *ctx, uint32_t item, int thread)
{
	const struct call *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t units = skv_pages_of(s->len), last = units - 1;
	struct notes was = notes_from(c->sh, s, h, !s->set, 0), now = notes_from(c->sh, s, h, s->set, 0);
	struct skv_note top = {0}, end = {0};
	uint32_t at = 0;
	(void)thread;

	for (uint32_t u = 0; u < units; u++) {
		end = *notes_next(&was);
		*notes_next(&now) = end;
		if (end.pos >= top.pos) {
			top = end;
			at = u;
		}
	}
	write_free(&now, units + 2);
	if (at == last)
		return;
	copy_unit(c->sh, s, h, SKV_PAGE_TOKENS, last, units);
	copy_unit(c->sh, s, h, SKV_PAGE_TOKENS, at, units + 1);
	*skv_note_at(c->sh, s, h, s->set, units) = end;
	*skv_note_at(c->sh, s, h, s->set, units + 1) = top;
	*skv_note_at(c->sh, s, h, s->set, at) = *skv_note_at(c->sh, s, h, s->set, last) = free_note;
}

void ISA(lift)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_work *work)
{
	run_heads(sh, batch, NULL, work, lift_item);
}

static void place_prompt_item(void *ctx, uint32_t item, int thread)
{
	const struct call *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const uint32_t unit = c->slots->unit, before = units_of(s->len - s->n_q, unit), units = units_of(s->len, unit);
	struct notes was = notes_from(c->sh, s, h, !s->set, 0), now = notes_from(c->sh, s, h, s->set, 0);
	(void)thread;

	for (uint32_t u = 0; u < before; u++) {
		const struct skv_note note = *notes_next(&was);
		*notes_next(&now) = (struct skv_note){note.pos, fabsf(note.value)};
	}
	for (uint32_t u = before; u < units; u++)
		*notes_next(&now) = (struct skv_note){.pos = (s->all - s->len + u * unit) / unit};
	write_free(&now, skv_pages_of(s->len) * SKV_PAGE_TOKENS / unit);
	c->slots->slot[item] = s->len - 1;
}

void ISA(place_prompt)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slots *slots,
                       const struct skv_work *work)
{
	run_heads(sh, batch, slots, work, place_prompt_item);
}

static void note_resident_item(void *ctx, uint32_t item, int thread)
{
	const struct call *c = ctx;
	uint32_t h;
	const struct skv_kseq *s = item_of(c, item, &h);
	const skv_pte *table = skv_layer_table(c->sh, s);
	const uint32_t unit = c->slots->unit, units = units_of(s->extent, unit);
	struct notes now = notes_from(c->sh, s, h, !s->set, 0);
	(void)thread;

	for (uint32_t u = 0; u < units; u++) {
		const bool there = skv_pte_resident(table[u * unit / SKV_PAGE_TOKENS]);
		*notes_next(&now) = there ? (struct skv_note){.pos = u} : free_note;
	}
}

void ISA(note_resident)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slots *slots,
                        const struct skv_work *work)
{
	run_heads(sh, batch, slots, work, note_resident_item);
}
