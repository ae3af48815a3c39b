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
static int ready(struct skv_session *s, struct skv_seq *q)
{
	int e = seq_settle_fork(q);

	if (e == 0 && q->state_torn)
		e = policy_take_over(s, q);
	return e;
}

/* Layers whose last page is partly filled and shared: it is copied before it is written. */
static uint32_t shared_tails(const struct skv_seq *q)
{
	uint32_t n = 0;

	if (q->n_shared == 0 || q->len % SKV_PAGE_TOKENS == 0)
		return 0;
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		n += skv_pte_kind(seq_table(q, layer)[q->len / SKV_PAGE_TOKENS]) == SKV_PTE_SHARED;
	return n;
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
	st->seqs = calloc(cap, sizeof(*st->seqs));
	st->item = calloc(cap, sizeof(*st->item));
	st->kseq = calloc(cap, sizeof(*st->kseq));
	st->cap = st->seqs && st->item && st->kseq ? cap : 0;
	return st->cap ? 0 : fail(-ENOMEM, "out of memory for a step of %u sequences", n);
}

/* What the kernels need of a sequence, for all layers at once. */
static struct skv_kseq kseq_of(struct skv_seq *q, const struct skv_step_item *it, uint32_t row)
{
	bool decodes = !(it->flags & SKV_STEP_PROMPT);

	return (struct skv_kseq){
	        .table = seq_table(q, 0),
	        .attended = decodes ? &q->step_attended : NULL,
	        .layer_stride = q->layout.max_pages,
	        .len = q->len + it->n_tokens,
	        .n_q = it->n_tokens,
	        .row = row,
	};
}

static struct skv_batch batch_of(const struct skv_kseq *seq, uint32_t n)
{
	struct skv_batch b = {.seq = seq, .n = n};

	for (uint32_t i = 0; i < n; i++) {
		b.max_len = seq[i].len > b.max_len ? seq[i].len : b.max_len;
		b.max_q = seq[i].n_q > b.max_q ? seq[i].n_q : b.max_q;
	}
	return b;
}

/* Lay the items out for the kernels: those that decode first. Marks the sequences. */
static int lay_out(struct skv_session *s, const struct skv_step_item *items, uint32_t n)
{
	struct step *st = &s->step;
	uint64_t row = 0;
	uint32_t decode = 0, prompt = n;

	for (uint32_t i = 0; i < n; i++) {
		const struct skv_step_item *it = &items[i];
		int e = check_item(s, it, i);
		uint32_t at;

		if (e < 0)
			return e;
		at = it->flags & SKV_STEP_PROMPT ? --prompt : decode++;
		st->seqs[at] = it->seq;
		st->item[at] = i;
		st->kseq[at] = kseq_of(it->seq, it, (uint32_t)row);
		row += it->n_tokens;
		if (row > UINT32_MAX)
			return fail(-EINVAL, "the step has more than %u rows", UINT32_MAX);
		it->seq->in_step = true;
		it->seq->n_new = it->n_tokens;
	}
	st->all = batch_of(st->kseq, n);
	st->decoding = batch_of(st->kseq, decode);
	st->prompts = batch_of(st->kseq + decode, n - decode);
	st->rows = (uint32_t)row;
	return 0;
}

