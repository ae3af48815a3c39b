/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every policy against the oracle (tests/oracle/): on random and adversarial inputs the policy attends to the units
 * that its paper's rule selects, and outputs are attention over them. With SKV_TEST_DEVICE=1 on a device.
 * SKV_ORACLE_CASES is the number of cases for each policy and variant; HACKING.md says which target sets it.
 * SKV_ORACLE_POLICY is a prefix of the names of the policies to run.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-test.h"
#include "tests/support/codec-file.h"
#include "tests/oracle/oracle.h"
#include "tests/oracle/verify.h"
#include "tests/support/device-helper.h"

#define CASES 8u /* of a spec */

static struct fix daemon_;
static struct skv_client *client;

static void setup(void)
{
	fix_start_process(&daemon_, NULL);
	OK(skv_connect(&client, daemon_.socket));
}

static void teardown(void)
{
	skv_disconnect(client);
	fix_stop(&daemon_);
}

/* ---- backends ----------------------------------------------------------------------------------- */

/* Reuses the same memory as long as it suffices, so that steps are recorded and replayed. */
static int attend_on_device(struct skv_session *s, const struct skv_model *m, uint32_t layer, struct verify_rows *r)
{
	static struct skv_attn at;
	static size_t q_room, kv_room;
	size_t q = (size_t)r->n * m->n_heads * m->head_dim * sizeof(float);
	size_t kv = (size_t)r->n * m->n_kv_heads * m->head_dim * sizeof(float);
	int e;

	if (q > q_room || kv > kv_room) {
		devmem_put((void *)at.q);
		devmem_put((void *)at.k);
		devmem_put((void *)at.v);
		devmem_put(at.out);
		q_room = 2 * q;
		kv_room = 2 * kv;
		at = SKV_ATTN(.q = devmem_get(q_room), .k = devmem_get(kv_room), .v = devmem_get(kv_room),
		                       .out = devmem_get(q_room));
	}
	devmem_to((void *)at.q, r->q, q);
	devmem_to((void *)at.k, r->k, kv);
	devmem_to((void *)at.v, r->v, kv);
	e = skv_attend(s, layer, &at);
	if (e == 0)
		devmem_from(r->out, at.out, q);
	return e;
}

static struct verify_backend alloc_slots(void)
{
	if (!devmem_is_device())
		return verify_on_host;
	return (struct verify_backend){
	        .device = SKV_DEVICE_CUDA(0),
	        .stream = devmem_stream(),
	        .attend = attend_on_device,
	        .logit_slack = 0x1p-18,
	        .kept_slack = 0x1.8p-10, /* rounded to 11 bits twice */
	        .output_slack = 6e-3, /* tensor cores multiply weights of 8 or 11 bits */
	        .device_rounds = !getenv("FAKE_CUDA_DIR"), /* the fake device has the host's arithmetic */
	};
}

/* ---- specs --------------------------------------------------------------------------------------- */

#define SPEC 300u

/* Returns a budget: a share, or a count of units. */
static const char *some_budget(uint32_t least)
{
	static char text[16];

	if (rnd_below(2))
		return rnd_below(2) ? "0.25" : "0.5";
	snprintf(text, sizeof(text), "%u", least + rnd_below(2 * least + 8));
	return text;
}

static const char *some_layers(void)
{
	static const char *const sets[] = {"auto", "auto", "0", "0,2", "1,3", "1,2,5"};

	return sets[rnd_below(6)];
}

static void full_spec(char *to)
{
	strcpy(to, "full");
}

static void streaming_spec(char *to)
{
	snprintf(to, SPEC, "streaming?budget=%s&sinks=%u&dense=%u", some_budget(41), rnd_below(40), rnd_below(3));
}

static void delta_spec(char *to)
{
	snprintf(to, SPEC, "delta?budget=%s&recent=%u&layers=%s&dense=%u&pin=%u", some_budget(4), rnd_below(4),
	         some_layers(), rnd_below(3), rnd_below(3));
}

