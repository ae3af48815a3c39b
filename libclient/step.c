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


/* ---- admission ------------------------------------------------------------------------------- */

static int check_item(struct skv_session *s, const struct skv_step_item *it, uint32_t i)
{
	struct skv_seq *q = it->seq;

	if (!q || q->session != s)
		return fail(-EINVAL, "item %u: seq is %s, expected a sequence of this session", i,
		            q ? "of another session" : "NULL");
	if (it->flags & ~(uint32_t)SKV_STEP_PROMPT)
		return fail(-EINVAL, "item %u: flags are %#x, expected 0 or SKV_STEP_PROMPT", i, it->flags);
	if (it->n_tokens != 1 && (it->n_tokens == 0 || !(it->flags & SKV_STEP_PROMPT)))
		return fail(-EINVAL, "item %u: n_tokens is %u, expected %s", i, it->n_tokens,
		            it->flags & SKV_STEP_PROMPT ? "at least 1" : "1 without SKV_STEP_PROMPT");
	if (it->n_prompt_remaining > 0 && !(it->flags & SKV_STEP_PROMPT))
		return fail(-EINVAL, "item %u: n_prompt_remaining is %u, expected 0 without SKV_STEP_PROMPT", i, it->n_prompt_remaining);
	if ((uint64_t)it->n_tokens + it->n_prompt_remaining > q->layout.max_tokens - q->len)
		return fail(-E2BIG, "item %u: %u tokens and %llu more, but the sequence was made for %u", i,
		            q->len, (unsigned long long)it->n_tokens + it->n_prompt_remaining, q->layout.max_tokens);
	return 0;
}

/* What may only be asked of a sequence that is about to step; may take over its policy state, and lay it out anew. */
static int ready(struct skv_session *s, const struct skv_step_item *it, uint32_t i)
{
	int e = check_item(s, it, i);

	if (e == 0)
		e = seq_settle_fork(it->seq);
	if (e == 0 && it->seq->state_torn)
		e = policy_take_over(it->seq);
	if (e == 0 && it->seq->on_device.old)
		e = device_seq_refresh(it->seq);
	if (e == 0)
		e = packs_settle(s, it->seq);
	if (e == 0)
		e = slots_ready(s, it->seq, it->flags & SKV_STEP_PROMPT);
	return e < 0 ? e : packs_ready(s, it->seq, it->flags & SKV_STEP_PROMPT);
}

static int grow_step(struct skv_session *s, uint32_t n)
{
	struct step *st = &s->step;
	uint32_t cap = n + n / 2;

	if (n <= st->cap)
		return 0;
	free(st->seqs);
	free(st->item);
	free(st->place);
	free(st->group);
	st->seqs = calloc(cap, sizeof(*st->seqs));
	st->item = calloc(cap, sizeof(*st->item));
	st->place = calloc(cap, sizeof(*st->place));
	st->group = calloc(cap, sizeof(*st->group));
	st->cap = st->seqs && st->item && st->place && st->group ? cap : 0;
	return st->cap ? 0 : fail(-ENOMEM, "out of memory for a step of %u sequences", n);
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

/* What the kernels want for sequences of up to `longest` tokens. */
static size_t work_bytes(const struct skv_session *s, uint32_t longest)
{
	const struct step *st = &s->step;
	int threads = st->work.threads;
	size_t most = s->kernels->work_bytes(&s->shape, st->n, st->rows, longest, threads);

	for (uint32_t i = 0; i < st->n_groups; i++)
		for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
			const struct group *g = &st->group[i]; /* whose sequences pack alike */
			struct skv_shape shape = s->shape;
			size_t bytes;

			shape.code = packs_code(st->seqs[g->n > 0 ? g->first : g->first_prompt], layer);
			bytes = shape.code ? s->kernels->work_bytes(&shape, st->n, st->rows, longest, threads) : 0;
			most = bytes > most ? bytes : most;
		}
	return most;
}

