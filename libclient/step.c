/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step.c - a step: begun as a whole, committed sequence by sequence, or given up.
 *
 *   - All that can fail happens in skv_step_begin, before anything is changed: checks, pages,
 *     allocations. What it then writes lies beyond the committed lengths, but for copy-on-write of a
 *     shared last page, which leaves the same contents.
 *   - skv_step_end makes no allocation and no system call. The order of its stores is the contract of
 *     common/seqmem.h: token ids, next id and journal, then the commit word, then the holes.
 *   - Pages that a commit evicts are reused by the steps after it, never by the same.
 *   - On a device the same stores are the work of its last kernel (device.c).
 */
#include "internal.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_ROUND 1024u /* tokens: growing sequences must not mean growing scratch at each page */

/* ---- admission ------------------------------------------------------------------------------- */

static int check_item(struct skv_session *s, const struct skv_step_item *it, uint32_t i)
{
	struct skv_seq *q = it->seq;

	if (!q || q->session != s)
		return fail(-EINVAL, "item %u: seq is %s, expected a sequence of this session", i,
		            q ? "of another session" : "NULL");
	if (q->in_step)
		return fail(-EINVAL, "item %u: its sequence is in the step twice", i);
	if (it->flags & ~(uint32_t)SKV_STEP_PROMPT)
		return fail(-EINVAL, "item %u: flags are %#x, expected 0 or SKV_STEP_PROMPT", i, it->flags);
	if (it->n_tokens != 1 && (it->n_tokens == 0 || !(it->flags & SKV_STEP_PROMPT)))
		return fail(-EINVAL, "item %u: n_tokens is %u, expected %s", i, it->n_tokens,
		            it->flags & SKV_STEP_PROMPT ? "at least 1" : "1 without SKV_STEP_PROMPT");
	if (it->n_tokens > q->layout.max_tokens - q->len)
		return fail(-E2BIG, "item %u: %u tokens and %u more, but the sequence was made for %u", i,
		            q->len, it->n_tokens, q->layout.max_tokens);
	return 0;
}

/* What may only be asked of a sequence that is about to step; may take over its policy state. */
static int ready(struct skv_seq *q)
{
	int e = seq_settle_fork(q);

	if (e == 0 && q->state_torn)
		e = policy_take_over(q);
	return e;
}

/*
 * The entry of a table that a step writes to and that is shared, so that it is copied first: of the last page, if it
 * is partly filled, or of its state page. SKV_MAX_TOKENS when there is none.
 */
static uint32_t tail_of(const struct skv_seq *q, uint32_t table)
{
	uint32_t tokens = table < q->layout.n_layers ? SKV_PAGE_TOKENS : SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
	uint32_t tail = q->len / tokens;

	if (q->len % tokens == 0 || skv_pte_kind(seq_table(q, table)[tail]) != SKV_PTE_SHARED)
		return SKV_MAX_TOKENS;
	return tail;
}

static uint32_t shared_tails(const struct skv_seq *q)
{
	uint32_t n = 0;

	for (uint32_t table = 0; q->n_shared > 0 && table < q->layout.n_tables; table++)
		n += tail_of(q, table) < SKV_MAX_TOKENS;
	return n;
}

/* Pages that a step takes, of them copies of shared ones, and the most that one like it could take. */
struct pages {
	uint64_t need, copies, demand;
};

/* Where the state pages begin that a step supplies: the sequence may have none yet. */
static uint32_t state_from(const struct skv_seq *q)
{
	return q->bounded ? state_pages_of(q->len) : 0;
}

static void count_pages(const struct skv_seq *q, struct pages *p)
{
	uint64_t layers = q->layout.n_layers, bounds = seq_policy(q)->n_bounds, copies = shared_tails(q);

	p->need += (skv_pages_of(q->len + q->n_new) - skv_pages_of(q->len)) * layers + copies;
	p->need += (state_pages_of(q->len + q->n_new) - state_from(q)) * bounds;
	p->copies += copies;
	p->demand += skv_pages_of(q->n_new + SKV_PAGE_TOKENS - 1) * layers;
	p->demand += state_pages_of(q->n_new + SKV_PAGE_TOKENS * SKV_PAGE_TOKENS - 1) * bounds;
}