static void quest_spec(char *to, const char *variant, uint32_t least)
{
	snprintf(to, SPEC, "quest:%s?budget=%s&dense=%u", variant, some_budget(least), rnd_below(3));
}

static void quest_paper(char *to)
{
	quest_spec(to, "paper", 4);
}

static void quest_eval(char *to)
{
	quest_spec(to, "eval", 40); /* tokens */
}

static void quest_shared(char *to)
{
	quest_spec(to, "shared", 4);
}

static void quest_sglang(char *to)
{
	quest_spec(to, "sglang", 4);
}

static void omnikv_spec(char *to)
{
	snprintf(to, SPEC, "omnikv?budget=%s&recent=%u&layers=%s&dense=%u&more=%u", some_budget(16), rnd_below(16),
	         some_layers(), rnd_below(3), rnd_below(3));
}

static void kascade_spec(char *to, const char *variant)
{
	snprintf(to, SPEC, "kascade:%s?budget=%s&layers=%s", variant, some_budget(16), some_layers());
}

static void kascade_paper(char *to)
{
	kascade_spec(to, "paper");
}

static void kascade_dense(char *to)
{
	kascade_spec(to, "dense-anchors");
}

static void kascade_shared(char *to)
{
	kascade_spec(to, "shared");
}

static void kascade_shared_dense(char *to)
{
	kascade_spec(to, "shared-dense-anchors");
}

static void tidal_spec(char *to)
{
	snprintf(to, SPEC, "tidal?budget=%s&layers=%s&dense=%u", some_budget(16), some_layers(), rnd_below(3));
}

static void lessismore_spec(char *to)
{
	snprintf(to, SPEC, "lessismore?budget=%s&sinks=%u&recent=%u&layers=%s&dense=%u", some_budget(16), rnd_below(6),
	         rnd_below(10), some_layers(), rnd_below(3));
}

static void h2o_spec(char *to)
{
	snprintf(to, SPEC, "h2o?budget=%s&dense=%u", some_budget(16), rnd_below(3));
}

/* A spec with a window that fits the budget, and matching parameters. */
static void window_spec(char *to, const char *policy, bool once, const char *more)
{
	uint32_t window = 1 + rnd_below(32), again = once && rnd_below(3) == 0 ? 0 : window + rnd_below(20);

	snprintf(to, SPEC, "%s?budget=%s&window=%u&pool=%u&interval=%u&dense=%u%s", policy, some_budget(40), window,
	         1 + 2 * rnd_below(5), again, rnd_below(3), more);
}

static void snapkv_spec(char *to)
{
	window_spec(to, "snapkv", true, "");
}

static void adakv_spec(char *to)
{
	static const char *const more[] = {"", "&safeguard=0", "&safeguard=1", "&safeguard=0.5&max_head_ratio=1.25",
	                                   "&max_head_ratio=1", "&max_head_ratio=8"};

	window_spec(to, "adakv", true, more[rnd_below(6)]);
}

static void pyramidkv_kvpress(char *to)
{
	window_spec(to, "pyramidkv:kvpress", true, rnd_below(2) ? "&beta=3" : "");
}

static void pyramidkv_sparse_vllm(char *to)
{
	window_spec(to, "pyramidkv:sparse-vllm", true, "");
}

static void rkv_spec(char *to)
{
	window_spec(to, "rkv", false, rnd_below(2) ? "&lambda=0.7" : "");
}

/* Shape of a spec's models, and of its codec; n_layers 0: any shape. */
static struct skv_model shape;