/* Scratch of the kernels, room for evidence; both grow here and nowhere else. */
static int prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t longest = (st->all.max_len + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;
	int threads = omp_get_max_threads();
	size_t bytes = s->kernels->work_bytes(&s->shape, st->all.n, st->rows, longest, threads);

	st->work.threads = threads;
	if (bytes > st->work.bytes) {
		bytes = (bytes + bytes / 4 + 63) / 64 * 64;
		free(st->work.mem);
		st->work.mem = aligned_alloc(64, bytes);
		st->work.bytes = st->work.mem ? bytes : 0;
		if (!st->work.mem)
			return fail(-ENOMEM, "out of memory for %zu bytes of scratch", bytes);
	}
	return selections_prepare(s);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Copy what is shared of the last page, one layer after the other, then switch to the copies. */
static void copy_tails(struct skv_session *s, struct skv_seq *q)
{
	uint32_t dst[SKV_MAX_LAYERS], src[SKV_MAX_LAYERS], layer_of[SKV_MAX_LAYERS], n = 0;
	uint32_t page = q->len / SKV_PAGE_TOKENS;

	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++) {
		skv_pte e = seq_table(q, layer)[page];

		if (skv_pte_kind(e) != SKV_PTE_SHARED)
			continue;
		layer_of[n] = layer;
		src[n] = skv_pte_id(e);
		dst[n++] = stock_pop(&s->stock);
	}
	if (n == 0)
		return;
	s->kernels->copy_pages(&s->shape, dst, src, n, &s->step.work);
	atomic_thread_fence(memory_order_release); /* the copy is complete before an entry names it */
	for (uint32_t i = 0; i < n; i++) {
		seq_table(q, layer_of[i])[page] = skv_pte_make(SKV_PTE_FULL, dst[i]);
		q->release[q->n_release++] = src[i];
		q->n_shared--;
	}
}