static int grow_step(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;
	uint32_t cap = n + n / 2;

	if (n <= st->cap)
		return 0;
	free(st->seqs);
	free(st->item);
	free(st->kseq);
	free(st->group);
	st->seqs = calloc(cap, sizeof(*st->seqs));
	st->item = calloc(cap, sizeof(*st->item));
	st->kseq = calloc(cap, sizeof(*st->kseq));
	st->group = calloc(cap, sizeof(*st->group));
	st->cap = st->seqs && st->item && st->kseq && st->group ? cap : 0;
	return st->cap ? 0 : fail(-ENOMEM, "out of memory for a step of %u sequences", n);
}

/* What the kernels need of a sequence, for all layers at once; it is number `at` of the step. */
static struct skv_kseq kseq_of(struct skv_seq *q, const struct skv_step_item *it, uint32_t row, uint32_t at)
{
	const struct device *d = q->session->device;
	bool decodes = !(it->flags & SKV_STEP_PROMPT);
	uint32_t len = q->len + it->n_tokens;

	return (struct skv_kseq){
	        .table = d ? q->on_device.table : seq_table(q, 0),
	        .attended = !decodes ? NULL : d ? d->attended + at : &q->step_attended,
	        .layer_stride = q->layout.max_pages,
	        .len = len,
	        .n_q = it->n_tokens,
	        .row = row,
	        .n_bounds = q->bounded ? it->n_tokens : len,
	};
}

/*
 * A bound on lengths up to `len`. What a device has recorded fits while sequences grow up to it, so it is
 * generous: up to a quarter more.
 */
static uint32_t capacity(uint32_t len)
{
	uint32_t step = SCRATCH_ROUND;

	while (step * 8 <= len)
		step *= 2;
	return (len + step - 1) / step * step;
}

/* n sequences of the step, from number `first` on. */
static struct skv_batch batch_of(const struct skv_session *s, uint32_t first, uint32_t n)
{
	const struct skv_kseq *seq = s->step.kseq + first;
	struct skv_batch b = {.seq = s->device ? s->device->kseq + first : seq, .n = n};

	for (uint32_t i = 0; i < n; i++) {
		b.max_len = seq[i].len > b.max_len ? seq[i].len : b.max_len;
		b.max_q = seq[i].n_q > b.max_q ? seq[i].n_q : b.max_q;
		b.max_bounds = seq[i].n_bounds > b.max_bounds ? seq[i].n_bounds : b.max_bounds;
	}
	if (s->device)
		b.max_len = capacity(b.max_len);
	return b;
}

/* The group of who runs this policy, made where there is none so far. */
static struct group *group_of(struct step *st, struct policy *p)
{
	for (uint32_t i = 0; i < st->n_groups; i++)
		if (st->group[i].policy == p)
			return &st->group[i];
	st->group[st->n_groups] = (struct group){.policy = p};
	return &st->group[st->n_groups++];
}

/* Look at each item, mark its sequence, and count. */
static int check_items(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret)
{
	struct step *st = &s->step;
	uint64_t rows = 0;

	st->n_groups = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *it = &items[i];
		int e = check_item(s, it, i);
		struct group *g;

		if (e == 0)
			e = ready(it->seq);
		if (e < 0)
			return e;
		rows += it->n_tokens;
		if (rows > UINT32_MAX)
			return fail(-EINVAL, "the step has more than %u rows", UINT32_MAX);
		g = group_of(st, seq_policy(it->seq));
		*(it->flags & SKV_STEP_PROMPT ? &g->n_prompts : &g->n) += 1;
		it->seq->in_step = true;
		it->seq->n_new = it->n_tokens;
		count_pages(it->seq, ret);
	}
	st->rows = (uint32_t)rows;
	return 0;
}

