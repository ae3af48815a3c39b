/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a sequence as left by another process: header, tables, journal. The input is a list of words to write
 * into well-formed memory. Memory that passes skv_seqmem_check() can be replayed and recovered without a write outside
 * of it, and then matches its last commit.
 */
#include "common/records.h"
#include "common/seqmem.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "seqmem";
const int fuzz_copies = 300;

#define LAYERS 2u
#define MAX_TOKENS 96u

/* Chooses words of the header and the journal more often than their sizes would. */
static size_t where(struct fuzz_input *in, const struct skv_seqmem_layout *l)
{
	size_t begin = 0, bytes = l->total;

	switch (fuzz_u8(in) % 5) {
	case 0: bytes = sizeof(struct skv_seqmem); break;
	case 1: begin = l->journal, bytes = 64; break;
	case 2: begin = l->table, bytes = l->n_tables * l->max_pages * sizeof(skv_pte); break;
	case 3: bytes = 128; break;
	}
	return begin + fuzz_u16(in) * sizeof(uint32_t) % bytes / sizeof(uint32_t) * sizeof(uint32_t);
}

static void must_be_recovered(struct skv_seqmem *s, const struct skv_seqmem_layout *l)
{
	uint64_t commit = s->commit;
	uint32_t len = skv_commit_len(commit);

	MUST(!skv_seqmem_check(s, l));
	MUST(len <= MAX_TOKENS);
	MUST(s->journal_n == 0);
	MUST(skv_seqmem_tokens(s, l)[len] == s->next[skv_commit_epoch(commit) & 1]);
	for (uint32_t t = 0; t < l->n_tables; t++)
		for (uint32_t i = skv_seqmem_entries(l, t, len); i < l->max_pages; i++)
			MUST(skv_pte_kind(skv_seqmem_table(s, l, t)[i]) == SKV_PTE_NONE);
}

/* Data about compressed tokens is rejected, or another sequence can begin with it. */
static void must_be_begun_with(const struct skv_seqmem *s, const struct skv_model *m)
{
	struct skv_seqmem *begun = calloc(1, sizeof(*begun));
	const uint32_t n = 3 * SKV_BLOCK_TOKENS;
	struct skv_made made;

	MUST(begun);
	skv_seqmem_made(s, LAYERS, &made);
	if (!skv_made_check(&made, m)) {
		MUST(skv_made_pages(&made, m, n + SKV_BLOCK_TOKENS) - skv_made_pages(&made, m, n) <= LAYERS * (16 + 2 * SKV_MADE_BLOCK_PIECES));
		skv_seqmem_begin_with(begun, n, LAYERS, &made);
		MUST(!skv_layer_slots_check(begun->lay[1].slots, begun->about[1], n, LAYERS));
	}
	free(begun);
}

void fuzz_one(const uint8_t *data, size_t size)
{
	struct fuzz_input in = {data, size};
	struct skv_model model = {.n_layers = LAYERS, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16};
	struct skv_seqmem_layout l;
	struct skv_seqmem *s;
	struct skv_lay lay;
	void *once;
	uint32_t about;

	skv_seqmem_layout(&model, MAX_TOKENS, &l);
	s = calloc(1, l.total);
	once = malloc(l.total);
	MUST(s && once);
	skv_seqmem_init(s, &l);
	s->commit = (uint64_t)fuzz_u8(&in) << 32 | fuzz_u8(&in) % (MAX_TOKENS + 1);
	while (in.left) {
		uint32_t *word = (uint32_t *)((char *)s + where(&in, &l));

		*word = fuzz_u8(&in) & 1 ? fuzz_u32(&in) : fuzz_u8(&in);
	}
	if (!skv_seqmem_check(s, &l)) {
		lay = s->lay[skv_commit_epoch(s->commit) & 1];
		about = s->about[skv_commit_epoch(s->commit) & 1];
		must_be_begun_with(s, &model);
		skv_layer_slots_check(lay.slots, about, skv_commit_len(s->commit), LAYERS);
		skv_seqmem_replay(s, &l);
		skv_seqmem_recover(s, &l);
		must_be_recovered(s, &l);
		memcpy(once, s, l.total);
		skv_seqmem_recover(s, &l);
		MUST(memcmp(once, s, l.total) == 0);
	}
	free(once);
	free(s);
}
