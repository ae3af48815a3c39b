/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/slot-model.h"

#include <check.h>
#include <math.h>
#include <string.h>
#include "tests/ref/attention.h"

#define T SKV_PAGE_TOKENS

uint32_t slot_content(uint32_t i, uint32_t h, uint32_t pos, bool v)
{
	return (pos * 7 + i * 31 + h * 101 + v * 59) % SLOT_ROWS;
}

uint32_t slot_units(const struct slot_rig *r, uint32_t slots)
{
	return r->unit == 1 ? slots : skv_pages_of(slots);
}

void slot_read_pool(const struct slot_rig *r, uint8_t *to)
{
	case_from(&r->c, to, r->c.sh.pool, r->c.pool_pages * r->c.sh.page_bytes);
}

/* A kv head's K or V row of a slot, in a page of `table`, in a copy of the pool. */
static uint8_t *row_at(const struct slot_rig *r, uint8_t *pool, const skv_pte *table, uint32_t h, uint32_t slot, bool v)
{
	const struct skv_shape *sh = &r->c.sh;

	return pool + skv_pte_id(table[slot / T]) * sh->page_bytes +
	       ((v * sh->n_kv_heads + h) * T + slot % T) * sh->head_dim * skv_dtype_bytes(sh->dtype);
}

/* The unit (scale) of such a row. */
static float unit_at(const struct slot_rig *r, const uint8_t *pool, const skv_pte *table, uint32_t h, uint32_t slot, bool v)
{
	const struct skv_shape *sh = &r->c.sh;

	return ref_unit_in_page(sh->dtype, pool + skv_pte_id(table[slot / T]) * sh->page_bytes, sh->n_kv_heads, sh->head_dim,
	                        (v * sh->n_kv_heads + h) * T + slot % T);
}

static struct skv_slot_meta slot_meta_at(const struct slot_rig *r, const uint8_t *pool, uint32_t i, uint32_t h, uint32_t set,
                               uint32_t u)
{
	const struct skv_shape *sh = &r->c.sh;
	const uint32_t each = (uint32_t)(skv_head_room(sh) / 16);
	struct skv_slot_meta n;

	memcpy(&n, pool + skv_pte_id(r->c.slot_meta[i][u / each]) * sh->page_bytes + h * skv_head_room(sh) +
	           (set * each + u % each) * sizeof n, sizeof n);
	return n;
}

/* ---- checks ---------------------------------------------------------------------------------- */

#define WRONG(r, i, h, u, ...)                                                                                          \
	do {                                                                                                           \
		char what_[200];                                                                                       \
		snprintf(what_, sizeof what_, __VA_ARGS__);                                                            \
		ck_abort_msg("%s, granularity %u, epoch %u, sequence %u, kv head %u, entry %u: %s", (r)->c.on->name,         \
		             (r)->unit, (r)->epoch[i], i, h, u, what_);                                                \
	} while (0)

/* Returns the tokens in entry u of the model's n entries. */
static uint32_t tokens_of(const struct slot_rig *r, const struct slot_head *hd, uint32_t u, uint32_t n, uint32_t len)
{
	if (r->unit == 1)
		return 1;
	return u == ref_latest(hd->now, n) ? (len - 1) % T + 1 : T;
}

static void check_rows(const struct slot_rig *r, uint32_t i, uint32_t h, uint32_t u, uint32_t pos, uint32_t tokens)
{
	const size_t bytes = r->c.sh.head_dim * skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t t = 0; t < tokens; t++)
		for (int v = 0; v < 2; v++)
			if (memcmp(row_at(r, r->is, r->c.table[i], h, u * r->unit + t, v),
			           r->stored + slot_content(i, h, pos * r->unit + t, v) * bytes, bytes) ||
			    unit_at(r, r->is, r->c.table[i], h, u * r->unit + t, v) !=
			            r->stored_unit[slot_content(i, h, pos * r->unit + t, v)])
				WRONG(r, i, h, u, "row %u of %s is not that of token %u", t, v ? "V" : "K",
				      pos * r->unit + t);
}

/*
 * Returns whether x is the number; for fp8, where small numbers are in steps of 2^-9 of the unit, whether x is the next
 * number that is not larger.
 */
static bool is_bound(const struct slot_rig *r, float number, float x, float unit)
{
	if (r->c.sh.dtype != SKV_FP8 || fabsf(number) >= unit * 0x1p-6f)
		return x == number;
	return x <= number && number - x < unit * 0x1p-9f;
}

static void check_bounds(const struct slot_rig *r, uint32_t i, uint32_t h, uint32_t u, uint32_t pos, uint32_t tokens)
{
	const size_t each = skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t d = 0; d < r->c.sh.head_dim; d++) {
		float low = INFINITY, high = -INFINITY;
		for (uint32_t t = 0; t < tokens; t++) {
			float x = r->row[slot_content(i, h, pos * T + t, false)][d];
			low = fminf(low, x);
			high = fmaxf(high, x);
		}
		const float low_unit = unit_at(r, r->is, r->c.state[i], h, u, false), high_unit = unit_at(r, r->is, r->c.state[i], h, u, true);
		if (!is_bound(r, low, ref_load(r->c.sh.dtype, row_at(r, r->is, r->c.state[i], h, u, false) + d * each) * low_unit, low_unit) ||
		    !is_bound(r, -high, -ref_load(r->c.sh.dtype, row_at(r, r->is, r->c.state[i], h, u, true) + d * each) * high_unit, high_unit))
			WRONG(r, i, h, u, "element %u of its bounds is wrong", d);
	}
}

