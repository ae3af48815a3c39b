/* SPDX-License-Identifier: Apache-2.0 */
/* The policies as built, loaded as a daemon and a client load them, and plugins that must be refused. */
#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "common/fd.h"
#include "common/spec.h"
#include "tests/random.h"

#define POLICY(name) SKV_BUILDDIR "/policies/.libs/" name ".so"
#define PLUGIN(name) SKV_BUILDDIR "/tests/plugins/.libs/" name ".so"

/* The reference model's shape, and the least and the most that a model may have. */
static const struct skv_model reference = {
        .size = sizeof(reference), .n_layers = 16, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64,
        .kv_dtype = SKV_BF16, .max_tokens = 16384, .n_ranks = 1, .name = "reference",
};
static const struct skv_model smallest = {
        .size = sizeof(smallest), .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16,
        .max_tokens = 1, .n_ranks = 1, .name = "smallest",
};
static const struct skv_model deepest = {
        .size = sizeof(deepest), .n_layers = SKV_MAX_LAYERS, .n_heads = 8, .n_kv_heads = 8, .head_dim = 128,
        .max_tokens = SKV_MAX_TOKENS, .n_ranks = 1, .name = "deepest",
};

static char err[512];

static int load_file(const char *path, const struct skv_policy **ret)
{
	SKV_FD_CLEANUP int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *handle;

	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	err[0] = '\0';
	return skv_policy_dlopen(fd, ret, &handle, err, sizeof(err));
}

static const struct skv_policy *policy(const char *path)
{
	const struct skv_policy *p = NULL;

	ck_assert_msg(load_file(path, &p) == 0, "%s: %s", path, err);
	return p;
}

#define ck_assert_text(text, part) ck_assert_msg(strstr(text, part), "\"%s\" does not say \"%s\"", text, part)

/* ---- the four policies ----------------------------------------------------------------------- */

START_TEST(loads_with_its_name)
{
	static const char *const names[] = {"full", "streaming", "delta", "template"};
	char path[512];

	snprintf(path, sizeof(path), "%s/policies/.libs/%s.so", SKV_BUILDDIR, names[_i]);
	ck_assert_str_eq(policy(path)->name, names[_i]);
	ck_assert_int_eq(skv_policy_check(policy(path), err, sizeof(err)), 0);
	ck_assert_int_eq(skv_policy_rehearse(policy(path), NULL, &reference, err, sizeof(err)), 0);
	ck_assert_int_eq(skv_policy_rehearse(policy(path), NULL, &deepest, err, sizeof(err)), 0);
}
END_TEST

/* The plans of all layers in short: d dense, s dense and selects, w window, pN and tN what layer N selected. */
static const char *plans_of(const char *path, const char *spec, const struct skv_model *m)
{
	static char text[4 * SKV_MAX_LAYERS];
	struct skv_plan plans[SKV_MAX_LAYERS];
	const struct skv_policy *p = policy(path);
	char config[1024];
	size_t at = 0;

	ck_assert_uint_le(p->config_size, sizeof(config));
	ck_assert_msg(skv_spec_parse(p, spec, m, config, err, sizeof(err)) == 0, "%s", err);
	ck_assert_msg(skv_policy_plan(p, config, m, plans, err, sizeof(err)) == 0, "%s", err);
	ck_assert_msg(skv_policy_rehearse(p, spec, m, err, sizeof(err)) == 0, "%s", err);
	for (uint32_t l = 0; l < m->n_layers; l++) {
		const struct skv_plan *q = &plans[l];

		ck_assert_uint_eq(q->sharing, SKV_SHARE_ALL_HEADS);
		if (q->attend == SKV_ATTEND_DENSE)
			at += (size_t)sprintf(text + at, q->evidence ? "s" : "d");
		else if (q->attend == SKV_ATTEND_WINDOW)
			at += (size_t)sprintf(text + at, "w");
		else
			at += (size_t)sprintf(text + at, "%c%u", q->attend == SKV_ATTEND_PAGES ? 'p' : 't', q->source);
		at += (size_t)sprintf(text + at, l + 1 < m->n_layers ? " " : "");
	}
	return text;
}

