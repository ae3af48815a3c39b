/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/refs.c - references of sequences to shared pages: a row of bits for each sequence, with a bit for
 * each page of the sequence's pool.
 *
 * A row of bits has room for the largest pool, takes memory only where bits were set, and is freed with the sequence.
 * The count in a page's SHARED owner word is the number of sequences in whose rows the page's bit is set.
 */
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/state/units.h"

#include <sys/mman.h>

#define BITS SKV_REF_BITS
#define WORDS_A_UNIT 8u /* number of words without set bits that are searched for one unit of work */

static const uint64_t *word_of(const struct skv_core *c, uint32_t seq, uint32_t page)
{
	const struct skv_geometry *g = &c->state.header->geometry;

	return skv_state_at(&c->state, SKV_TABLE_REFS, seq * skv_ref_words(g) + page / BITS);
}

static uint64_t *write_word_of(struct skv_core *c, uint32_t seq, uint32_t page)
{
	return skv_undo_save(&c->state, word_of(c, seq, page), sizeof(uint64_t));
}

/* End of the page numbers in the sequence's pool: the pool has only pages below this number. */
static uint32_t pages_end(const struct skv_core *c, uint32_t seq)
{
	const struct skv_pool_row *p = skv_pool_row(&c->state, skv_seq_row(&c->state, seq)->pool);

	return p->high * p->pages_per_segment;
}

uint64_t skv_ref_bits(const struct skv_core *c, uint32_t seq, uint32_t page)
{
	uint32_t left = pages_end(c, seq) - page;

	return *word_of(c, seq, page) & (left < BITS ? (UINT64_C(1) << left) - 1 : UINT64_MAX);
}

bool skv_ref_held(const struct skv_core *c, uint32_t seq, uint32_t page)
{
	return page < pages_end(c, seq) && *word_of(c, seq, page) >> page % BITS & 1;
}

void skv_ref_add(struct skv_core *c, uint32_t seq, uint32_t page)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);
	skv_owner owner = *skv_owner_word(&c->state, q->pool, page);
	uint32_t count = skv_owner_kind(owner) == SKV_OWNER_SHARED ? skv_owner_value(owner) : 0;

	*write_word_of(c, seq, page) |= UINT64_C(1) << page % BITS;
	q->refs++;
	q->referred = 1;
	skv_page_set(c, q->pool, page, skv_owner_make(SKV_OWNER_SHARED, count + 1));
}

void skv_ref_drop(struct skv_core *c, uint32_t seq, uint32_t page)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);
	uint32_t count = skv_owner_value(*skv_owner_word(&c->state, q->pool, page));

	*write_word_of(c, seq, page) &= ~(UINT64_C(1) << page % BITS);
	q->refs--;
	skv_page_set(c, q->pool, page, count > 1 ? skv_owner_make(SKV_OWNER_SHARED, count - 1) : 0);
}

/*
 * Moves *at to the first page at or after *at to which the sequence refers; SKV_NO_INDEX: there is none. False: *units
 * were used up before the page was found.
 */
static bool find(const struct skv_core *c, uint32_t seq, uint32_t *at, uint32_t *units)
{
	uint32_t end = pages_end(c, seq), looked = 0;

	while (*at < end) {
		uint64_t bits = *word_of(c, seq, *at) >> *at % BITS;

		if (bits) {
			*at += (uint32_t)__builtin_ctzll(bits);
			return true;
		}
		*at += BITS - *at % BITS;
		if (++looked % WORDS_A_UNIT == 0 && !skv_units_take(units, 1))
			return false;
	}
	*at = SKV_NO_INDEX;
	return true;
}

bool skv_refs_drop_some(struct skv_core *c, uint32_t seq, const uint8_t *marks, uint8_t kept, uint32_t *at,
                        uint32_t *units)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	while (q->refs && *at != SKV_NO_INDEX) {
		if (!skv_units_take(units, 3) || !find(c, seq, at, units))
			return false;
		if (*at == SKV_NO_INDEX)
			break;
		if (!marks || marks[*at] != kept)
			skv_ref_drop(c, seq, *at);
		++*at;
	}
	return true;
}

void skv_refs_free(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);

	/* punches a hole into the state memfd; if that fails, memory stays allocated, but it contains only zeros */
	if (q->referred)
		(void)madvise((void *)(uintptr_t)word_of(c, seq, 0),
		              skv_ref_words(&c->state.header->geometry) * sizeof(uint64_t), MADV_REMOVE);
	q->referred = 0;
}