static void check_meta(const struct slot_rig *r, uint32_t i, uint32_t h, uint32_t u, uint32_t set, struct ref_unit want,
                       bool there)
{
	struct skv_slot_meta n = slot_meta_at(r, r->is, i, h, set, u);
	const uint32_t pos = !there ? SKV_SLOT_FREE : want.alive ? want.pos : want.pos | SKV_SLOT_EVICTED;

	if (n.pos != pos || (there && want.alive && n.score != (float)want.value))
		WRONG(r, i, h, u, "its slot metadata is %#x, %g, should be %#x, %g", n.pos, (double)n.score, pos,
		      want.value);
}

/* Checks that nothing which the last commit needs was written: its set of slot metadata, and its live entries. */
static void check_untouched(const struct slot_rig *r, uint32_t i, uint32_t h, uint32_t old_set, uint32_t extent)
{
	const struct slot_head *hd = &r->head[i][h];
	const size_t bytes = r->c.sh.head_dim * skv_dtype_bytes(r->c.sh.dtype);

	for (uint32_t u = 0; u < slot_units(r, extent); u++) {
		struct skv_slot_meta a = slot_meta_at(r, r->was, i, h, old_set, u), b = slot_meta_at(r, r->is, i, h,
				old_set, u);
		uint32_t tokens = r->unit;
		if (memcmp(&a, &b, sizeof a))
			WRONG(r, i, h, u, "slot metadata of the last commit was written");
		if (!hd->was[u].alive)
			continue;
		if (r->unit > 1 && extent % T && u == ref_latest(hd->was, slot_units(r, extent)))
			tokens = extent % T;
		for (int v = 0; v < 2; v++)
			if (memcmp(row_at(r, r->was, r->c.table[i], h, u * r->unit, v),
			           row_at(r, r->is, r->c.table[i], h, u * r->unit, v), tokens * bytes) ||
			    unit_at(r, r->was, r->c.table[i], h, u * r->unit, v) != unit_at(r, r->is, r->c.table[i], h, u * r->unit, v))
				WRONG(r, i, h, u, "rows that the last commit needs were written");
	}
}

void slot_check_step(struct slot_rig *r, uint32_t more)
{
	uint32_t slot[CASE_SEQS * SLOT_HEADS];

	slot_read_pool(r, r->is);
	if (r->slots.slot)
		case_from(&r->c, slot, r->slots.slot, r->n * r->c.sh.n_kv_heads * sizeof *slot);
	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			const uint32_t i = r->who[b], units = slot_units(r, s->len) + more;
			const struct slot_head *hd = &r->head[i][h];
			for (uint32_t u = 0; u < units; u++) {
				const struct ref_unit x = hd->now[u];
				const bool there = hd->there[u];
				check_meta(r, i, h, u, s->set, x, there);
				if (!there)
					continue;
				check_rows(r, i, h, u, x.pos, tokens_of(r, hd, u, units, s->len));
				if (r->unit > 1)
					check_bounds(r, i, h, u, x.pos, tokens_of(r, hd, u, units, s->len));
			}
			for (uint32_t u = units; more == 0 && u < skv_pages_of(s->len) * T / r->unit; u++)
				check_meta(r, i, h, u, s->set, (struct ref_unit){0}, false);
			if (s->n_q && slot[b * r->c.sh.n_kv_heads + h] != hd->slot)
				WRONG(r, i, h, slot[b * r->c.sh.n_kv_heads + h], "is the slot of the new token, should be %u",
				     hd->slot);
			check_untouched(r, i, h, !s->set, r->extent[i]);
		}
}

/* ---- the model ------------------------------------------------------------------------------- */

void slot_model_alloc(struct slot_rig *r)
{
	uint32_t from[SLOT_CAP];

	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			struct slot_head *hd = &r->head[r->who[b]][h];
			const uint32_t units = slot_units(r, s->len);
			const bool begins = s->n_q && (s->len - 1) % r->unit == 0;
			if (!ref_alloc(hd->was, slot_units(r, s->slot_end), hd->now, units,
			               begins ? (s->n_tokens - 1) / r->unit : REF_NONE, from))
				WRONG(r, r->who[b], h, units, "the test's own arithmetic is wrong");
			for (uint32_t u = 0; u < units; u++)
				hd->there[u] = true;
			if (s->n_q)
				hd->slot = ref_latest(hd->now, units) * r->unit + (s->len - 1) % r->unit;
		}
}

void slot_model_prompt(struct slot_rig *r)
{
	for (uint32_t b = 0; b < r->n; b++)
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++) {
			const struct skv_kseq *s = &r->seq[b];
			struct slot_head *hd = &r->head[r->who[b]][h];
			const uint32_t before = slot_units(r, s->len - s->n_q), units = slot_units(r, s->len);
			memcpy(hd->now, hd->was, before * sizeof *hd->now);
			for (uint32_t u = before; u < units; u++)
				hd->now[u] = (struct ref_unit){.alive = true,
				                               .pos = (s->n_tokens - s->len) / r->unit + u};
			for (uint32_t u = 0; u < units; u++)
				hd->there[u] = true;
			hd->slot = s->len - 1;
		}
}

void slot_model_commit(struct slot_rig *r, uint32_t more)
{
	for (uint32_t b = 0; b < r->n; b++) {
		const struct skv_kseq *s = &r->seq[b];
		const uint32_t i = r->who[b], units = slot_units(r, s->len);
		for (uint32_t h = 0; h < r->c.sh.n_kv_heads; h++)
			memcpy(r->head[i][h].was, r->head[i][h].now, (units + more) * sizeof(struct ref_unit));
		r->all[i] = s->n_tokens;
		r->len[i] = s->n_retained < units ? s->n_retained * r->unit : s->len;
		r->extent[i] = more ? (units + more) * T : s->len;
		r->epoch[i]++;
	}
}