START_TEST(plans)
{
	ck_assert_str_eq(plans_of(POLICY("full"), "full", &reference), "d d d d d d d d d d d d d d d d");

	ck_assert_str_eq(plans_of(POLICY("streaming"), "streaming?budget=0.25&dense=2", &reference),
	                 "d d w w w w w w w w w w w w w w");
	ck_assert_str_eq(plans_of(POLICY("streaming"), "streaming", &reference), "w w w w w w w w w w w w w w w w");

	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?budget=0.25&layers=2,7,12", &reference),
	                 "d d s p2 p2 p2 p2 s p7 p7 p7 p7 s p12 p12 p12");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?layers=4,5&dense=3", &reference),
	                 "d d d d s s p5 p5 p5 p5 p5 p5 p5 p5 p5 p5");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?layers=0&dense=2", &reference),
	                 "s d p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta", &reference),
	                 "d d s p2 p2 p2 p2 s p7 p7 p7 p7 s p12 p12 p12");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?dense=16", &reference), "d d d d d d d d d d d d d d d d");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?dense=14", &reference), "d d d d d d d d d d d d d d s s");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta?dense=0", &smallest), "s");
	ck_assert_str_eq(plans_of(POLICY("delta"), "delta", &smallest), "d");

	ck_assert_str_eq(plans_of(POLICY("template"), "template?dense=1", &reference),
	                 "s t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0");
	ck_assert_str_eq(plans_of(POLICY("template"), "template", &reference),
	                 "d d s t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2");
	ck_assert_str_eq(plans_of(POLICY("template"), "template?dense=1", &smallest), "s");
}
END_TEST

/* What the hooks asked for in one step, by primitives that only write it down. */
static struct {
	struct skv_select pages[SKV_MAX_LAYERS], tokens[SKV_MAX_LAYERS];
	struct skv_window evicted[SKV_MAX_LAYERS];
	uint32_t n_pages, n_tokens, n_evicted;
} asked;

static void note_pages(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	(void)ctx;
	asked.pages[asked.n_pages++] = *s;
}
static void note_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	(void)ctx;
	asked.tokens[asked.n_tokens++] = *s;
}
static void note_evict(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	(void)ctx;
	ck_assert_uint_eq(asked.evicted[layer].budget.count, 0);
	asked.evicted[layer] = *w;
	asked.n_evicted++;
}

static void run_step(const char *path, const char *spec)
{
	static const struct skv_prims prims = {sizeof(prims), note_pages, note_tokens, note_evict, NULL};
	const struct skv_policy *p = policy(path);
	char config[1024];
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx), .n_seqs = 1, .prims = &prims, .model = &reference, .config = config};

	memset(&asked, 0, sizeof(asked));
	ck_assert_msg(skv_spec_parse(p, spec, &reference, config, err, sizeof(err)) == 0, "%s", err);
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		if (p->before)
			p->before(&ctx, l);
		if (p->after)
			p->after(&ctx, l);
	}
	if (p->step_end)
		p->step_end(&ctx);
}

/* As skv_prims says that a selection is sized. */
static void sizes(const struct skv_select *s, uint32_t n, uint32_t *ret_k, uint32_t *ret_r)
{
	uint32_t k = skv_budget_of(s->budget, n, s->floor);
	uint32_t r = s->recent ? s->recent : k / 8;

	r = r > s->recent_floor ? r : s->recent_floor;
	*ret_k = k;
	*ret_r = r < k ? r : k;
}

