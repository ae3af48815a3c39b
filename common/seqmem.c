/* SPDX-License-Identifier: Apache-2.0 */
#include "common/seqmem.h"
#include "common/records.h"
#include "common/spec.h"

#include <string.h>
#include <sparsekv/policy.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t align_up(size_t x, size_t a)
{
	return (x + a - 1) / a * a;
}

/*
 * Returns the most pages of saved prefill state that a layer can have (kernels/prefill.h): two sets, each of which is
 * one row of differences and SKV_MINFERENCE_ROWS rows of queries, in fp32.
 */
static uint32_t kept_most(const struct skv_model *m)
{
	size_t set = (size_t)(1 + SKV_MINFERENCE_ROWS) * m->n_heads * m->head_dim * sizeof(float), page = skv_page_rows_bytes(m);

	return (uint32_t)(2 * ((set + page - 1) / page));
}

void skv_seqmem_layout(const struct skv_model *m, uint32_t max_tokens, struct skv_seqmem_layout *ret)
{
	struct skv_seqmem_layout l = {
	        .n_layers = m->n_layers,
	        .n_tables = SKV_PAGE_KINDS * m->n_layers,
	        .max_tokens = max_tokens,
	        .max_pages = skv_pages_of(max_tokens),
	        .kept = kept_most(m),
	};
	size_t entries;

	if (l.max_pages < l.kept)
		l.max_pages = l.kept;
	entries = (size_t)l.n_layers * l.max_pages;
	l.table = align_up(sizeof(struct skv_seqmem), 4096);
	l.tokens = align_up(l.table + SKV_PAGE_KINDS * entries * sizeof(skv_pte), 4096);
	l.journal = align_up(l.tokens + ((size_t)max_tokens + 1) * sizeof(int32_t), 4096);
	/*
	 * enough to evict all pages of K and V, all pages of saved prefill state, and the pages of the other kinds,
	 * which are a fraction of these
	 */
	l.journal_most = 3 * entries;
	l.state = align_up(l.journal + l.journal_most * sizeof(struct skv_eviction), 4096);
	l.state_bytes = SKV_SEQ_STATE_MAX;
	l.total = l.state + l.state_bytes;
	*ret = l;
}

void skv_seqmem_init_header(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	s->n_layers = l->n_layers;
	s->max_tokens = l->max_tokens;
	s->max_pages = l->max_pages;
	s->next[0] = s->next[1] = -1;
	s->magic = SKV_SEQMEM_MAGIC;
}

void skv_seqmem_init(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	skv_seqmem_init_header(s, l);
	skv_seqmem_tokens(s, l)[0] = -1;
}

/*
 * Checks number and form of a layer's compressed tokens, in a sequence of this length. Returns NULL or an error text.
 */
static const char *packed_check(const struct skv_layer_slots *x, uint32_t len)
{
	const struct skv_form *f = &x->form;
	uint32_t first = f->first * SKV_PAGE_TOKENS;
	struct skv_compress how = {
	        .kind = f->kind,
	        .bits = f->bits,
	        .scale_block = f->scale_block,
	        .stride = f->stride,
	        .n_refs = f->n_refs,
	        .ref_bits = f->ref_bits,
	        .sinks = first,
	        /* any block size that divides n_compressed passes the check of struct skv_compress */
	        .block = x->n_compressed - first,
	};

	if (x->n_compressed == 0)
		return NULL;
	if (x->n_compressed > len || x->n_compressed <= first || !f->kind)
		return "a layer has compressed other tokens than the sequence has";
	if (x->granularity || x->live != len || x->slot_end != len)
		return "a layer has compressed tokens, and has evicted others";
	if (f->stride ? f->id_bytes != 2 && f->id_bytes != 4 : f->id_bytes)
		return "a layer's references have numbers of an unknown kind";
	return skv_compress_check(&how);
}

const char *skv_layer_slots_check(const struct skv_layer_slots *slots, uint32_t about, uint32_t len, uint32_t n_layers)
{
	/* a layer has one page more while its pages are being reordered */
	uint32_t most = (skv_pages_of(len) + 1) * SKV_PAGE_TOKENS;

	for (uint32_t i = 0; about & SKV_ABOUT_SLOTS && i < n_layers; i++) {
		struct skv_layer_slots x = slots[i];
		const char *wrong = packed_check(&x, len);

		if (wrong)
			return wrong;
		if (x.live > x.slot_end || x.slot_end > most)
			return "a layer has more slots than the sequence has tokens";
		if (x.n_active > x.live)
			return "a layer has more active slots than slots";
		if (x.granularity != 0 && x.granularity != 1 && x.granularity != SKV_PAGE_TOKENS)
			return "a layer's slot metadata has an unknown granularity";
		if (x.granularity == 0 && x.live < x.slot_end)
			return "a layer has free slots, and no slot metadata that tells which";
	}
	return NULL;
}