/* Chooses a shape that supports sketches. */
static void sketch_shape(void)
{
	static const uint32_t host[][2] = {{1, 64}, {2, 32}, {3, 32}, {2, 96}}, device[][2] = {{1, 64}, {2, 64}, {3, 64}, {2, 96}};
	const uint32_t *h = devmem_is_device() ? device[rnd_below(4)] : host[rnd_below(4)];

	shape = (struct skv_model){.n_layers = 6, .n_kv_heads = h[0], .head_dim = h[1]};
	shape.n_heads = shape.n_kv_heads * (1 + rnd_below(4));
}

static void sketch_spec(char *to, const char *variant)
{
	sketch_shape();
	snprintf(to, SPEC, "sketch:%s?bits=%u&budget=%s&floor=%u&recent=%u&dense=%u", variant, 1 + rnd_below(4), some_budget(16), 16 + rnd_below(30),
	         1 + rnd_below(32), rnd_below(3));
}

static void sketch_kv(char *to)
{
	sketch_spec(to, "kv");
}

static void sketch_q(char *to)
{
	sketch_spec(to, "q");
}

static void graded_spec(char *to)
{
	sketch_shape();
	snprintf(to, SPEC, "graded?budget=%s&floor=%u&recent=%u&dense=%u", some_budget(16), 16 + rnd_below(30), 1 + rnd_below(32), rnd_below(3));
}

/* Layers that select for others do so by sketches. */
static void by_sketches(char *to)
{
	sketch_shape();
	snprintf(to + strlen(to), SPEC - strlen(to), "&scores=sketch&bits=%u", 1 + rnd_below(4));
}

static void kascade_sketch(char *to)
{
	snprintf(to, SPEC, "kascade:%s?budget=%s&layers=%s", rnd_below(2) ? "paper" : "shared", some_budget(41), some_layers());
	by_sketches(to);
}

static void omnikv_sketch(char *to)
{
	omnikv_spec(to);
	by_sketches(to);
}

static void delta_sketch(char *to)
{
	delta_spec(to);
	by_sketches(to);
}

static void raas_spec(char *to, const char *variant, const char *more)
{
	snprintf(to, SPEC, "raas:%s?budget=%s&dense=%u%s", variant, some_budget(2), rnd_below(2), more);
}

static void raas_paper(char *to)
{
	raas_spec(to, "paper", rnd_below(2) ? "&alpha=0.05" : "");
}

static void raas_unscaled(char *to)
{
	raas_spec(to, "unscaled", rnd_below(2) ? "&alpha=0.01" : "");
}

static void raas_ratio(char *to)
{
	raas_spec(to, "ratio", rnd_below(2) ? "&ratio=0.3" : "");
}

static void raas_quest(char *to)
{
	raas_spec(to, "quest", rnd_below(2) ? "&alpha=0.05" : "");
}

static uint32_t identity;

/* Writes a codec that is the identity, for `shape`. */
static void write_identity(const char *path, uint32_t stride, uint32_t near)
{
	uint32_t d = 2 * shape.n_kv_heads * shape.head_dim;
	float *one = calloc((size_t)d * d, sizeof(*one));
	struct codec_file file = {0};
	char about[80];
	uint8_t *bytes;
	size_t n;
	FILE *f = fopen(path, "w");

	snprintf(about, sizeof(about), "{\"sparsekv_codec\":\"1\",\"stride\":\"%u\",\"near\":\"%u\"}", stride, near);
	file.about = about;
	for (uint32_t i = 0; i < d; i++)
		one[(size_t)i * d + i] = 1;
	for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
		codec_file_add(&file, layer, "down", d, d, one);
		codec_file_add(&file, layer, "out", d, d, one);
	}
	bytes = codec_file_bytes(&file, &n);
	ck_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
	free(bytes);
	free(one);
}

