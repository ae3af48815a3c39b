/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes of layers through the client library: windows, softcaps, sinks, scales, K and V of other layers, rows of
 * any stride and dtype, under policies of every kind.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/layers-case.h"
#include "tests/support/policies.h"

#define TOKENS 420u
#define SEQS 4u

static struct layers_model x;
static struct skv_session *session;
static struct layers_seq all[SEQS];

static void setup(void)
{
	client_begin(NULL);
}

/* ---- policies -------------------------------------------------------------------------------- */

/* The policy of each sequence, and whether an earlier one may have evicted tokens. */
static const struct policy_row *runs[SEQS];
static bool evicted[SEQS];

/* Does it evict tokens or pages of single heads, or compress? */
static bool keeps(const struct policy_row *row)
{
	return row->sets & SET_OWN_LAYERS;
}

static void give(uint32_t i, const struct policy_row *row)
{
	evicted[i] |= runs[i] && keeps(runs[i]);
	runs[i] = row;
	OK(skv_seq_policy(all[i].seq, row->spec));
}

/*
 * Does skv_selection report what the sequence's rows attend to, apart from layers with windows? If tokens were evicted,
 * only for decode rows of the policy that evicted them: under other policies ids are slots.
 */
static bool is_reported(uint32_t i, bool prompt)
{
	if (policy_action(runs[i]->spec) == SKV_ACT_COMPRESS || evicted[i])
		return false;
	return !prompt || !(keeps(runs[i]) || strstr(runs[i]->spec, "prefill="));
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void begin(bool shared)
{
	layers_model(&x, "layers", shared, TOKENS);
	OK(skv_open(client, &x.model, "full", &session));
	for (uint32_t i = 0; i < SEQS; i++) {
		struct skv_seq *seq;

		OK(skv_seq_new(session, NULL, 0, &seq));
		layers_seq_init(&x, &all[i], seq, rnd64(), TOKENS);
	}
}

static void end(void)
{
	for (uint32_t i = 0; i < SEQS; i++)
		layers_seq_deinit(&all[i]);
	skv_close(session);
}

/* A step of some of them; with `prompts` some read a few rows of a prompt. */
static void step(bool prompts)
{
	struct layers_item items[SEQS];
	uint32_t n = 0, first = rnd_below(SEQS);

	for (uint32_t i = 0; i < SEQS; i++) {
		const uint32_t number = (first + i) % SEQS, rows = 1 + rnd_below(rnd_below(2) ? 5 : 70);
		struct layers_seq *q = &all[number];
		const bool prompt = q->len == 0 || (prompts && rnd_below(3) == 0);

		if (q->len + rows + 1 > TOKENS || (q->len > 0 && rnd_below(4) == 0))
			continue;
		q->exact = is_reported(number, prompt);
		items[n++] = (struct layers_item){.q = q, .n = prompt ? rows : 1, .prompt = prompt};
	}
	if (n > 0)
		layers_step(&x, session, items, n);
}

/* Any policy; where layers share K and V, one that chooses or evicts whole pages. fp8 pages are not compressed. */
static const struct policy_row *any_of(bool shared)
{
	const int n = policy_rows(SET_SHARED_LAYERS), most = n + (shared ? 0 : policy_rows(SET_OWN_LAYERS));
	const struct policy_row *row;

	do {
		const int which = (int)rnd_below((uint32_t)most);

		row = which < n ? policy_row(SET_SHARED_LAYERS, which) : policy_row(SET_OWN_LAYERS, which - n);
	} while (x.model.kv_dtype == SKV_FP8 && policy_action(row->spec) == SKV_ACT_COMPRESS);
	return row;
}

static void mixed(bool shared)
{
	begin(shared);
	for (uint32_t i = 0; i < SEQS; i++)
		give(i, any_of(shared));
	for (int i = 0; i < 40; i++)
		step(i < 25);
	end();
}

START_TEST(any_policies)
{
	rnd_begin((uint64_t)_i);
	mixed(_i % 2);
}
END_TEST

/* One policy after another takes over the same sequences. */
START_TEST(swaps)
{
	rnd_begin((uint64_t)_i);
	begin(false);
	for (int round = 0; round < 6; round++) {
		for (uint32_t i = 0; i < SEQS; i++)
			give(i, any_of(false));
		for (int i = 0; i < 6; i++)
			step(round < 3);
	}
	end();
}
END_TEST

/*
 * A prompt that is announced as a whole and read in chunks: the policy's dense tail applies, and windows stay windows.
 */
START_TEST(tails)
{
	rnd_begin((uint64_t)_i);
	begin(_i % 2);
	for (uint32_t i = 0; i < SEQS; i++) {
		give(i, policy_row(SET_TAILS, (int)i % policy_rows(SET_TAILS)));
		all[i].exact = is_reported(i, true);
	}
	for (uint32_t left = 200, n; left > 0; left -= n) {
		struct layers_item items[SEQS];

		n = 1 + rnd_below(left < 90 ? left : 90);
		for (uint32_t i = 0; i < SEQS; i++)
			items[i] = (struct layers_item){.q = &all[i], .n = n, .remaining = left - n, .prompt = true};
		layers_step(&x, session, items, SEQS);
	}
	end();
}
END_TEST

/* ---- shared K and V -------------------------------------------------------------------------- */

/* Two layers with K and V of their own, two that attend to the first one's. */
static void share(void)
{
	layers_model(&x, "shared", false, TOKENS);
	x.model.n_layers = 4;
	for (uint32_t i = 0; i < 4; i++)
		x.layer[i] = SKV_MODEL_LAYER(.shares_kv = i >= 2, .window = i == 3 ? 40 : 0);
}

static void feed(struct layers_seq *q, uint32_t n, bool prompt)
{
	for (uint32_t i = 0; i < (prompt ? 1 : n); i++)
		layers_step(&x, session, &(struct layers_item){.q = q, .n = prompt ? n : 1, .prompt = prompt}, 1);
}

/* Layers that share have no pages; an engine that attaches the sequence, or a fork, goes on in the same way. */
START_TEST(shared_layers)
{
	struct skv_seq *seq, *fork;
	struct layers_seq q, other;
	uint64_t resident, total;

	share();
	OK(skv_open(client, &x.model, "full", &session));
	OK(skv_seq_new(session, "shared", 0, &seq));
	layers_seq_init(&x, &q, seq, 7, TOKENS);
	feed(&q, 100, true);
	feed(&q, 20, false);
	skv_seq_pages(seq, &resident, &total);
	ck_assert_uint_eq(resident, 2 * skv_pages_of(120));
	ck_assert_uint_eq(total, resident);
	OK(skv_seq_fork(seq, NULL, SKV_ALL, &fork));
	layers_seq_init(&x, &other, fork, 7, TOKENS);
	for (uint32_t layer = 0; layer < 4; layer++) {
		const size_t bytes = (size_t)TOKENS * x.model.n_kv_heads * x.model.head_dim * sizeof(float);

		memcpy(other.k[layer], q.k[layer], bytes);
		memcpy(other.v[layer], q.v[layer], bytes);
	}
	other.len = q.len;
	feed(&other, 30, true);
	feed(&q, 10, false);
	OK(skv_seq_detach(seq));
	OK(skv_seq_attach(session, "shared", &q.seq));
	OK(skv_seq_policy(q.seq, POLICY_BOUNDS "?budget=2&dense=0"));
	feed(&q, 10, false);
	feed(&q, 17, true);
	OK(skv_seq_drop(q.seq));
	layers_seq_deinit(&q);
	layers_seq_deinit(&other);
}
END_TEST

/* ---- refused --------------------------------------------------------------------------------- */

START_TEST(refusals)
{
	struct skv_session *s;
	struct skv_seq *seq;
	float rows[2 * 4 * 64] = {0};

	share();
	for (int i = 0; i < policy_rows(SET_OWN_LAYERS); i++) {
		const char *spec = policy_row(SET_OWN_LAYERS, i)->spec;

		OK(skv_open(client, &x.model, "full", &s));
		OK(skv_seq_new(s, NULL, 0, &seq));
		FAILS(skv_seq_policy(seq, spec), EINVAL, "layer 0, whose K and V");
		skv_close(s);
		FAILS(skv_open(client, &x.model, spec, &s), EINVAL, "layer 0, whose K and V");
	}
	/* the last layer has a window, so it is not the policy's */
	OK(skv_open(client, &x.model, POLICY_SCORES "?dense=3", &s));
	skv_close(s);
	x.layer[1].window = 33;
	FAILS(skv_open(client, &x.model, POLICY_PAGES "?layers=1", &s), EINVAL,
	      POLICY_PAGES ": layers names layer 1, which has a sliding window of 33 tokens: "
	                   "expected layers without one");
	FAILS(skv_open(client, &x.model, POLICY_ANCHORS "?layers=0,3", &s), EINVAL, "layers names layer 3");
	FAILS(skv_open(client, &x.model, "full?prefill=kascade&prefill_anchors=0,1", &s), EINVAL, "prefill_anchors names layer 1");
	OK(skv_open(client, &x.model, POLICY_PAGES "?layers=0", &s));
	OK(skv_seq_new(s, NULL, 0, &seq));
	OK(skv_step_begin(s, &SKV_STEP_ITEM(.seq = seq, .n_tokens = 1, .flags = SKV_STEP_PROMPT), 1, NULL));
	OK(skv_attend(s, 0, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows)));
	OK(skv_attend(s, 1, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows)));
	FAILS(skv_attend(s, 2, &SKV_ATTN(.q = rows, .k = rows, .v = rows, .out = rows)), EINVAL,
	      "layer 2: k and v are given, expected NULL: it shares those of layer 0");
	OK(skv_attend(s, 2, &SKV_ATTN(.q = rows, .out = rows)));
	skv_step_abort(s);
}
END_TEST

