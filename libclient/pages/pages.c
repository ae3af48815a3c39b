/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/pages/pages.c - which pages a step takes, writes to and evicts.
 *
 * A sequence has page tables (block tables), one a layer for each kind of page (common/seqmem.h): rows of K and V, page
 * bounds or sketches, slot metadata, codes, references, saved queries. The number of pages that a step needs in each
 * table follows from the layer's number of slots as of the last commit, and from its number of slots in the step. For a
 * sequence that never evicted single tokens, these two numbers are its lengths before and after the step.
 */
#include "libclient/pages/pages.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/compress/schedule.h"
#include "libclient/device/device.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/feature.h"
#include "libclient/pages/stock.h"
#include "libclient/prefill/schedule.h"
#include "libclient/seq.h"

/* Does the layer have K and V of its own? The table of a layer that shares another layer's K and V has only holes. */
static bool has_rows(const struct skv_seq *q, uint32_t layer)
{
	return skv_model_kv_layer(&q->session->model, layer) == layer;
}

static bool resident(const struct skv_seq *q, uint32_t table, uint32_t page)
{
	return skv_pte_resident(seq_table(q, table)[page]);
}

uint32_t pages_of_state(const struct skv_seq *q, uint32_t layer, uint32_t tokens)
{
	uint32_t each = seq_policy(q)->state_tokens[layer];

	return (tokens + each - 1) / each;
}

/* State pages that the policy needs for so many slots of a layer. */
static uint32_t state_of(const struct skv_seq *q, uint32_t layer, uint32_t slots)
{
	return plan_has_state(&seq_policy(q)->plan[layer]) ? pages_of_state(q, layer, slots) : 0;
}

/* Pages of slot metadata for so many slots of a layer with this granularity (unit); 0: the layer has no metadata. */
static uint32_t notes_of(const struct skv_seq *q, uint32_t unit, uint32_t slots)
{
	uint32_t each = skv_slot_meta_per_page(&q->session->shape);

	return unit ? ((slots + unit - 1) / unit + each - 1) / each : 0;
}

static enum skv_page_kind kind_of(const struct skv_seq *q, uint32_t table)
{
	return skv_table_page_kind(q->layout.n_layers, table);
}

static uint32_t layer_of(const struct skv_seq *q, uint32_t table)
{
	return skv_table_layer(q->layout.n_layers, table);
}

/* The number of a layer's table of slot metadata. */
static uint32_t slot_meta_table(const struct skv_seq *q, uint32_t layer)
{
	return skv_table(q->layout.n_layers, SKV_PAGES_SLOT_META, layer);
}

/* Pages of codes or references of a layer with so many compressed tokens. */
static uint32_t record_pages(const struct skv_seq *q, enum skv_page_kind group, uint32_t layer, uint32_t coded)
{
	return records_pages(compress_records_of(q, group, layer, coded));
}

/* Number of leading table entries that have pages as of the last commit, gaps among these entries included. */
static uint32_t had(const struct skv_seq *q, uint32_t table)
{
	uint32_t layer = layer_of(q, table), extent = seq_slot_end(q, layer);

	switch (kind_of(q, table)) {
	case SKV_PAGES_KV: return has_rows(q, layer) ? skv_pages_of(extent) : 0;
	case SKV_PAGES_STATE: return q->has_state ? state_of(q, layer, extent) : 0;
	case SKV_PAGES_SLOT_META: return seq_by_layer(q) ? notes_of(q, q->slots[layer].granularity, extent) : 0;
	case SKV_PAGES_SAVED: return q->about & SKV_ABOUT_PREFILL ? prefill_saved_pages(seq_policy(q), layer) : 0;
	default: return record_pages(q, kind_of(q, table), layer, seq_compressed(q, layer));
	}
}