/* A share as in the reference simulation: K = max(8, ceil(f·pages)), L = max(2, K/8). */
START_TEST(delta_selects)
{
	static const double shares[] = {0.05, 0.1, 0.125, 0.25, 0.5, 0.9};
	uint32_t k, r;

	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		char spec[64];

		snprintf(spec, sizeof(spec), "delta?budget=%g&layers=2,7,12", shares[i]);
		run_step(POLICY("delta"), spec);
		ck_assert_uint_eq(asked.n_pages, 3);
		ck_assert_uint_eq(asked.n_tokens + asked.n_evicted, 0);
		ck_assert_uint_eq(asked.pages[0].layer, 2);
		ck_assert_uint_eq(asked.pages[1].layer, 7);
		ck_assert_uint_eq(asked.pages[2].layer, 12);
		ck_assert_uint_eq(asked.pages[1].pin, 0);
		for (uint32_t n = 1; n < 5000; n++) {
			uint32_t want = (uint32_t)fmax(8, ceil(shares[i] * n - 1e-9)), want_r = want / 8 > 2 ? want / 8 : 2;

			sizes(&asked.pages[1], n, &k, &r);
			ck_assert_uint_eq(k, want < n ? want : n);
			ck_assert_uint_eq(r, want_r < k ? want_r : k);
		}
	}

	/* A count means itself; the paper's K = 64, L = 8 is the default. */
	run_step(POLICY("delta"), "delta");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 64);
	ck_assert_uint_eq(r, 8);
	run_step(POLICY("delta"), "delta?budget=1");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 1);
	ck_assert_uint_eq(r, 1);
	run_step(POLICY("delta"), "delta?budget=0.5&recent=1&pin=4");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 500);
	ck_assert_uint_eq(r, 1);
	ck_assert_uint_eq(asked.pages[0].pin, 4);
}
END_TEST

START_TEST(streaming_evicts)
{
	run_step(POLICY("streaming"), "streaming?budget=0.25&dense=2");
	ck_assert_uint_eq(asked.n_pages + asked.n_tokens, 0);
	ck_assert_uint_eq(asked.n_evicted, 14);
	for (uint32_t l = 2; l < 16; l++) {
		ck_assert_uint_eq(asked.evicted[l].sinks, 4);
		ck_assert_uint_eq(asked.evicted[l].floor, 128);
		ck_assert_float_eq(asked.evicted[l].budget.share, 0.25f);
	}
	/* never a token that a later step wants: the window's beginning does not move back as the sequence grows */
	for (uint32_t n = 1, start = 0; n < 20000; n++) {
		uint32_t w = skv_budget_of(asked.evicted[2].budget, n, 128), s = n - (w - 4 > 0 && w > 4 ? w - 4 : 1);

		ck_assert_uint_ge(s, start);
		start = s;
	}

	run_step(POLICY("streaming"), "streaming?budget=64&sinks=0");
	ck_assert_uint_eq(asked.n_evicted, 16);
	ck_assert_uint_eq(asked.evicted[0].budget.count, 64);
	ck_assert_uint_eq(asked.evicted[0].floor, 0);
	ck_assert_uint_eq(asked.evicted[0].sinks, 0);
}
END_TEST

START_TEST(template_selects)
{
	run_step(POLICY("template"), "template?budget=0.1&recent=32&dense=2");
	ck_assert_uint_eq(asked.n_tokens, 1);
	ck_assert_uint_eq(asked.n_pages + asked.n_evicted, 0);
	ck_assert_uint_eq(asked.tokens[0].layer, 1);
	ck_assert_uint_eq(asked.tokens[0].recent, 32);
	ck_assert_uint_eq(asked.tokens[0].floor, 128);
}
END_TEST

START_TEST(parameters_that_make_no_sense)
{
	static const struct {
		const char *path, *spec, *says;
	} c[] = {
	        {POLICY("streaming"), "streaming?budget=4", "sinks=4 leaves no room for recent tokens, expected below 4"},
	        {POLICY("streaming"), "streaming?budget=0.5&sinks=128", "sinks=128"},
	        {POLICY("delta"), "delta?budget=8&recent=9", "recent=9, expected at most the budget of 8 pages"},
	        {POLICY("delta"), "delta?layers=2,16", "layers names layer 16, but the model's layers are 0 to 15"},
	        {POLICY("template"), "template?dense=0", "dense=0, expected 1 to 16"},
	        {POLICY("template"), "template?dense=17", "dense=17, expected 1 to 16"},
	        {POLICY("full"), "full?budget=1", "unknown parameter \"budget\", it has none"},
	};
	char config[1024];

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		ck_assert_int_eq(skv_spec_parse(policy(c[i].path), c[i].spec, &reference, config, err, sizeof(err)), -EINVAL);
		ck_assert_text(err, c[i].says);
	}
}
END_TEST

/* ---- loading --------------------------------------------------------------------------------- */