/* Scratch of the kernels, room for evidence; both grow here and nowhere else. */
static int prepare(struct skv_session *s)
{
	struct step *st = &s->step;
	uint32_t longest = 0;
	int threads = omp_get_max_threads(), e;

	for (uint32_t c = 0; c < st->n_classes; c++)
		longest = st->class[c].all.max_len > longest ? st->class[c].all.max_len : longest;
	longest = (longest + SCRATCH_ROUND - 1) / SCRATCH_ROUND * SCRATCH_ROUND;

	st->work.threads = threads;
	e = step_grow(s, &st->work.mem, &st->work.bytes, work_bytes(s, longest));
	if (e == 0)
		e = selections_prepare(s);
	if (e == 0)
		e = packed_prepare(s);
	if (e == 0)
		e = reading_prepare(s);
	return e < 0 ? e : recall_begin(s);
}

/* Token ids to be committed. Cannot fail. */
static void place(struct skv_seq *q, const int32_t *tokens)
{
	int32_t *ids = skv_seqmem_tokens(q->mem, &q->layout) + q->len;

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
	int e = step_lay_out(s, items, n, &p);
	uint32_t need = (uint32_t)p.need;
	uint64_t all = p.need + (p.ahead > 0 ? stock_ahead(s) : 0); /* what others are to get is not this one's */

	if (e == 0 && all + p.holes > SKV_PTE_ID_MASK)
		e = fail(-ENOSPC, "the step needs %llu pages, and what is still to come of its prompts %llu: more than a pool can "
		         "have", (unsigned long long)p.need, (unsigned long long)p.ahead);
	if (e == 0)
		e = prepare(s);
	if (e == 0)
		e = pages_prepare(s, p.need);
	if (e == 0 && s->stock.n < all && device_evicts(s))
		e = device_settle(s); /* pages come back with it */
	if (e == 0)
		e = stock_reserve(s, (uint32_t)all);
	s->shape.pool = s->pool->base; /* known now: with the older handles the first segment decides */
	if (e == 0 && s->device)
		e = device_prepare(s, need + (uint32_t)p.holes);
	if (e == 0 && p.copies > 0)
		e = pages_unshare(s);
	*ret_demand = p.demand < UINT32_MAX / 8 ? (uint32_t)p.demand : UINT32_MAX / 8;
	return e;
}

void step_leave(struct skv_session *s)
{
	pages_undo(s);
	for (uint32_t i = 0; i < s->step.n; i++) {
		struct skv_seq *q = s->step.seqs[i];

		for (uint32_t layer = 0; layer < q->layout.n_layers; layer++)
			q->gone[layer] = (struct span){0}; /* the evictions did not happen */
		if (!q->evicting)
			q->n_evict = 0;
		q->in_step = false;
	}
}

int step_enter(struct skv_session *s, const struct skv_step_item *items, uint32_t n, uint32_t *ret_demand)
{
	struct step *st = &s->step;
	int e = admit(s, items, n, ret_demand);

	if (e < 0) {
		for (uint32_t i = 0; i < n; i++)
			items[i].seq->in_step = false;
		return e;
	}
	for (uint32_t i = 0; i < n; i++) {
		pages_supply(s, st->seqs[i]);
		place(st->seqs[i], items[st->item[i]].tokens);
	}
	e = s->device ? device_stage(s) : 0;
	if (e < 0)
		step_leave(s);
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
	if (stream && !s->device)
		return fail(-EINVAL, "a stream was given, but the pages are in host memory: expected NULL");
	st->work.stream = stream;
	conn_turn(s->client);
	e = conn_check_pages(s->client);
	if (e == 0)
		e = device_turn(s);
	if (e == 0)
		e = grow_step(s, n);
	if (e < 0)
		return e;
	policy_follow(s);
	for (uint32_t i = 0; i < n && e == 0; i++)
		e = ready(s, &items[i], i);
	if (e == 0)
		e = step_enter(s, items, n, &demand);
	if (e < 0)
		return e;
	if (s->device)
		replay_begin(s);
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
	const struct skv_eviction *journal = skv_seqmem_journal(q->mem, &q->layout);
	struct skv_session *s = q->session;

	for (uint32_t i = 0; i < q->n_evict; i++) {
		struct skv_eviction j = journal[i];

		if (j.table >= q->layout.n_tables || j.page >= q->layout.max_pages)
			continue; /* it was in shared memory: not believed */
		if (!skv_pte_resident(seq_table(q, j.table)[j.page]))
			continue;
		seq_drop_page(q, j.table, j.page);
		if (stale)
			device_stale(q, j.table, j.page);
		s->stats.evicted_pages += skv_table_group(q->layout.n_layers, j.table) == SKV_GROUP_PAGES;
	}
	atomic_store_explicit(&q->mem->journal_n, 0, memory_order_release);
	q->n_evict = 0;
}