/* Number of leading table entries that have pages after the open step, or after `more` tokens that follow the step. */
static uint32_t wants_with(const struct skv_seq *q, uint32_t table, uint32_t more)
{
	uint32_t layer = layer_of(q, table), reach = seq_next_slot_end(q, layer) + more;
	bool state = !q->maintenance || q->maintenance == MAINTENANCE_BUILD_STATE || q->has_state;

	switch (kind_of(q, table)) {
	case SKV_PAGES_KV: return has_rows(q, layer) ? skv_pages_of(reach) : 0;
	case SKV_PAGES_STATE: return state ? state_of(q, layer, reach) : 0;
	case SKV_PAGES_SLOT_META: return seq_by_layer(q) ? notes_of(q, q->next_slots[layer].granularity, reach) : 0;
	case SKV_PAGES_SAVED: return q->next_about & SKV_ABOUT_PREFILL ? prefill_saved_pages(seq_policy(q), layer) : 0;
	default: return seq_by_layer(q) ? record_pages(q, kind_of(q, table), layer, q->next_slots[layer].n_compressed) : 0;
	}
}

static uint32_t wants(const struct skv_seq *q, uint32_t table)
{
	return wants_with(q, table, 0);
}

/*
 * Number of tables in which the open step may need a page. For a sequence that has neither its own slots nor a prompt
 * that is being read, these are the tables of K and V and of page bounds or sketches, which come first.
 */
static uint32_t tables_used(const struct skv_seq *q)
{
	const uint32_t n = q->layout.n_layers;

	if (seq_by_layer(q) || (q->about | q->next_about) & SKV_ABOUT_PREFILL)
		return q->layout.n_tables;
	return skv_table(n, SKV_PAGES_STATE, seq_policy(q)->n_state_layers > 0 ? n : 0);
}

/* Pages for the rest of the sequence's prompt, set aside when the prompt begins, so that they suffice to its end. */
static uint64_t ahead(const struct skv_seq *q)
{
	uint64_t n = 0;

	for (uint32_t table = 0; q->prompt.n_remaining > 0 && !q->compress.on && table < q->layout.n_tables; table++)
		n += wants_with(q, table, q->prompt.n_remaining) - wants(q, table);
	return n;
}

/*
 * Range of the table's entries that may lack pages which the step needs. As a rule the range is at the table's end. But
 * a compaction also fills gaps, which were evicted before there was slot metadata, and a decompression fills the
 * entries of compressed tokens.
 */
static struct span missing(const struct skv_seq *q, uint32_t table)
{
	const struct skv_layer_slots *x = &q->slots[layer_of(q, table)];
	bool gaps = q->maintenance == MAINTENANCE_COMPACT && q->gaps && x->live < x->slot_end;
	bool rows = q->maintenance == MAINTENANCE_DECOMPRESS && kind_of(q, table) == SKV_PAGES_KV && x->n_compressed > 0;

	return (struct span){.from = gaps ? 0 : rows ? x->form.first : had(q, table), .to = wants(q, table)};
}

/*
 * MAINTENANCE_MOVE_PARTIAL may use one entry beyond those that the committed length counts, and no more: see
 * partial_page_inside(). So that the page in that entry still belongs to the sequence, the layer's table of slot
 * metadata names the page, too: in its last counted entry, which metadata never need. Returns the metadata table's
 * entry, or NULL if this page is not parked there.
 */
static skv_pte *parked(const struct skv_seq *q, uint32_t table, uint32_t page)
{
	uint32_t pages = skv_pages_of(q->len);

	if (!q->maintenance || kind_of(q, table) != SKV_PAGES_KV || page < pages)
		return NULL;
	return &seq_table(q, slot_meta_table(q, layer_of(q, table)))[pages - 1];
}

/* ---- supply ---------------------------------------------------------------------------------- */

/* Must the step add pages to the sequence's tables, or holes for tokens that have no slots? */
static bool takes(const struct skv_seq *q)
{
	uint32_t end = q->len + q->n_new;

	if (q->maintenance || skv_pages_of(end) > skv_pages_of(q->len) ||
	    (q->next_about & ~q->about & SKV_ABOUT_PREFILL))
		return true;
	if (!q->has_state)
		return seq_policy(q)->n_state_layers > 0;
	for (uint32_t layer = 0; seq_by_layer(q) && layer < q->layout.n_layers; layer++)
		if (skv_pages_of(q->next_slots[layer].slot_end) > skv_pages_of(q->slots[layer].slot_end) ||
		    q->next_slots[layer].n_compressed > q->slots[layer].n_compressed)
			return true;
	return false;
}