/* The loader remembers paths. A number of an fd that was used before must not bring back what it was then. */
START_TEST(an_fd_number_used_again)
{
	const struct skv_policy *p;
	void *handle;
	int fd = open(POLICY("full"), O_RDONLY | O_CLOEXEC), again;

	ck_assert_int_eq(skv_policy_dlopen(fd, &p, &handle, err, sizeof(err)), 0);
	ck_assert_str_eq(p->name, "full");
	close(fd);
	again = open(POLICY("delta"), O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(again, fd);
	ck_assert_int_eq(skv_policy_dlopen(again, &p, &handle, err, sizeof(err)), 0);
	ck_assert_str_eq(p->name, "delta");
	close(again);
}
END_TEST

static void *contents(const char *path, size_t *ret_bytes)
{
	SKV_FD_CLEANUP int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *data;

	ck_assert_int_eq(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size);
	ck_assert_int_eq(read(fd, data, (size_t)st.st_size), st.st_size);
	*ret_bytes = (size_t)st.st_size;
	return data;
}

/* Two generations of one policy, as a swap makes them: sealed copies that live side by side. */
START_TEST(sealed_copies_are_apart)
{
	const struct skv_policy *p[2];
	void *handle[2], *data;
	size_t bytes;

	data = contents(POLICY("delta"), &bytes);
	for (int i = 0; i < 2; i++) {
		SKV_FD_CLEANUP int fd = skv_memfd_new_sealed("delta", data, bytes);

		ck_assert_int_ge(fd, 0);
		ck_assert_msg(skv_policy_dlopen(fd, &p[i], &handle[i], err, sizeof(err)) == 0, "%s", err);
	}
	ck_assert_ptr_ne(p[0], p[1]);
	ck_assert_str_eq(p[0]->name, p[1]->name);
	ck_assert_int_eq(dlclose(handle[0]), 0);
	ck_assert_str_eq(p[1]->name, "delta");
	ck_assert_int_eq(dlclose(handle[1]), 0);
	free(data);
}
END_TEST

START_TEST(refused_plugins)
{
	static const struct {
		const char *path, *says;
	} c[] = {
	        {PLUGIN("bad-abi"), "policy block: abi is 2, expected 1: built for another version of sparsekv"},
	        {PLUGIN("bad-params"), "bad-params: parameter layers: offset is 8, expected a multiple of 8 within the 16 bytes"},
	        {PLUGIN("bad-symbol"), "plugin: it does not export sparsekv_policy()"},
	        {SKV_BUILDDIR "/Makefile", "plugin: not a 64-bit ELF shared object"},
	        {"/dev/null", "plugin: not a regular file"},
	};

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		const struct skv_policy *p = NULL;

		ck_assert_int_eq(load_file(c[i].path, &p), -EBADMSG);
		ck_assert_ptr_null(p);
		ck_assert_text(err, c[i].says);
	}
}
END_TEST

START_TEST(refused_by_rehearsal)
{
	ck_assert_int_eq(skv_policy_rehearse(policy(PLUGIN("bad-hooks")), NULL, &reference, err, sizeof(err)), -EBADMSG);
	ck_assert_str_eq(err, "bad-hooks: after of layer 1: asks for a selection by evidence that the layer's plan does not "
	                      "ask for (layer 1)");
	/* what adopt refuses depends on the sequences: a rehearsal lets it pass */
	ck_assert_int_eq(skv_policy_rehearse(policy(PLUGIN("refuse-adopt")), NULL, &reference, err, sizeof(err)), 0);
}
END_TEST

/* Whatever a file is cut to, it is refused, and by its headers: the dynamic loader would fault. */
START_TEST(truncated_files)
{
	size_t bytes;
	char *data = contents(POLICY("delta"), &bytes);

	for (int i = 0; i < 400; i++) {
		size_t cut = i < 100 ? (size_t)i : i < 200 ? bytes - 1 - (size_t)(i - 100) : rnd_below((uint32_t)bytes);
		const struct skv_policy *p = NULL;
		void *handle;
		SKV_FD_CLEANUP int fd = skv_memfd_new_sealed("cut", data, cut);

		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(skv_policy_dlopen(fd, &p, &handle, err, sizeof(err)), -EBADMSG);
		ck_assert_text(err, cut < 64 ? "not a 64-bit ELF shared object" : "truncated");
	}
	free(data);
}
END_TEST