uint32_t skv_about_cut(uint32_t about, uint32_t n)
{
	uint32_t leading = about & SKV_ABOUT_PROMPT, kept = about & (SKV_ABOUT_SLOTS | SKV_ABOUT_DECOMPRESSED);

	if (n == 0)
		return 0;
	if (n <= leading)
		return n | SKV_ABOUT_PROMPTED | kept;
	return leading | kept;
}

struct skv_layer_slots skv_layer_slots_cut(const struct skv_layer_slots *slots, uint32_t n)
{
	struct skv_layer_slots x = *slots;

	x.live = x.slot_end = x.n_active = n;
	if (x.n_compressed > n) /* more than n tokens are compressed only if n is 0 */
		x.n_compressed = 0;
	if (x.n_compressed == 0)
		x.form = (struct skv_form){0};
	return x;
}

void skv_seqmem_cut(struct skv_seqmem *s, uint32_t n)
{
	uint64_t commit = atomic_load_explicit(&s->commit, memory_order_acquire);
	uint32_t was = skv_commit_epoch(commit) & 1, is = !was;
	/* a client wrote n_layers, so it may be wrong */
	uint32_t layers = s->n_layers < SKV_MAX_LAYERS ? s->n_layers : SKV_MAX_LAYERS;

	if (n >= skv_commit_len(commit))
		return;
	s->next[is] = -1;
	s->len[is] = n;
	s->about[is] = skv_about_cut(s->about[was], n);
	for (uint32_t layer = 0; layer < layers; layer++)
		s->lay[is].slots[layer] = skv_layer_slots_cut(&s->lay[was].slots[layer], n);
	atomic_store_explicit(&s->commit, (uint64_t)(skv_commit_epoch(commit) + 1) << 32 | n, memory_order_release);
}

void skv_seqmem_made(const struct skv_seqmem *s, uint32_t n_layers, struct skv_made *ret)
{
	const uint32_t now = skv_commit_epoch(atomic_load_explicit(&s->commit, memory_order_acquire)) & 1;

	*ret = (struct skv_made){.policy = s->policy, .n_compressed = SKV_MAX_TOKENS};
	if (!(__atomic_load_n(&s->about[now], __ATOMIC_RELAXED) & SKV_ABOUT_SLOTS))
		return;
	ret->codec = s->codec;
	ret->rope = s->rope;
	memcpy(ret->codec_path, s->codec_path, sizeof(ret->codec_path) - 1);
	for (uint32_t layer = 0; layer < n_layers; layer++) {
		const struct skv_layer_slots *x = &s->lay[now].slots[layer];
		const uint32_t n = __atomic_load_n(&x->n_compressed, __ATOMIC_RELAXED);

		ret->form[layer] = x->form;
		if (ret->form[layer].kind && n < ret->n_compressed)
			ret->n_compressed = n;
	}
}

/* Returns the slots of a layer with this form that has n tokens, all of them sealed. */
static struct skv_layer_slots sealed_slots(const struct skv_form *f, uint32_t n)
{
	return (struct skv_layer_slots){.live = n, .slot_end = n, .n_active = n, .n_compressed = f->kind ? n : 0, .form = *f};
}

/*
 * Checks that this kind of records has a size, that a record fits into a page, and that a block's records are in fewer
 * than SKV_MADE_BLOCK_PIECES pages.
 */
static bool sizes_fit(const struct skv_form *f, enum skv_page_kind kind, const struct skv_model *m)
{
	const uint32_t bytes = skv_form_record_bytes(f, kind);
	uint32_t one, two;

	if (bytes == 0 || bytes > skv_page_bytes(m))
		return kind == SKV_PAGES_REFS && bytes == 0 && f->stride == 0;
	one = skv_form_pages(f, kind, m->n_kv_heads, skv_page_bytes(m), SKV_BLOCK_TOKENS);
	two = skv_form_pages(f, kind, m->n_kv_heads, skv_page_bytes(m), 2 * SKV_BLOCK_TOKENS);
	return one < SKV_MADE_BLOCK_PIECES && two - one < SKV_MADE_BLOCK_PIECES;
}

const char *skv_made_check(const struct skv_made *made, const struct skv_model *m)
{
	const char *wrong = NULL;

	for (uint32_t layer = 0; layer < m->n_layers && !wrong; layer++) {
		const struct skv_form *f = &made->form[layer];
		const struct skv_layer_slots x = sealed_slots(f, SKV_BLOCK_TOKENS);

		if (f->kind == 0)
			continue;
		wrong = packed_check(&x, SKV_BLOCK_TOKENS);
		if (!wrong && !(sizes_fit(f, SKV_PAGES_CODES, m) && sizes_fit(f, SKV_PAGES_REFS, m)))
			wrong = "a layer's records of compressed tokens have a size that cannot be";
	}
	return wrong;
}