/* The entry of the last page of records, if that page is not full and the step compresses; else no entry. */
static struct span records_written(const struct skv_seq *q, uint32_t table)
{
	enum skv_page_kind group = kind_of(q, table);
	uint32_t layer = layer_of(q, table), coded = seq_compressed(q, layer);
	struct records x = compress_records_of(q, group, layer, coded);

	if (x.n == 0 || q->next_slots[layer].n_compressed <= coded)
		return (struct span){0};
	return (struct span){.from = x.n / x.each, .to = had(q, table)};
}

/* Returns the half of the n entries of saved queries that holds the set which the step's commit makes valid. */
static struct span kept_written(const struct skv_seq *q, uint32_t n)
{
	uint32_t half = n / 2, set = (q->epoch + 1) & 1;

	return (struct span){.from = set * half, .to = set * half + half};
}

/*
 * The range of the table's present entries whose pages the step writes to. As a rule this is the last page, if it is
 * partly filled, or the state page of the new tokens. If slots in the middle are free, or new tokens do not come last,
 * the range has all entries.
 */
struct span pages_written(const struct skv_seq *q, uint32_t table)
{
	uint32_t layer = layer_of(q, table), extent = seq_slot_end(q, layer), end = wants(q, table);
	bool anywhere = seq_by_layer(q) && q->slots[layer].granularity &&
	                (q->slots[layer].live < extent || q->slots[layer].granularity > 1);
	enum skv_page_kind group = kind_of(q, table);
	struct span all = {.to = had(q, table)};

	if (group == SKV_PAGES_CODES || group == SKV_PAGES_REFS)
		return records_written(q, table);
	if (group == SKV_PAGES_SAVED)
		return kept_written(q, all.to < end ? all.to : end);
	if (all.to > end)
		all.to = end;
	if (!anywhere && group != SKV_PAGES_SLOT_META)
		all.from = extent / (group == SKV_PAGES_KV ? SKV_PAGE_TOKENS : seq_policy(q)->state_tokens[layer]);
	return all;
}

bool pages_shares(const struct skv_seq *q, uint32_t table, uint32_t page)
{
	return skv_pte_kind(seq_table(q, table)[page]) == SKV_PTE_SHARED;
}

/* May the step need pages in entries that were evicted? A layer's slots can grow into such entries, tokens cannot. */
static bool refills(const struct skv_seq *q)
{
	for (uint32_t layer = 0; seq_by_layer(q) && layer < q->layout.n_layers; layer++) {
		const struct skv_layer_slots *x = &q->slots[layer];

		if (q->maintenance || x->granularity || x->live != q->len || x->slot_end != q->len)
			return true;
	}
	return false;
}

int pages_count(struct skv_seq *q, struct pages *p)
{
	const struct policy *policy = seq_policy(q);
	uint64_t layers = q->layout.n_layers, copies = 0;
	int e;

	q->takes = takes(q);
	/* until the device reports an earlier step's commit, an entry that the step evicted still shows its page */
	e = q->takes && q->evicting && refills(q) ? device_settle(q->session) : 0;
	if (e < 0)
		return e;
	for (uint32_t table = 0, end = tables_used(q); q->takes && table < end; table++) {
		struct span x = missing(q, table);

		for (uint32_t page = x.from; page < x.to; page++)
			p->need += !resident(q, table, page);
		if (kind_of(q, table) == SKV_PAGES_KV)
			p->holes += skv_pages_of(q->len + q->n_new) - skv_pages_of(q->len);
	}
	for (uint32_t table = 0; q->n_shared > 0 && table < q->layout.n_tables; table++) {
		struct span x = pages_written(q, table);

		for (uint32_t page = x.from; page < x.to; page++)
			copies += pages_shares(q, table, page);
	}
	q->next_set_aside = ahead(q);
	p->set_aside += q->next_set_aside;
	p->aside_change += q->next_set_aside - q->set_aside;
	p->need += copies;
	p->copies += copies;
	p->demand += skv_pages_of(q->n_new + SKV_PAGE_TOKENS - 1) * layers;
	if (policy->n_state_layers > 0)
		p->demand += (uint64_t)(q->n_new / policy->least_state_tokens + 1) * policy->n_state_layers;
	p->demand += (uint64_t)notes_of(q, 1, q->n_new + skv_slot_meta_per_page(&q->session->shape) - 1) * policy->n_evicting;
	return 0;
}