/* ---- the block, spoiled one field at a time -------------------------------------------------- */

static void dense(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	(void)layer;
	(void)plan;
}

struct config {
	uint32_t a, b;
	struct skv_layer_set layers;
};

static struct skv_param params[3];
static struct skv_policy block;

static void reset(void)
{
	params[0] = (struct skv_param){"a", SKV_PARAM_UINT, offsetof(struct config, a), "1", "one"};
	params[1] = (struct skv_param){"b", SKV_PARAM_BOOL, offsetof(struct config, b), "true", "two"};
	params[2] = (struct skv_param){"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "1,2", "three"};
	block = (struct skv_policy){
	        SKV_POLICY_HEADER,
	        .name = "block",
	        .version = "1",
	        .summary = "A block",
	        .params = params,
	        .n_params = 3,
	        .config_size = sizeof(struct config),
	        .plan = dense,
	};
}

#define REFUSED(change, says)                                                                               \
	do {                                                                                                \
		reset();                                                                                    \
		change;                                                                                     \
		ck_assert_int_eq(skv_policy_check(&block, err, sizeof(err)), -EBADMSG);                     \
		ck_assert_text(err, says);                                                                  \
	} while (0)

START_TEST(spoiled_blocks)
{
	char name[SKV_NAME_MAX + 1];

	reset();
	ck_assert_int_eq(skv_policy_check(&block, err, sizeof(err)), 0);

	REFUSED(block.abi = 0, "abi is 0, expected 1");
	REFUSED(block.size -= 8, "size is");
	REFUSED(block.page_tokens = 32, "page_tokens is 32, expected 16");
	REFUSED(block.param_size++, "param_size is");
	REFUSED(block.plan_size = 0, "plan_size is 0");
	REFUSED(block.prims_size += 8, "prims_size is");
	REFUSED(block.name = NULL, "name");
	REFUSED(block.name = "", "name");
	REFUSED(block.name = "Block", "name is \"Block\"");
	REFUSED(block.name = "a?b", "name");
	memset(name, 'n', sizeof(name));
	name[SKV_NAME_MAX] = '\0';
	REFUSED(block.name = name, "name");
	REFUSED(block.version = NULL, "version");
	REFUSED(block.summary = "two\nlines", "summary");
	REFUSED(block.summary = NULL, "summary");
	REFUSED(block.action = 4, "action is 4, expected 0 to 3");
	REFUSED(block.granularity = 2, "granularity is 2");
	REFUSED(block.evidence = 5, "evidence is 5");
	REFUSED(block.scope = 3, "scope is 3");
	REFUSED(block.sharing = 3, "sharing is 3");
	REFUSED(block.plan = NULL, "plan is NULL");
	REFUSED(block.params = NULL, "n_params is 3 and params NULL");
	REFUSED(block.n_params = SKV_POLICY_MAX_PARAMS + 1, "n_params is 65");
	REFUSED(block.config_size = 1u << 20, "config_size is 1048576");
	REFUSED(block.config_size = 4, "parameter b: offset is 4, expected a multiple of 4 within the 4 bytes");
	REFUSED(params[0].name = "", "parameter 0: name");
	REFUSED(params[0].name = "a=b", "parameter 0: name");
	REFUSED(params[1].help = NULL, "parameter b: help");
	REFUSED(params[1].type = 0, "parameter b: type is 0, expected 1 to 5");
	REFUSED(params[1].type = 6, "parameter b: type is 6");
	REFUSED(params[1].offset = 2, "parameter b: offset is 2");
	REFUSED(params[1].offset = UINT32_MAX - 3, "parameter b: offset is 4294967292");
	REFUSED(params[1].offset = 0, "parameter b: offset 0 is inside parameter a");
	REFUSED(params[1].offset = 16, "parameter layers: offset 8 is inside parameter b");
	REFUSED(params[2].name = "a", "parameter a: is there twice");
	REFUSED(params[0].def = "-1", "parameter a: default is \"-1\", expected a whole number");
	REFUSED(params[1].def = "yes", "parameter b: default is \"yes\", expected 0, 1, true or false");
	REFUSED(params[2].def = "", "parameter layers: default is \"\"");
}
END_TEST

/* ---- plans and requests that do not fit ------------------------------------------------------ */

static struct skv_plan wanted[4];
static void (*in_before)(const struct skv_policy_ctx *, uint32_t);
static void (*in_after)(const struct skv_policy_ctx *, uint32_t);
static void (*in_end)(const struct skv_policy_ctx *);
static int (*in_adopt)(const struct skv_policy_ctx *, char *, size_t);

static void plan_wanted(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	ck_assert_uint_eq(plan->attend + plan->evidence + plan->source, 0);
	wanted[layer].size = plan->size;
	*plan = wanted[layer];
}

static void all_good(void)
{
	reset();
	memset(wanted, 0, sizeof(wanted));
	wanted[0].evidence = SKV_EV_PAGES | SKV_EV_TOKENS;
	wanted[1] = (struct skv_plan){.attend = SKV_ATTEND_PAGES, .source = 0};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_TOKENS, .source = 0};
	wanted[3] = (struct skv_plan){.attend = SKV_ATTEND_WINDOW, .window.budget.count = 64};
	block.plan = plan_wanted;
	block.seq_state_bytes = 40;
	params[2].def = "1,2";
}