/* Entries for the tokens to come, token ids to be committed. Cannot fail: the stock has been checked. */
static void place(struct skv_session *s, struct skv_seq *q, const int32_t *tokens)
{
	uint32_t first = skv_pages_of(q->len), end = skv_pages_of(q->len + q->n_new);
	int32_t *ids = skv_seqmem_tokens(q->mem, &q->layout) + q->len;

	if (q->n_shared > 0 && q->len % SKV_PAGE_TOKENS != 0)
		copy_tails(s, q);
	for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
		for (uint32_t page = first; page < end; page++)
			seq_table(q, layer)[page] = skv_pte_make(SKV_PTE_FULL, stock_pop(&s->stock));
	/* the first one waits: its place still shows the id that the last commit published */
	q->first = tokens ? tokens[0] : -1;
	for (uint32_t i = 1; i < q->n_new; i++)
		ids[i] = tokens ? tokens[i] : -1;
	q->step_attended = 0;
	q->n_evict = 0;
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* Pages that the step takes, and the most that one like it could take. */
static int count_pages(struct skv_session *s, uint32_t *ret_need, uint32_t *ret_demand)
{
	uint64_t need = 0, demand = 0;

	for (uint32_t i = 0; i < s->step.all.n; i++) {
		const struct skv_seq *q = s->step.seqs[i];

		need += (uint64_t)(skv_pages_of(q->len + q->n_new) - skv_pages_of(q->len)) *
		        s->model.n_layers;
		need += shared_tails(q);
		demand += (uint64_t)skv_pages_of(q->n_new + SKV_PAGE_TOKENS - 1) * s->model.n_layers;
	}
	if (need > SKV_PTE_ID_MASK)
		return fail(-ENOSPC, "the step needs %llu pages, more than a pool can have",
		            (unsigned long long)need);
	*ret_need = (uint32_t)need;
	*ret_demand = demand < UINT32_MAX / 8 ? (uint32_t)demand : UINT32_MAX / 8;
	return 0;
}

static int admit(struct skv_session *s, const struct skv_step_item *items, uint32_t n, uint32_t *ret_demand)
{
	uint32_t need = 0;
	int e = lay_out(s, items, n);

	for (uint32_t i = 0; i < n && e == 0; i++)
		e = ready(s, items[i].seq);
	if (e == 0)
		e = count_pages(s, &need, ret_demand);
	if (e == 0)
		e = prepare(s);
	if (e == 0)
		e = stock_reserve(s, need);
	return e;
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
	if (stream)
		return fail(-EINVAL, "a stream was given, but the pages are in host memory: expected NULL");
	conn_turn(s->client);
	e = conn_check_pages(s->client);
	if (e == 0)
		e = grow_step(s, n);
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
	st->next_layer = 0;
	st->open = true;
	s->misused = false;
	stock_tend(s, demand);
	return 0;
}

int skv_step_begin(struct skv_session *s, const struct skv_step_item *items, uint32_t n, void *stream)
{
	int e;

	pthread_mutex_lock(&s->lock);
	e = begin(s, items, n, stream);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Carry out the committed journal: entries become holes, their pages are free for the next step. */
static void carry_out(struct skv_session *s, struct skv_seq *q)
{
	const struct skv_evict *journal = skv_seqmem_journal(q->mem, &q->layout);

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_evict j = journal[i];
		skv_pte *e;

		if (j.layer >= q->layout.n_layers || j.page >= q->layout.max_pages)
			continue; /* it was in shared memory: not believed */
		e = &seq_table(q, j.layer)[j.page];
		if (!skv_pte_resident(*e))
			continue;
		if (skv_pte_kind(*e) == SKV_PTE_FULL) {
			stock_push(&s->stock, skv_pte_id(*e));
		} else {
			q->release[q->n_release++] = skv_pte_id(*e);
			q->n_shared--;
		}
		*e = skv_pte_make(SKV_PTE_HOLE, 0);
		q->holes[j.layer]++;
		s->stats.evicted_pages++;
	}
	atomic_store_explicit(&q->mem->journal_n, 0, memory_order_release);
	q->n_evict = 0;
}

static void commit(struct skv_session *s, struct skv_seq *q, int32_t next)
{
	struct skv_seqmem *m = q->mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new;
	int32_t *ids = skv_seqmem_tokens(m, &q->layout);

	m->next[epoch & 1] = next;
	ids[len] = next;
	ids[q->len] = q->first; /* from here on recovery takes the last commit's next from m->next */
	if (q->n_evict > 0)
		atomic_store_explicit(&m->journal_n, q->n_evict, memory_order_release);
	atomic_store_explicit(&m->commit, (uint64_t)epoch << 32 | len, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst); /* nothing below may be seen before the commit */
	if (q->n_evict > 0)
		carry_out(s, q);
	q->len = len;
	q->epoch = epoch;
	q->in_step = false;
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
	for (uint32_t i = 0; i < st->decoding.n; i++) {
		struct skv_seq *q = st->seqs[i];
		uint64_t attended = q->step_attended / s->model.n_kv_heads;
		uint64_t causal = (uint64_t)st->kseq[i].len * s->model.n_layers;

		q->attended += attended;
		q->causal += causal;
		t->attended_tokens += attended;
		t->causal_tokens += causal;
	}
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

static int end(struct skv_session *s, const int32_t *next)
{
	struct step *st = &s->step;

	if (!st->open)
		return fail(-EINVAL, "no step is open");
	if (st->next_layer != s->model.n_layers)
		return fail(-EINVAL, "layer %u of %u was not attended", st->next_layer, s->model.n_layers);
	/* the state belongs to the commit to come: after death before it, it fits none and is made anew */
	for (uint32_t i = 0; i < st->all.n; i++)
		st->seqs[i]->mem->state_epoch = st->seqs[i]->epoch + 1;
	atomic_thread_fence(memory_order_release);
	policy_hook(s, PHASE_END, 0);
	if (s->misused) {
		for (uint32_t i = 0; i < st->all.n; i++)
			st->seqs[i]->state_torn = true;
		step_abort(s);
		return fail(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->policy->block->name,
		            s->misuse);
	}
	for (uint32_t i = 0; i < st->all.n; i++)
		commit(s, st->seqs[i], next ? next[st->item[i]] : -1);
	st->open = false;
	account(s);
	return 0;
}

int skv_step_end(struct skv_session *s, const int32_t *next)
{
	int e;

	pthread_mutex_lock(&s->lock);
	e = end(s, next);
	pthread_mutex_unlock(&s->lock);
	return e;
}

/* ---- abort ----------------------------------------------------------------------------------- */

void step_abort(struct skv_session *s)
{
	if (!s->step.open)
		return;
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
		q->n_evict = 0;
		q->in_step = false;
	}
	s->step.open = false;
}

void skv_step_abort(struct skv_session *s)
{
	pthread_mutex_lock(&s->lock);
	step_abort(s);
	pthread_mutex_unlock(&s->lock);
}

void step_deinit(struct skv_session *s)
{
	struct step *st = &s->step;

	free(st->seqs);
	free(st->item);
	free(st->kseq);
	free(st->work.mem);
	free(st->selection);
	free(st->arena);
	*st = (struct step){0};
}