/* Selections for the groups, and places in the step for their sequences, none of which has taken one so far. */
static int place_groups(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t decode = 0, prompt = 0, layers = s->model.n_layers;

	if (st->n_groups > st->cap_selection) {
		free(st->selection);
		st->selection = calloc((size_t)st->n_groups * layers, sizeof(*st->selection));
		st->cap_selection = st->selection ? st->n_groups : 0;
		if (!st->selection)
			return fail(-ENOMEM, "out of memory for a step of %u policies", st->n_groups);
	}
	for (uint32_t i = 0; i < st->n_groups; i++)
		prompt += st->group[i].n;
	for (uint32_t i = 0; i < st->n_groups; i++) {
		struct group *g = &st->group[i];

		g->selection = st->selection + (size_t)i * layers;
		g->first = decode;
		g->first_prompt = prompt;
		decode += g->n;
		prompt += g->n_prompts;
		g->n = g->n_prompts = 0;
	}
	return 0;
}

/* Check the items and lay them out for the kernels: those that decode first, a group's together. */
static int lay_out(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret)
{
	struct step *st = &s->step;
	uint32_t row = 0, decode = 0;
	int e = check_items(s, items, n, ret);

	if (e == 0)
		e = place_groups(s);
	for (uint32_t i = 0; i < n && e == 0; i++) {
		const struct skv_step_item *it = &items[i];
		struct group *g = group_of(st, seq_policy(it->seq));
		bool decodes = !(it->flags & SKV_STEP_PROMPT);
		uint32_t at = decodes ? g->first + g->n++ : g->first_prompt + g->n_prompts++;

		st->seqs[at] = it->seq;
		st->item[at] = i;
		st->kseq[at] = kseq_of(it->seq, it, row, at);
		row += it->n_tokens;
		decode += decodes;
	}
	if (e < 0)
		return e;
	st->all = batch_of(s, 0, n);
	st->decoding = batch_of(s, 0, decode);
	st->prompts = batch_of(s, decode, n - decode);
	return 0;
}

int step_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need)
{
	size_t more = (need + need / 4 + 63) / 64 * 64;

	if (need <= *bytes)
		return 0;
	if (s->device)
		return device_grow(s, mem, bytes, more);
	free(*mem);
	*mem = aligned_alloc(64, more);
	*bytes = *mem ? more : 0;
	return *mem ? 0 : fail(-ENOMEM, "out of memory for %zu bytes of scratch", more);
}