static const char *rehearse(void)
{
	struct skv_model m = reference;

	m.n_layers = 4;
	block.before = in_before;
	block.after = in_after;
	block.step_end = in_end;
	block.adopt = in_adopt;
	err[0] = '\0';
	return skv_policy_rehearse(&block, NULL, &m, err, sizeof(err)) == 0 ? "" : err;
}

static void select_both(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct skv_select s = {.layer = 0, .budget = {.share = 0.5f}};

	if (layer != 0)
		return;
	ctx->prims->select_pages(ctx, &s);
	ctx->prims->select_tokens(ctx, &s);
}
static void select_early(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 0)
		ctx->prims->select_pages(ctx, &(struct skv_select){.budget = {.count = 8}});
}
static void select_far(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)layer;
	ctx->prims->select_pages(ctx, &(struct skv_select){.layer = 4, .budget = {.count = 8}});
}
static void select_ahead(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 0)
		ctx->prims->select_pages(ctx, &(struct skv_select){.layer = 2, .budget = {.count = 8}});
}
static void select_nothing(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)layer;
	ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 0});
}
/* what one layer left behind may be used when the next one begins */
static void select_late(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		select_both(ctx, 0);
}
static void select_last(const struct skv_policy_ctx *ctx)
{
	select_both(ctx, 0);
}
static void evict_here(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	ctx->prims->evict_outside(ctx, layer, &(struct skv_window){.budget.count = 8});
}
static void evict_far(const struct skv_policy_ctx *ctx)
{
	ctx->prims->evict_outside(ctx, 4, &(struct skv_window){.budget.count = 8});
}
static void evict_all(const struct skv_policy_ctx *ctx)
{
	ctx->prims->evict_outside(ctx, 3, &(struct skv_window){.sinks = 8});
}
static void state_beyond(const struct skv_policy_ctx *ctx)
{
	memset(ctx->prims->seq_state(ctx, ctx->n_seqs), 1, 40);
}
/* the state of each sequence is its own, and what adopt wrote is there at the step's end */
static int state_adopt(const struct skv_policy_ctx *ctx, char *text, size_t len)
{
	(void)text;
	(void)len;
	for (uint32_t i = 0; i < ctx->n_seqs; i++)
		memset(ctx->prims->seq_state(ctx, i), (int)i + 1, 40);
	return 0;
}
static void state_end(const struct skv_policy_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->n_seqs; i++)
		for (uint32_t b = 0; b < 40; b++)
			ck_assert_uint_eq(((uint8_t *)ctx->prims->seq_state(ctx, i))[b], i + 1);
}