/* fp8 pages are not compressed: a policy that would is refused wherever it is named. */
START_TEST(fp8)
{
	struct skv_model m = SKV_MODEL_INIT;
	struct skv_session *s;
	struct skv_seq *seq;

	m.n_layers = m.n_heads = m.n_kv_heads = 1;
	m.head_dim = 64;
	m.max_tokens = TOKENS;
	m.kv_dtype = SKV_FP8;
	m.device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
	strcpy(m.name, "fp8");
	FAILS(skv_open(client, &m, POLICY_QUANTIZES, &s), ENOTSUP,
	      "layer 0 cannot be compressed so: K and V are compressed from pages of");
	OK(skv_open(client, &m, "full", &s));
	OK(skv_seq_new(s, NULL, 0, &seq));
	FAILS(skv_seq_policy(seq, POLICY_QUANTIZES), ENOTSUP, "not of fp8");
	skv_close(s);
	m.io_dtype = SKV_FP8;
	FAILS(skv_open(client, &m, "full", &s), EINVAL, "io_dtype must be 0 (fp32), 1 (fp16) or 2 (bf16)");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-layers");
	TCase *t = add_case(s, "layers", 240, setup, client_end, shared_layers, NULL);
	const int cases = rnd_hurried() ? 3 : 12;

	tcase_add_loop_test(t, any_policies, 0, 2 * cases);
	tcase_add_loop_test(t, swaps, 0, cases);
	tcase_add_loop_test(t, tails, 0, cases);
	if (!devmem_is_device())
		tcase_add_test(t, refusals);
	tcase_add_test(t, fp8);
	return run_suite(s);
}
