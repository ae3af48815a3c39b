/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/raw-engine.h"

#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include "common/seqmem.h"
#include "common/spec.h"

struct skv_wire_model raw_engine_model(uint32_t n_layers)
{
	struct skv_wire_model m = {.n_layers = n_layers, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16,
	                           .kv_dtype = SKV_F16, .max_tokens = RAW_ENGINE_TOKENS, .n_ranks = 1};

	skv_wire_string(m.name, sizeof(m.name), "engine");
	return m;
}

void raw_engine_open(struct raw_engine *e, const char *socket, uint32_t n_layers)
{
	struct skv_wire_model m = raw_engine_model(n_layers);

	e->raw = raw_hello(socket);
	e->n_runs = 0;
	raw_open_model(e->raw, &m, "full", &e->session);
	skv_wire_to_model(&e->model, &m);
}

static uint32_t page(struct raw_engine *e)
{
	struct skv_msg_lease_get get = {.session = e->session.session, .least = 1, .most = SKV_CALL_PAGES};
	struct skv_wire_run *last;
	const struct skv_msg_runs *ok;

	if (e->n_runs == 0) {
		ok = raw_ask(e->raw, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
		e->n_runs = ok->n_runs;
		memcpy(e->runs, ok + 1, ok->n_runs * sizeof(*e->runs));
	}
	last = &e->runs[e->n_runs - 1];
	if (--last->count == 0)
		e->n_runs--;
	return last->first + last->count;
}

uint32_t raw_engine_seq(struct raw_engine *e, const char *name, uint32_t tokens)
{
	struct skv_seqmem_layout layout;
	struct skv_msg_seq_name m = {.session = e->session.session, .max_tokens = tokens};
	const struct skv_msg_seq_ok *ok;
	struct skv_seqmem *mem;
	uint32_t seq;

	skv_wire_string(m.name, sizeof(m.name), name);
	ok = raw_ask(e->raw, SKV_MSG_SEQ_NEW, &m, sizeof(m), -1);
	seq = ok->seq;
	skv_seqmem_layout(&e->model, ok->max_tokens, &layout);
	ck_assert_uint_eq(ok->bytes, layout.total);
	mem = mmap(NULL, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, e->raw->fds[0], 0);
	ck_assert_ptr_ne(mem, MAP_FAILED);
	for (uint32_t layer = 0; layer < e->model.n_layers; layer++) {
		skv_pte *table = skv_seqmem_table(mem, &layout, layer);

		for (uint32_t i = 0; i < skv_pages_of(tokens); i++)
			table[i] = skv_pte_make(SKV_PTE_PRIVATE, page(e));
	}
	memset((char *)mem + layout.state, 1, layout.state_bytes);
	memset((char *)mem + layout.tokens, 1, tokens * sizeof(int32_t));
	mem->policy = skv_spec_fingerprint("full");
	atomic_store(&mem->commit, (uint64_t)1 << 32 | tokens);
	munmap(mem, layout.total);
	return seq;
}