START_TEST(rehearsals)
{
	in_after = select_both;
	in_adopt = state_adopt;
	in_end = state_end;
	all_good();
	ck_assert_str_eq(rehearse(), "");

	in_after = NULL;
	all_good();
	ck_assert_str_eq(rehearse(), "block: before of layer 1: the layer attends to a selection of layer 0 that no hook has made");
	in_after = select_both;
	in_before = select_early;
	all_good();
	ck_assert_text(rehearse(), "before of layer 0: selects by layer 0, which has not attended yet");
	in_before = select_late;
	in_after = NULL;
	all_good();
	ck_assert_str_eq(rehearse(), "");
	in_before = NULL;
	in_after = select_both;
	in_end = select_last;
	all_good();
	ck_assert_text(rehearse(), "step_end: selects, expected in before and after only");
	in_end = state_end;
	in_after = select_far;
	all_good();
	ck_assert_text(rehearse(), "a selection of a layer that the model does not have");
	in_after = select_ahead;
	all_good();
	wanted[1] = (struct skv_plan){0};
	wanted[2] = (struct skv_plan){.evidence = SKV_EV_PAGES};
	ck_assert_text(rehearse(), "selects by layer 2, which has not attended yet");
	in_after = select_nothing;
	all_good();
	ck_assert_text(rehearse(), "a selection without a budget");
	in_after = evict_here;
	all_good();
	ck_assert_text(rehearse(), "after of layer 0: evicts, expected in step_end only");
	in_after = select_both;
	in_end = evict_far;
	all_good();
	ck_assert_text(rehearse(), "step_end: evicts from layer 4, but the model's layers are 0 to 3");
	in_end = evict_all;
	all_good();
	ck_assert_text(rehearse(), "evicts outside a window without a budget");
	in_end = state_beyond;
	all_good();
	ck_assert_text(rehearse(), "asks for the state of sequence 2 of 2");
	in_end = NULL;
	all_good();
	block.seq_state_bytes = 0;
	ck_assert_text(rehearse(), "adopt: asks for state, but seq_state_bytes is 0");
}
END_TEST

#define NO_PLAN(change, says)                                                                               \
	do {                                                                                                \
		all_good();                                                                                 \
		change;                                                                                     \
		ck_assert_text(rehearse(), says);                                                           \
	} while (0)

START_TEST(spoiled_plans)
{
	in_after = select_both;
	all_good();
	ck_assert_str_eq(rehearse(), "");
	NO_PLAN(wanted[0].attend = 4, "plan of layer 0: attend is not one of");
	NO_PLAN(wanted[0].evidence = 4, "plan of layer 0: evidence has unknown bits");
	NO_PLAN(wanted[3].evidence = SKV_EV_PAGES, "plan of layer 3: evidence comes from dense layers only");
	NO_PLAN(wanted[0].pool = 2, "pool is not one of");
	NO_PLAN(wanted[0].sharing = SKV_SHARE_Q_HEAD, "sharing is neither");
	NO_PLAN(wanted[1].source = 1, "plan of layer 1: source is not an earlier layer");
	NO_PLAN(wanted[1].source = 1000, "plan of layer 1: source is not an earlier layer");
	NO_PLAN(wanted[0].evidence = SKV_EV_TOKENS, "plan of layer 1: source leaves no evidence to select by");
	NO_PLAN(wanted[0].evidence = SKV_EV_PAGES, "plan of layer 2: source leaves no evidence to select by");
	NO_PLAN(wanted[3].window.budget.count = 0, "plan of layer 3: a window without a budget");
	NO_PLAN(wanted[3].window.budget.share = 0.5f, "plan of layer 3: a window without a budget");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("policies");
	TCase *t;
	SRunner *r;
	int failed;

	rnd_seed("test-policies");
	t = tcase_create("built");
	tcase_add_loop_test(t, loads_with_its_name, 0, 4);
	tcase_add_test(t, plans);
	tcase_add_test(t, delta_selects);
	tcase_add_test(t, streaming_evicts);
	tcase_add_test(t, template_selects);
	tcase_add_test(t, parameters_that_make_no_sense);
	suite_add_tcase(s, t);
	t = tcase_create("loading");
	tcase_add_test(t, an_fd_number_used_again);
	tcase_add_test(t, sealed_copies_are_apart);
	tcase_add_test(t, refused_plugins);
	tcase_add_test(t, refused_by_rehearsal);
	tcase_add_test(t, truncated_files);
	suite_add_tcase(s, t);
	t = tcase_create("checks");
	tcase_add_test(t, spoiled_blocks);
	tcase_add_test(t, rehearsals);
	tcase_add_test(t, spoiled_plans);
	suite_add_tcase(s, t);

	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