/* Scratch of the kernels, room for evidence; both grow here and nowhere else. */
static int prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t longest = (st->all.max_len + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;
	int threads = omp_get_max_threads(), e;

	st->work.threads = threads;
	e = step_grow(s, &st->work.mem, &st->work.bytes,
	              s->kernels->work_bytes(&s->shape, st->all.n, st->rows, longest, threads));
	if (e == 0)
		e = selections_prepare(s);
	return e < 0 ? e : recall_begin(s);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Copy what is shared of what is written next, one table after the other, then switch to the copies. */
static int copy_tails(struct skv_session *s, struct skv_seq *q)
{
	uint32_t own[2 * SKV_MAX_LAYERS], dst[2 * SKV_MAX_LAYERS], src[2 * SKV_MAX_LAYERS];
	uint32_t table_of[2 * SKV_MAX_LAYERS], n = 0;
	int e = 0;

	for (uint32_t table = 0; table < q->layout.n_tables; table++) {
		uint32_t tail = tail_of(q, table);

		if (tail == SKV_MAX_TOKENS)
			continue;
		table_of[n] = table;
		src[n] = pool_place(s->pool, skv_pte_id(seq_table(q, table)[tail]), true);
		own[n] = stock_pop(&s->stock);
		dst[n] = pool_place(s->pool, own[n], false);
		n++;
	}
	if (n == 0)
		return 0;
	s->kernels->copy_pages(&s->shape, dst, src, n, &s->step.work);
	if (s->device)
		e = device_wait(s);
	atomic_thread_fence(memory_order_release); /* the copy is complete before an entry names it */
	for (uint32_t i = n; i-- > 0 && e < 0;)
		stock_push(&s->stock, own[i]);
	for (uint32_t i = 0; i < n && e == 0; i++) {
		uint32_t tail = tail_of(q, table_of[i]);
		skv_pte *entry = &seq_table(q, table_of[i])[tail];

		seq_give_up(q, skv_pte_id(*entry));
		*entry = skv_pte_make(SKV_PTE_FULL, own[i]);
		device_stale(q, table_of[i], tail);
	}
	return e;
}

/* No sequence of the step will write to a page that it shares. */
static int unshare_tails(struct skv_session *s)
{
	int e = 0;

	for (uint32_t i = 0; i < s->step.all.n && e == 0; i++) {
		struct skv_seq *q = s->step.seqs[i];

		if (q->n_shared > 0)
			e = copy_tails(s, q);
	}
	return e;
}

/* A fresh page in an entry. */
static void supply(struct skv_session *s, struct skv_seq *q, uint32_t table, uint32_t page)
{
	seq_table(q, table)[page] = skv_pte_make(SKV_PTE_FULL, stock_pop(&s->stock));
	device_entry(q, table, page);
}

/* State pages for the bounds of all pages that the sequence will have, in layers that keep them. */
static void place_state(struct skv_session *s, struct skv_seq *q)
{
	const struct policy *p = seq_policy(q);
	uint32_t first = state_from(q), end = state_pages_of(q->len + q->n_new);

	for (uint32_t layer = 0; first < end && layer < q->layout.n_layers; layer++)
		for (uint32_t page = first; page < end && plan_keeps_bounds(&p->plan[layer]); page++)
			supply(s, q, q->layout.n_layers + layer, page);
}

/* Entries for the tokens to come, token ids to be committed. Cannot fail: the stock has been checked. */
static void place(struct skv_session *s, struct skv_seq *q, const int32_t *tokens)
{
	uint32_t first = skv_pages_of(q->len), end = skv_pages_of(q->len + q->n_new);
	int32_t *ids = skv_seqmem_tokens(q->mem, &q->layout) + q->len;

	/* one that decodes needs pages in a step of SKV_PAGE_TOKENS: no loop over layers in the others */
	for (uint32_t layer = 0; first < end && layer < q->layout.n_layers; layer++)
		for (uint32_t page = first; page < end; page++)
			supply(s, q, layer, page);
	if (seq_policy(q)->n_bounds > 0)
		place_state(s, q);
	/* the first one waits: its place still shows the id that the last commit published */
	q->has_first = tokens != NULL;
	q->first = tokens ? tokens[0] : -1;
	for (uint32_t i = 1; i < q->n_new; i++)
		ids[i] = tokens ? tokens[i] : -1;
	q->step_attended = 0;
	if (!q->evicting)
		q->n_evict = 0;
}

/* ---- begin ----------------------------------------------------------------------------------- */

static int admit(struct skv_session *s, const struct skv_step_item *items, uint32_t n, uint32_t *ret_demand)
{
	struct pages p = {0};
	int e = lay_out(s, items, n, &p);
	uint32_t need = (uint32_t)p.need;

	if (e == 0 && p.need > SKV_PTE_ID_MASK)
		e = fail(-ENOSPC, "the step needs %llu pages, more than a pool can have",
		         (unsigned long long)p.need);
	if (e == 0)
		e = prepare(s);
	if (e == 0 && s->stock.n < need && device_evicts(s))
		e = device_settle(s); /* pages come back with it */
	if (e == 0)
		e = stock_reserve(s, need);
	s->shape.pool = s->pool->base; /* known now: with the older handles the first segment decides */
	if (e == 0 && s->device)
		e = device_prepare(s, need);
	if (e == 0 && p.copies > 0)
		e = unshare_tails(s);
	*ret_demand = p.demand < UINT32_MAX / 8 ? (uint32_t)p.demand : UINT32_MAX / 8;
	return e;
}

/* The sequences are out of the step, the pages for it in the stock. */
static void undo(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.all.n; i++) {
		struct skv_seq *q = s->step.seqs[i];
		uint32_t first = skv_pages_of(q->len), end_page = skv_pages_of(q->len + q->n_new);

		for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
			skv_pte *t = seq_table(q, layer);

			for (uint32_t page = first; page < end_page; page++) {
				stock_push(&s->stock, skv_pte_id(t[page]));
				t[page] = skv_pte_make(SKV_PTE_NONE, 0);
			}
			q->gone[layer] = (struct span){0}; /* the evictions did not happen */
		}
		if (seq_policy(q)->n_bounds > 0)
			seq_drop_state(q, state_from(q), state_pages_of(q->len + q->n_new));
		if (!q->evicting)
			q->n_evict = 0;
		q->in_step = false;
	}
}