void step_committed(struct skv_seq *q)
{
	struct skv_layer_slots *was = q->slots;

	if (q->next_about & SKV_ABOUT_SLOTS) {
		q->slots = q->next_slots;
		q->next_slots = was;
	}
	q->about = q->next_about;
	q->prompt = q->next_prompt;
	q->ahead = q->next_ahead;
	q->len += q->n_new;
	q->epoch++;
	q->in_step = false;
	q->bounded |= !q->quiet || q->quiet == QUIET_BIND;
}

void step_commit(struct skv_seq *q, int32_t next)
{
	struct skv_seqmem *m = q->mem;
	uint32_t epoch = q->epoch + 1, len = q->len + q->n_new;
	int32_t *ids = skv_seqmem_tokens(m, &q->layout);

	m->next[epoch & 1] = next;
	m->about[epoch & 1] = q->next_about;
	if (q->next_about & SKV_ABOUT_READING)
		m->lay[epoch & 1].prompt = q->next_prompt;
	if (q->next_about & SKV_ABOUT_SLOTS)
		memcpy(m->lay[epoch & 1].slots, q->next_slots, q->layout.n_layers * sizeof(*q->next_slots));
	ids[len] = next;
	if (q->has_first)
		ids[q->len] = q->first; /* from here on recovery takes the last commit's next from m->next */
	if (q->n_evict > 0)
		atomic_store_explicit(&m->journal_n, q->n_evict, memory_order_release);
	atomic_store_explicit(&m->commit, (uint64_t)epoch << 32 | len, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst); /* nothing below may be seen before the commit */
	if (q->n_evict > 0)
		seq_carry_out(q, q->quiet);
	step_committed(q);
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
	t->decode_tokens += st->n_decode;
	t->prompt_tokens += st->rows - st->n_decode;
	for (uint32_t i = 0; i < st->n_decode && !s->device; i++) /* a device has not counted so far */
		seq_attended(st->seqs[i], st->seqs[i]->len, st->seqs[i]->step_attended);
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
	for (uint32_t i = 0; i < s->step.n; i++)
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
	for (uint32_t i = 0; i < st->n; i++)
		policy_state_of_commit(st->seqs[i]);
	atomic_thread_fence(memory_order_release);
	for (uint32_t i = 0; i < st->n_groups; i++)
		policy_hook(s, &st->group[i], PHASE_END, 0);
	if (s->misused) {
		give_up(s);
		return fail(-ENOTRECOVERABLE, "policy %s misused a primitive: %s", s->misuser, s->misuse);
	}
	packs_end(s);
	for (uint32_t i = 0; i < st->n; i++)
		pages_evict_surplus(st->seqs[i]);
	if (s->device)
		e = device_publish(s, next);
	for (uint32_t i = 0; i < st->n && !s->device; i++)
		step_commit(st->seqs[i], next ? next[st->item[i]] : -1);
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
	step_leave(s);
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
	free(st->place);
	free(st->kseq);
	free(st->class);
	free(st->supplied);
	free(st->work.mem);
	free(st->group);
	free(st->selection);
	free(st->arena);
	free(st->rebuilt.mem);
	free(st->tiles);
	free(st->recall.mem);
	*st = (struct step){0};
}