void skv_seqmem_begin_with(struct skv_seqmem *s, uint32_t n, uint32_t n_layers, const struct skv_made *made)
{
	s->next[1] = -1;
	s->len[1] = n;
	s->about[1] = n | SKV_ABOUT_PROMPTED;
	s->policy = made->policy;
	for (uint32_t layer = 0; layer < n_layers; layer++)
		if (made->form[layer].kind) {
			s->about[1] |= SKV_ABOUT_SLOTS;
			s->sealed = n;
		}
	if (s->sealed) {
		s->codec = made->codec;
		s->rope = made->rope;
		memcpy(s->codec_path, made->codec_path, sizeof(s->codec_path));
		for (uint32_t layer = 0; layer < n_layers; layer++)
			s->lay[1].slots[layer] = sealed_slots(&made->form[layer], n);
	}
	atomic_store_explicit(&s->commit, (uint64_t)1 << 32 | n, memory_order_release);
}

uint64_t skv_seqmem_compressed(const struct skv_seqmem *s, uint32_t epoch, uint32_t n_layers)
{
	uint64_t n = 0;

	if (!(__atomic_load_n(&s->about[epoch & 1], __ATOMIC_RELAXED) & SKV_ABOUT_SLOTS))
		return 0;
	for (uint32_t layer = 0; layer < n_layers; layer++) {
		const struct skv_layer_slots *slots = &s->lay[epoch & 1].slots[layer];

		if (__atomic_load_n(&slots->form.kind, __ATOMIC_RELAXED) == SKV_COMPRESS_LATENT)
			n += __atomic_load_n(&slots->n_compressed, __ATOMIC_RELAXED);
	}
	return n;
}

bool skv_seqmem_rewind(struct skv_seqmem *s)
{
	const uint64_t commit = atomic_load_explicit(&s->commit, memory_order_acquire);
	const uint32_t epoch = skv_commit_epoch(commit) - 1, len = __atomic_load_n(&s->len[epoch & 1], __ATOMIC_RELAXED);

	if (skv_commit_epoch(commit) == 0 || len > s->max_tokens)
		return false;
	atomic_store_explicit(&s->commit, (uint64_t)epoch << 32 | len, memory_order_release);
	return true;
}

const char *skv_seqmem_check(const struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	if (s->magic != SKV_SEQMEM_MAGIC)
		return "sequence memory has no valid header";
	if (s->n_layers != l->n_layers || s->max_tokens != l->max_tokens || s->max_pages != l->max_pages)
		return "sequence memory is of another shape than its model";
	if (skv_commit_len(atomic_load(&s->commit)) > l->max_tokens)
		return "committed length is beyond the sequence's maximum";
	if (atomic_load(&s->journal_n) > l->journal_most)
		return "eviction journal is longer than the page tables";
	return NULL;
}

/*
 * Zeroes memory that may never have been touched. Writing to such memory would allocate pages of the sparse memfd, and
 * so would reading it, so a hole is punched instead. Only parts of pages, and memory that is not a mapped shared file,
 * are overwritten with zeros.
 */
static void zero_sparse(void *p, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t head = align_up((uintptr_t)p, page) - (uintptr_t)p, hole;

	if (head < bytes) {
		hole = (bytes - head) / page * page;
		if (hole > 0 && madvise((char *)p + head, hole, MADV_REMOVE) == 0) {
			memset(p, 0, head);
			memset((char *)p + head + hole, 0, bytes - head - hole);
			return;
		}
	}
	memset(p, 0, bytes);
}

void skv_seqmem_replay(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	uint32_t epoch = skv_commit_epoch(atomic_load_explicit(&s->commit, memory_order_acquire));

	if (atomic_load(&s->journal_epoch) == epoch) {
		size_t n = atomic_load(&s->journal_n), most = l->journal_most;
		const struct skv_eviction *j = skv_seqmem_journal(s, l);

		for (size_t i = 0; i < n && i < most; i++) {
			/*
			 * each field is read once, because a malicious client may change it between its check and its
			 * use
			 */
			uint32_t table = __atomic_load_n(&j[i].table, __ATOMIC_RELAXED);
			uint32_t page = __atomic_load_n(&j[i].page, __ATOMIC_RELAXED);

			if (table < l->n_tables && page < l->max_pages)
				skv_seqmem_table(s, l, table)[page] = skv_seqmem_evicted(l, table);
		}
	}
	atomic_store(&s->journal_n, 0);
}

void skv_seqmem_recover(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	uint64_t commit = atomic_load_explicit(&s->commit, memory_order_acquire);
	uint32_t len = skv_commit_len(commit) < l->max_tokens ? skv_commit_len(commit) : l->max_tokens;

	skv_seqmem_replay(s, l);
	skv_seqmem_tokens(s, l)[len] = s->next[skv_commit_epoch(commit) & 1];
	for (uint32_t table = 0; table < l->n_tables; table++) {
		uint32_t n = skv_seqmem_entries(l, table, len);

		zero_sparse(skv_seqmem_table(s, l, table) + n, (l->max_pages - n) * sizeof(skv_pte));
	}
}