static int begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	struct step *st = &s->step;
	uint32_t demand = 0;
	int e;

	if (st->open)
		return fail(-EBUSY, "a step is open: end or abort it first");
	if (!items || n == 0)
		return fail(-EINVAL, "a step without items");
	if (stream && !s->device)
		return fail(-EINVAL, "a stream was given, but the pages are in host memory: expected NULL");
	st->work.stream = stream;
	conn_turn(s->client);
	e = conn_check_pages(s->client);
	if (e == 0)
		e = device_turn(s);
	if (e == 0)
		e = grow_step(s, n);
	if (e == 0 && s->device)
		e = device_grow_batch(s, n);
	if (e < 0)
		return e;
	policy_follow(s);
	e = admit(s, items, n, &demand);
	if (e < 0) {
		for (uint32_t i = 0; i < n; i++)
			if (items[i].seq && items[i].seq->session == s)
				items[i].seq->in_step = false;
		return e;
	}
	for (uint32_t i = 0; i < n; i++)
		place(s, st->seqs[i], items[st->item[i]].tokens);
	e = s->device ? device_stage(s) : 0;
	if (e < 0) {
		undo(s);
		return e;
	}
	st->next_layer = 0;
	st->open = true;
	s->misused = false;
	stock_tend(s, demand);
	return 0;
}

int skv_step_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	void *was;
	int e;

	pthread_mutex_lock(&s->lock);
	e = device_enter(s, &was);
	if (e == 0) {
		e = begin(s, items, n, stream);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- end ------------------------------------------------------------------------------------- */

void seq_carry_out(struct skv_seq *q, bool stale)
{
	const struct skv_evict *journal = skv_seqmem_journal(q->mem, &q->layout);
	struct skv_session *s = q->session;

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_evict j = journal[i];
		skv_pte *e;

		if (j.layer >= q->layout.n_layers || j.page >= q->layout.max_pages)
			continue; /* it was in shared memory: not believed */
		e = &seq_table(q, j.layer)[j.page];
		if (!skv_pte_resident(*e))
			continue;
		if (skv_pte_kind(*e) == SKV_PTE_FULL)
			stock_push(&s->stock, skv_pte_id(*e));
		else
			seq_give_up(q, skv_pte_id(*e));
		*e = skv_pte_make(SKV_PTE_HOLE, 0);
		if (stale)
			device_stale(q, j.layer, j.page);
		q->holes[j.layer]++;
		s->stats.evicted_pages++;
	}
	atomic_store_explicit(&q->mem->journal_n, 0, memory_order_release);
	q->n_evict = 0;
}

static void commit(struct skv_seq *q, int32_t next)
{
	struct skv_seqmem *m = q->mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new;
	int32_t *ids = skv_seqmem_tokens(m, &q->layout);

	m->next[epoch & 1] = next;
	ids[len] = next;
	if (q->has_first)
		ids[q->len] = q->first; /* from here on recovery takes the last commit's next from m->next */
	if (q->n_evict > 0)
		atomic_store_explicit(&m->journal_n, q->n_evict, memory_order_release);
	atomic_store_explicit(&m->commit, (uint64_t)epoch << 32 | len, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst); /* nothing below may be seen before the commit */
	if (q->n_evict > 0)
		seq_carry_out(q, false);
	q->len = len;
	q->epoch = epoch;
	q->in_step = false;
	q->bounded = true;
}

void seq_attended(struct skv_seq *q, uint32_t len, uint64_t tokens)
{
	struct skv_session *s = q->session;
	uint64_t attended = tokens / s->model.n_heads, causal = (uint64_t)len * s->model.n_layers;

	q->attended += attended;
	q->causal += causal;
	s->stats.attended_tokens += attended;
	s->stats.causal_tokens += causal;
}