/* Few tokens stay in rows, so that there is always something to compress. */
static void deltakv_spec(char *to, uint32_t bits, const char *more)
{
	static const uint32_t host[][2] = {{1, 64}, {2, 32}, {3, 32}, {4, 16}}, device[][2] = {{1, 64}, {1, 96},
			{2, 64}, {3, 64}};
	const uint32_t *heads = devmem_is_device() ? device[rnd_below(4)] : host[rnd_below(4)];

	shape = (struct skv_model){.n_layers = 6, .n_kv_heads = heads[0], .head_dim = heads[1]};
	shape.n_heads = shape.n_kv_heads * (1 + rnd_below(4));
	snprintf(to, SPEC, "deltakv?budget=%s&recent=%u&layers=%s&dense=%u&residual=%u&block=%u&bits=%u%s", some_budget(16),
	         rnd_below(16), some_layers(), rnd_below(3), 1 + rnd_below(40), 16 * (1 + rnd_below(3)), bits, more);
}

static void deltakv_identity(char *to)
{
	bool refs = rnd_below(3) > 0;
	uint32_t stride = refs ? 2 + rnd_below(15) : 0, near = refs ? 1 + rnd_below(4) : 0;
	char more[150], path[100];

	snprintf(path, sizeof(path), "%s/identity.safetensors", daemon_.dir);
	snprintf(more, sizeof(more), "&stride=%u&n_refs=%u&file=%s", stride, near, path);
	deltakv_spec(to, 16, more);
	identity = 2 * shape.n_kv_heads * shape.head_dim;
	write_identity(path, stride, near);
}

static void deltakv_refs(char *to)
{
	static const char *const more[] = {"", "&ref_bits=8", "&ref_bits=4&stride=3&n_refs=1"};

	deltakv_spec(to, 0, more[rnd_below(3)]);
}

/* Heads of whole scale blocks, which devices support, too. */
static void few_bits_shape(void)
{
	static const uint32_t kv_heads[] = {1, 2, 3, 2}, dims[] = {64, 64, 96, 128};
	uint32_t which = rnd_below(4);

	shape = (struct skv_model){.n_layers = 4, .n_kv_heads = kv_heads[which], .head_dim = dims[which]};
	shape.n_heads = shape.n_kv_heads * (1 + rnd_below(4));
}

static void kivi_spec(char *to)
{
	few_bits_shape();
	snprintf(to, SPEC, "kivi?bits=%u&scale_block=%u&residual=%u&block=%u&dense=%u", 2 + 2 * rnd_below(2),
	         shape.head_dim % 64 == 0 && rnd_below(2) ? 64 : 32, 1 + rnd_below(80), 32 * (1 + rnd_below(2)), rnd_below(2));
}

/* Selection by quantized keys. */
static void deltakv_full_bits(char *to)
{
	char more[60];

	snprintf(more, sizeof(more), "&ref_bits=4&full_bits=%u", 2 + 2 * rnd_below(2));
	deltakv_spec(to, 0, more);
	few_bits_shape();
	shape.n_layers = 6;
}

static void palu_identity(char *to)
{
	char path[100];

	snprintf(path, sizeof(path), "%s/identity.safetensors", daemon_.dir);
	deltakv_spec(to, 16, ""); /* sets the shape */
	snprintf(to, SPEC, "palu?residual=%u&block=%u&dense=%u&file=%s", 1 + rnd_below(40), 16 * (1 + rnd_below(3)), rnd_below(3),
	         path);
	identity = 2 * shape.n_kv_heads * shape.head_dim;
	write_identity(path, 0, 0);
}

static void template_spec(char *to)
{
	snprintf(to, SPEC, "template?budget=%s&recent=%u&dense=1", some_budget(16), rnd_below(20));
}