uint64_t pages_of_prompt(struct skv_session *s, uint32_t n, bool chunked)
{
	struct skv_layer_slots slots[SKV_MAX_LAYERS];
	struct skv_seq q = {.session = s, .n_new = n, .next_slots = slots, .has_state = true};
	uint64_t pages = 0;

	skv_seqmem_layout(&s->model, n, &q.layout);
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++)
		slots[layer] = (struct skv_layer_slots){.slot_end = n, .granularity = s->policy->plan[layer].evict.granularity};
	q.about = s->policy->n_evicting > 0 ? SKV_ABOUT_SLOTS : 0;
	q.next_about = chunked && s->policy->prefill ? SKV_ABOUT_PREFILL : 0;
	for (uint32_t table = 0; table < q.layout.n_tables; table++)
		pages += wants(&q, table);
	return pages;
}

int pages_prepare(struct skv_session *s, uint64_t need)
{
	struct step *st = &s->step;
	struct supplied *more;

	st->pages.n_supplied = 0;
	if (need <= st->pages.cap_supplied)
		return 0;
	more = realloc(st->pages.supplied, need * sizeof(*more));
	if (!more)
		return error_set(-ENOMEM, "out of memory for a step of %llu pages", (unsigned long long)need);
	st->pages.supplied = more;
	st->pages.cap_supplied = (uint32_t)need;
	return 0;
}

void pages_supply(struct skv_session *s, struct skv_seq *q)
{
	uint32_t first = skv_pages_of(q->len), end = skv_pages_of(q->len + q->n_new), tables = tables_used(q);

	for (uint32_t table = 0; q->takes && table < tables; table++) {
		struct span x = missing(q, table);
		skv_pte *t = seq_table(q, table);

		for (uint32_t page = x.from; page < x.to; page++) {
			if (skv_pte_resident(t[page]))
				continue;
			t[page] = skv_pte_make(SKV_PTE_PRIVATE, stock_pop(&s->stock));
			if (parked(q, table, page))
				*parked(q, table, page) = t[page];
			device_entry(q, table, page);
			s->step.pages.supplied[s->step.pages.n_supplied++] = (struct supplied){q, table, page};
		}
		if (kind_of(q, table) != SKV_PAGES_KV)
			continue;
		for (uint32_t page = x.to > first ? x.to : first; page < end; page++) {
			t[page] = skv_pte_make(SKV_PTE_HOLE, 0); /* a token without a slot has a hole */
			device_entry(q, table, page);
		}
	}
}

void pages_drop(struct skv_seq *q, uint32_t table, uint32_t page)
{
	skv_pte *at = &seq_table(q, table)[page];
	const skv_pte none = skv_seqmem_evicted(&q->layout, table);
	const enum skv_pte_kind kind = skv_pte_kind(*at);
	const uint32_t id = skv_pte_id(*at);

	*at = none;
	if (kind == SKV_PTE_PRIVATE)
		stock_push(&q->session->stock, id);
	else if (kind == SKV_PTE_SHARED)
		seq_give_up(q, id);
}

/* Put a supplied page back into the stock. `tokens`: the sequence's length afterwards. */
static void undo(struct supplied x, uint32_t tokens)
{
	skv_pte *also = parked(x.seq, x.table, x.page);

	if (also)
		*also = skv_pte_make(SKV_PTE_NONE, 0);
	pages_drop(x.seq, x.table, x.page);
	if (x.page >= skv_pages_of(tokens)) /* entries of the remaining tokens stay holes */
		seq_table(x.seq, x.table)[x.page] = skv_pte_make(SKV_PTE_NONE, 0);
	device_stale(x.seq, x.table, x.page);
}