/* Counters of the step that is being committed, to the session and its page. */
static void account(struct skv_session *s)
{
	struct skv_session_page *p = s->page;
	struct skv_stats *t = &s->stats;
	struct step *st = &s->step;

	t->steps++;
	t->decode_tokens += st->decoding.n;
	t->prompt_tokens += st->rows - st->decoding.n;
	for (uint32_t i = 0; i < st->decoding.n && !s->device; i++) /* a device has not counted so far */
		seq_attended(st->seqs[i], st->kseq[i].len, st->seqs[i]->step_attended);
	if (!s->device)
		recall_take(s, st->seqs, st->recall.share, st->recall.n, st->recall.layers);
	t->stock_pages = s->stock.n;
	atomic_store_explicit(&p->steps, t->steps, memory_order_relaxed);
	atomic_store_explicit(&p->prompt_tokens, t->prompt_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->decode_tokens, t->decode_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->attended_tokens, t->attended_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->causal_tokens, t->causal_tokens, memory_order_relaxed);
	atomic_store_explicit(&p->evicted_pages, t->evicted_pages, memory_order_relaxed);
	atomic_store_explicit(&p->stock_pages, t->stock_pages, memory_order_relaxed);
	atomic_store_explicit(&p->policy_generation, s->policy->generation, memory_order_relaxed);
}

/* The hook of a step that will not be has written to the state of its sequences. */
static void give_up(struct skv_session *s)
{
	for (uint32_t i = 0; i < s->step.all.n; i++)
		s->step.seqs[i]->state_torn = true;
	step_abort(s);
}

static int end(struct skv_session *s, const int32_t *next)
{
	struct step *st = &s->step;
	int e;

	if (!st->open)
		return fail(-EINVAL, "no step is open");
	if (st->next_layer != s->model.n_layers)
		return fail(-EINVAL, "layer %u of %u was not attended", st->next_layer, s->model.n_layers);
	e = device_not_recording(s);
	if (e < 0)
		return e;
	/* the state belongs to the commit to come: after death before it, it fits none and is made anew */
	for (uint32_t i = 0; i < st->all.n; i++)
		st->seqs[i]->mem->state_epoch = st->seqs[i]->epoch + 1;
	atomic_thread_fence(memory_order_release);
	for (uint32_t i = 0; i < st->n_groups; i++)
		policy_hook(s, &st->group[i], PHASE_END, 0);
	if (s->misused) {
		give_up(s);
		return fail(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->misuser, s->misuse);
	}
	if (s->device)
		e = device_publish(s, next);
	for (uint32_t i = 0; i < st->all.n && !s->device; i++)
		commit(st->seqs[i], next ? next[st->item[i]] : -1);
	if (e < 0) {
		give_up(s);
		return e;
	}
	st->open = false;
	account(s);
	return 0;
}

int skv_step_end(struct skv_session *s, const int32_t *next)
{
	void *was;
	int e;

	pthread_mutex_lock(&s->lock);
	e = device_enter(s, &was);
	if (e == 0) {
		e = end(s, next);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- abort ----------------------------------------------------------------------------------- */

void step_abort(struct skv_session *s)
{
	if (!s->step.open)
		return;
	if (s->device)
		device_wait(s); /* what is still queued of the step writes to its pages */
	undo(s);
	s->step.open = false;
}

void skv_step_abort(struct skv_session *s)
{
	void *was;

	pthread_mutex_lock(&s->lock);
	if (device_enter(s, &was) == 0) {
		step_abort(s);
		device_leave(s, was);
	}
	pthread_mutex_unlock(&s->lock);
}

void step_deinit(struct skv_session *s)
{
	struct step *st = &s->step;

	free(st->seqs);
	free(st->item);
	free(st->kseq);
	free(st->work.mem);
	free(st->group);
	free(st->selection);
	free(st->arena);
	free(st->recall.mem);
	*st = (struct step){0};
}