static const struct {
	const char *what;
	void (*make)(char *to);
} policies[] = {
	{"full", full_spec},
	{"streaming", streaming_spec},
	{"delta", delta_spec},
	{"quest:paper", quest_paper},
	{"quest:eval", quest_eval},
	{"quest:shared", quest_shared},
	{"quest:sglang", quest_sglang},
	{"omnikv", omnikv_spec},
	{"kascade:paper", kascade_paper},
	{"kascade:dense-anchors", kascade_dense},
	{"kascade:shared", kascade_shared},
	{"kascade:shared-dense-anchors", kascade_shared_dense},
	{"tidal", tidal_spec},
	{"lessismore", lessismore_spec},
	{"h2o", h2o_spec},
	{"snapkv", snapkv_spec},
	{"adakv", adakv_spec},
	{"pyramidkv:kvpress", pyramidkv_kvpress},
	{"pyramidkv:sparse-vllm", pyramidkv_sparse_vllm},
	{"rkv", rkv_spec},
	{"raas:paper", raas_paper},
	{"raas:unscaled", raas_unscaled},
	{"raas:ratio", raas_ratio},
	{"raas:quest", raas_quest},
	{"deltakv", deltakv_identity},
	{"deltakv?bits=0", deltakv_refs},
	{"deltakv?full_bits", deltakv_full_bits},
	{"kivi", kivi_spec},
	{"palu", palu_identity},
	{"template", template_spec}, /* unknown to the oracle: only the contract is checked */
	{"sketch:kv", sketch_kv},
	{"sketch:q", sketch_q},
	{"graded", graded_spec},
	{"kascade?scores=sketch", kascade_sketch},
	{"omnikv?scores=sketch", omnikv_sketch},
	{"delta?scores=sketch", delta_sketch},
};
#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

/* ---- the oracle itself ---------------------------------------------------------------------------- */

#define UNITS 12u

/* Returns whether u is among the best k, which are taken one after the other. */
static bool among_best(const double *score, uint32_t k, uint32_t u)
{
	bool taken[UNITS] = {false};

	for (uint32_t i = 0; i < k; i++) {
		uint32_t best = UNITS;

		for (uint32_t v = 0; v < UNITS; v++)
			if (!taken[v] && (best == UNITS || score[v] > score[best]))
				best = v;
		taken[best] = true;
	}
	return taken[u];
}

/*
 * A unit must be selected if it is among the best k even with its lowest possible score and the highest of all others.
 * It must not be selected if it is not among them even the other way round. Equal scores are one score, wherever it is
 * in its range.
 */
START_TEST(ranges)
{
	bool *hole[] = {(bool[UNITS]){0}};
	struct skv_model model = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1};
	struct oracle_step step = {.model = &model, .n = UNITS * ORACLE_PAGE, .hole = hole, .ties_hold = true};

	for (int round = 0; round < 1000; round++) {
		uint32_t k = rnd_below(UNITS + 1), kinds = 1 + rnd_below(UNITS), kind[UNITS];
		double slack = rnd_below(4) * 0.6, worst[UNITS], best[UNITS];
		struct oracle_score range[UNITS];
		struct oracle_set set;

		for (uint32_t u = 0; u < UNITS; u++) {
			kind[u] = rnd_below(kinds);
			range[u] = (struct oracle_score){kind[u] - slack, kind[u], kind[u] + slack};
		}
		oracle_set_new(&step, &set, ORACLE_PAGES, 1);
		oracle_best(&step, 0, &set, 0, 0, UNITS, range, k);
		ck_assert_uint_eq(set.count[0], k);
		for (uint32_t u = 0; u < UNITS; u++) {
			for (uint32_t v = 0; v < UNITS; v++) {
				worst[v] = kind[v] == kind[u] ? range[v].lo : range[v].hi;
				best[v] = kind[v] == kind[u] ? range[v].hi : range[v].lo;
			}
			ck_assert_uint_eq(set.class[u] == ORACLE_IN, among_best(worst, k, u));
			ck_assert_uint_eq(set.class[u] == ORACLE_OUT, !among_best(best, k, u));
		}
		oracle_sets_free(&set, 1);
	}
}
END_TEST

/* ---- tests --------------------------------------------------------------------------------------- */