void pages_undo(struct skv_session *s)
{
	struct step *st = &s->step;

	while (st->pages.n_supplied > 0) {
		const struct supplied x = st->pages.supplied[--st->pages.n_supplied];

		undo(x, x.seq->len);
	}
}

void pages_undo_surplus(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < st->pages.n_supplied; i++) {
		struct supplied x = st->pages.supplied[i];

		if (x.seq->n_new == 0 || x.page >= wants(x.seq, x.table))
			undo(x, x.seq->len + x.seq->n_new);
		else
			st->pages.supplied[kept++] = x;
	}
	st->pages.n_supplied = kept;
}

/* ---- evict ----------------------------------------------------------------------------------- */

bool pages_evict(struct skv_seq *q, uint32_t table, uint32_t page)
{
	struct skv_eviction *journal = skv_seqmem_journal(q->mem, &q->layout);

	if (!resident(q, table, page))
		return true;
	/* wait for the end of the last step; the device stays busy with layers of the open step, which are queued */
	if (q->evicting && (device_settle(q->session) < 0 || !resident(q, table, page)))
		return true; /* after an error the step's end fails, too */
	if (q->n_evict == 0) /* the journal's stamp is written before its entries: see 3. in common/seqmem.h */
		atomic_store(&q->mem->journal_epoch, q->epoch + 1);
	if (q->n_evict == q->layout.journal_most)
		return false;
	journal[q->n_evict++] = (struct skv_eviction){.table = table, .page = page};
	return true;
}

/* Evict the saved queries of a prompt that has ended, or that no policy can continue. */
static void evict_kept(struct skv_seq *q)
{
	const uint32_t first = skv_table(q->layout.n_layers, SKV_PAGES_SAVED, 0);

	if (q->next_about & SKV_ABOUT_PREFILL || !(q->about & SKV_ABOUT_PREFILL || q->prompt.n_remaining > 0))
		return;
	for (uint32_t table = first; table < first + q->layout.n_layers; table++)
		for (uint32_t page = 0; page < q->layout.kept; page++)
			pages_evict(q, table, page);
}

void pages_evict_surplus(struct skv_seq *q)
{
	evict_kept(q);
	for (uint32_t table = 0; seq_by_layer(q) && table < q->layout.n_tables; table++)
		for (uint32_t page = wants(q, table); page < had(q, table) &&
		     kind_of(q, table) != SKV_PAGES_SAVED; page++)
			if (parked(q, table, page))
				pages_evict(q, slot_meta_table(q, layer_of(q, table)), skv_pages_of(q->len) - 1);
			else
				pages_evict(q, table, page);
}

static void pages_end(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.n; i++)
		if (s->step.seqs[i]->n_new > 0)
			pages_evict_surplus(s->step.seqs[i]);
}

static void pages_close(struct skv_session *s)
{
	free(s->step.pages.supplied);
}

const struct feature pages_feature = {.close = pages_close, .end = pages_end};

/* Restore each layer's entry just beyond the committed length: the page parked in slot metadata, or SKV_PTE_NONE. */
void pages_unpark(struct skv_seq *q)
{
	uint32_t pages = skv_pages_of(q->len);

	for (uint32_t layer = 0; layer < q->layout.n_layers && pages > 0 && pages < q->layout.max_pages; layer++) {
		skv_pte *slot_meta = seq_table(q, slot_meta_table(q, layer));
		bool beyond = skv_pages_of(seq_slot_end(q, layer)) > pages;

		seq_table(q, layer)[pages] = beyond ? slot_meta[pages - 1] : skv_pte_make(SKV_PTE_NONE, 0);
	}
}

/* Drop the first n entries of each layer's table of this kind. */
static void drop_tables(struct skv_seq *q, enum skv_page_kind kind, uint32_t n)
{
	const uint32_t first = skv_table(q->layout.n_layers, kind, 0);

	for (uint32_t table = first; table < first + q->layout.n_layers; table++)
		for (uint32_t page = 0; page < n; page++)
			pages_drop(q, table, page);
}