static void verify_spec(const char *spec, uint32_t cases, struct verify *sum)
{
	struct verify_backend at = alloc_slots();
	struct verify v = {.client = client, .spec = spec, .cases = cases, .backend = &at, .model = "oracle",
	                   .seed = rnd64() / 10 * 10 + rnd_below(3), .shape = shape.n_layers ? &shape : NULL,
	                   .identity = identity};
	bool well = verify_policy(&v);

	ck_assert_msg(well, "%s, seed %llu: %s", spec, (unsigned long long)v.bad_seed, v.bad);
	sum->done += v.done;
	sum->sparse += v.sparse;
	sum->lists += v.lists;
	sum->unsure += v.unsure;
	sum->adopted += v.adopted;
	sum->worst = v.worst > sum->worst ? v.worst : sum->worst;
	sum->decompressed = v.decompressed > sum->decompressed ? v.decompressed : sum->decompressed;
	sum->unchecked |= v.unchecked;
}

START_TEST(policy)
{
	const char *wanted = getenv("SKV_ORACLE_CASES");
	uint32_t cases = wanted ? (uint32_t)strtoul(wanted, NULL, 10) : rnd_takes_all() ? 2 * CASES : CASES;
	struct verify sum = {0};
	const char *only = getenv("SKV_ORACLE_POLICY");
	char spec[SPEC];

	if (only && strncmp(policies[_i].what, only, strlen(only)) != 0)
		return;
	rnd_begin((uint64_t)_i);
	for (uint32_t i = 0; i == 0 || i < cases / CASES; i++) {
		shape.n_layers = identity = 0;
		policies[_i].make(spec);
		verify_spec(spec, CASES, &sum);
	}
	printf("%s: %u cases, %u of them sparse, %u rounds with other policies; %llu lists, %llu as roundings go; "
	       "outputs within %.1e",
	       policies[_i].what, sum.done, sum.sparse, sum.adopted, (unsigned long long)sum.lists,
	       (unsigned long long)sum.unsure, sum.worst);
	if (sum.decompressed > 0)
		printf(", decompressed ones within %.2f of their bound", sum.decompressed);
	puts(sum.unchecked ? ", but for those of compressed tokens" : "");
	fflush(stdout);
}
END_TEST

/*
 * Tables have as many entries as rows need pages: codecs whose records take more pages are refused, others are
 * accepted.
 */
START_TEST(wide_codes)
{
	struct skv_model m = SKV_MODEL_INIT;
	char path[100], spec[SPEC];
	struct skv_session *s;

	shape = (struct skv_model){.n_layers = 3, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64};
	m = (struct skv_model){.size = sizeof(m), .n_ranks = 1, .n_layers = 3, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64,
	                       .device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST, .kv_dtype = SKV_BF16, .max_tokens = 1000, .name = "oracle", .rope.type = SKV_ROPE_NONE};
	snprintf(path, sizeof(path), "%s/identity.safetensors", daemon_.dir);
	snprintf(spec, sizeof(spec), "deltakv?layers=0&dense=1&n_refs=4&stride=20&file=%s", path);
	write_identity(path, 20, 4); /* 272 bytes each: 15 in the page of 16 rows */
	ck_assert_int_eq(skv_open(client, &m, spec, &s), -ENOTSUP);
	ck_assert_msg(strstr(skv_last_error(), "15 codes"), "%s", skv_last_error());
	write_identity(path, 4, 4); /* three of four tokens have a code */
	snprintf(spec, sizeof(spec), "deltakv?layers=0&dense=1&n_refs=4&stride=4&file=%s", path);
	OK(skv_open(client, &m, spec, &s));
	skv_close(s);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-oracle");
	TCase *t = add_case(s, "policies", 600, setup, teardown, wide_codes, NULL);

	tcase_add_loop_test(t, policy, 0, (int)N_POLICIES);
	add_case(s, "oracle", 60, NULL, NULL, ranges, NULL);
	return run_suite(s);
}