/* Drop the prompt's saved queries, so that later rows begin a new prompt. No work on the sequence may be queued. */
static void forget_prompt(struct skv_seq *q)
{
	q->about &= ~SKV_ABOUT_PREFILL;
	stock_put_aside(q, 0);
	/* from here on these entries belong to no commit; other changes of q->about may wait for the next commit */
	q->mem->about[q->epoch & 1] &= ~SKV_ABOUT_PREFILL;
	atomic_thread_fence(memory_order_seq_cst);
	drop_tables(q, SKV_PAGES_SAVED, q->layout.kept);
}

void pages_forget_state(struct skv_seq *q)
{
	drop_tables(q, SKV_PAGES_STATE, skv_pages_of(q->len));
	forget_prompt(q);
}

/* ---- check and trim -------------------------------------------------------------------------- */

/* Is this a table of codes or references whose form is not known yet? pages_trim() leaves such a table alone. */
static bool unknown(const struct skv_seq *q, uint32_t table)
{
	enum skv_page_kind group = kind_of(q, table);
	uint32_t layer = layer_of(q, table);

	return (group == SKV_PAGES_CODES || group == SKV_PAGES_REFS) && seq_compressed(q, layer) > 0 && !compress_code(q, layer);
}

static bool drop(struct skv_seq *q, uint32_t table, uint32_t page)
{
	bool is = resident(q, table, page);

	pages_drop(q, table, page);
	return is;
}

bool pages_trim(struct skv_seq *q)
{
	bool any = false;

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		uint32_t layer = layer_of(q, table), extent = seq_slot_end(q, layer), pages = seq_entries(q, table);
		uint32_t from = kind_of(q, table) == SKV_PAGES_STATE ? pages_of_state(q, layer, extent) : had(q, table);

		if (unknown(q, table))
			continue;
		if (kind_of(q, table) == SKV_PAGES_SLOT_META && skv_pages_of(extent) > pages)
			pages--; /* a page is parked in the last entry */
		for (uint32_t page = from; page < pages; page++)
			any |= drop(q, table, page);
		for (uint32_t page = 0; kind_of(q, table) == SKV_PAGES_KV && page < pages; page++)
			if (compress_has_page(q, layer, page))
				any |= drop(q, table, page);
	}
	return any;
}

void pages_take_over(struct skv_seq *q)
{
	if (!prefill_fits(q, seq_policy(q)))
		forget_prompt(q);
	pages_trim(q);
}

/* Check that no page of this table of codes or references is missing. Returns NULL, or an error text. */
static const char *records_check(const struct skv_seq *q, uint32_t table)
{
	for (uint32_t page = 0; page < had(q, table); page++)
		if (!resident(q, table, page))
			return "a page of codes or references is missing";
	return NULL;
}

/* Check that no page of a slot or compressed token is missing. Returns NULL or an error text. Sets q->gaps. */
static const char *check(struct skv_seq *q)
{
	q->gaps = false;
	for (uint32_t table = 0; seq_by_layer(q) && table < q->layout.n_tables; table++) {
		const struct skv_layer_slots *x = &q->slots[layer_of(q, table)];
		uint32_t last = had(q, table);

		if (last > q->layout.max_pages)
			return "a layer has more slots or codes than the sequence was made for";
		if (kind_of(q, table) == SKV_PAGES_CODES || kind_of(q, table) == SKV_PAGES_REFS) {
			const char *wrong = records_check(q, table);

			if (wrong)
				return wrong;
			continue;
		}
		if (!x->granularity || kind_of(q, table) == SKV_PAGES_STATE || kind_of(q, table) == SKV_PAGES_SAVED)
			continue;
		for (uint32_t page = 0; page < last; page++) {
			if (resident(q, table, page))
				continue;
			if (kind_of(q, table) == SKV_PAGES_SLOT_META)
				return "a page of slot metadata is missing";
			if (x->live == x->slot_end)
				return "a page is missing where tokens are";
			q->gaps = true;
		}
	}
	return NULL;
}

int pages_check(struct skv_seq *q)
{
	const char *wrong = check(q);

	return wrong ? error_set(-EBADMSG, "damaged sequence memory: %s", wrong) : 0;
}
