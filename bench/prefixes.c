/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prefixes.c - sparsekv-bench prefixes: plays a trace of requests against running daemons, and measures how many
 * tokens they find in sealed prefixes.
 *
 * sparsekv-bench scale simulates the same traces. The trace file assigns each request to a host, so the simulation and
 * the daemons get the same prompts on the same hosts. Requests are played one after the other, without the pauses
 * between them. After each request the benchmark waits until the daemon has sent the sealed blocks to the store, so
 * that the next request finds them, as in the simulation.
 */
#include "bench/bench.h"
#include "bench/prefixes-player.h"
#include "bench/scale-trace.h"
#include "daemon/ctl/ctl.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SOCKETS 64
#define VOCABULARY (1u << 17)
#define CTL_MS 60000
#define SETTLE_US 2000 /* microseconds between two questions whether the daemon is still sending */

struct options {
	const char *replay, *socket[MAX_SOCKETS], *policy, *name, *csv;
	int n_sockets;
	long uid, settle;
	uint32_t layers, heads, kv_heads, dim;
	bool check;
	/* expected percentage of hit tokens (below 0: not checked), and the allowed difference in percentage points */
	double expect, within;
};

static const struct column columns[] = {
	{"host", -6},       {"requests", 0},     {"prompt_tokens", 0}, {"hit_tokens", 0},    {"hit_percent", 2},  {"fetched_tokens", 0},
	{"hits", 0},        {"hit_ms", 3},       {"hit_p90_ms", 3},    {"miss_ms", 3},       {"miss_p90_ms", 3},
};

static int complain(const char *what, const char *why)
{
	fprintf(stderr, "sparsekv-bench: prefixes: %s: %s\n", what, why);
	return -1;
}

/* ---- figures ------------------------------------------------------------------------------------- */

struct times {
	double *ms;
	size_t n, room;
};

struct figures {
	uint64_t requests, prompt_tokens, hit_tokens, fetched_tokens;
	struct times of[2]; /* [0]: requests without a hit; [1]: requests with a hit */
};

static int times_add(struct times *t, double ms)
{
	if (t->n == t->room) {
		double *more = realloc(t->ms, (2 * t->room + 64) * sizeof *more);

		if (!more)
			return complain("the figures", strerror(ENOMEM));
		t->ms = more;
		t->room = 2 * t->room + 64;
	}
	t->ms[t->n++] = ms;
	return 0;
}

static int figures_add(struct figures *t, uint32_t n_prompt, const struct player_told *told)
{
	t->requests++;
	t->prompt_tokens += n_prompt;
	t->hit_tokens += told->hit_tokens;
	return times_add(&t->of[told->hit_tokens > 0], told->ms);
}

static double hit_percent(const struct figures *t)
{
	return t->prompt_tokens ? 100 * (double)t->hit_tokens / (double)t->prompt_tokens : NAN;
}

static void row(struct report *r, const char *host, struct figures *t)
{
	double median[2], p90[2];

	for (int i = 0; i < 2; i++) {
		struct times *x = &t->of[i];

		median[i] = x->n ? bench_median(x->ms, x->n) : NAN;
		p90[i] = x->n ? x->ms[x->n - 1 - x->n / 10] : NAN; /* bench_median() has sorted the times */
	}
	report_row(r, host, (double)t->requests, (double)t->prompt_tokens, (double)t->hit_tokens, hit_percent(t),
	           (double)t->fetched_tokens, (double)t->of[1].n, median[1], p90[1], median[0], p90[0]);
}

static void figures_deinit(struct figures *t)
{
	free(t->of[0].ms);
	free(t->of[1].ms);
}

/* ---- hosts and their players --------------------------------------------------------------------- */

/* The players of one user, up to one for each host. */
struct user {
	struct user *next;
	uint32_t tenant;
	struct player player[MAX_SOCKETS]; /* [host]; pid 0: not started */
};

struct host {
	struct skv_ctl ctl;
	uint64_t fetched_before; /* tokens that the daemon had fetched from the store before this run */
	struct figures figures;
};

struct playing {
	const struct options *o;
	struct scale_reader trace;
	FILE *file;
	struct skv_model model;
	struct host host[MAX_SOCKETS];
	struct user *users;
	struct figures all;
	int32_t *ids; /* [model.max_tokens] */
	uint64_t differ;
};

/*
 * Asks the daemon for its jobs with the prefix store that are not done, and for the tokens fetched from the store since
 * it started.
 */
static int ask(struct host *h, uint64_t *ret_jobs, uint64_t *ret_fetched)
{
	json_t *status, *prefixes;
	int e = skv_ctl_query(&h->ctl, SKV_QUERY_STATUS, &status);

	if (e < 0)
		return complain("the daemon's status", h->ctl.err);
	prefixes = json_array_get(json_object_get(status, "prefixes"), 0);
	if (!prefixes)
		e = complain("the daemon's status", "there is nothing of prefixes in it");
	*ret_jobs = skv_json_u64(prefixes, "sending") + skv_json_u64(prefixes, "fetching");
	*ret_fetched = skv_json_u64(prefixes, "fetched_tokens");
	json_decref(status);
	return e;
}

/* Waits until everything sealed is in the store, or until the time of --settle is over. */
static int settle(const struct playing *w, struct host *h)
{
	const double until = bench_now() + (double)w->o->settle / 1e3;
	uint64_t jobs = 0, fetched;

	if (!w->o->settle)
		return 0;
	for (;;) {
		if (ask(h, &jobs, &fetched) < 0)
			return -1;
		if (!jobs)
			return 0;
		if (bench_now() > until)
			return complain("--settle", "by then the daemon has not sent to the store what was sealed");
		usleep(SETTLE_US);
	}
}

static int hosts_open(struct playing *w)
{
	uint64_t jobs;

	for (int i = 0; i < w->o->n_sockets; i++) {
		struct host *h = &w->host[i];

		if (skv_ctl_connect(&h->ctl, w->o->socket[i], "sparsekv-bench", CTL_MS) < 0)
			return complain(w->o->socket[i], h->ctl.err);
		if (ask(h, &jobs, &h->fetched_before) < 0)
			return -1;
	}
	return 0;
}

/* Returns the player of a tenant at a host, and starts it if necessary; NULL after printing an error. */
static struct player *player_of(struct playing *w, uint32_t host, uint32_t tenant)
{
	struct player_setup setup = {.socket = w->o->socket[host], .policy = w->o->policy, .model = w->model, .check = w->o->check};
	struct user *u = w->users;
	int e;

	if (w->o->uid)
		setup.uid = (uid_t)w->o->uid + tenant;
	else
		tenant = 0; /* one user plays all tenants; they share no prefixes, because their prompts differ */
	while (u && u->tenant != tenant)
		u = u->next;
	if (!u) {
		u = calloc(1, sizeof *u);
		if (!u) {
			complain("a user", strerror(ENOMEM));
			return NULL;
		}
		*u = (struct user){.next = w->users, .tenant = tenant};
		w->users = u;
	}
	e = u->player[host].pid ? 0 : player_start(&u->player[host], &setup);
	if (e < 0)
		complain("a process for a user", strerror(-e));
	return e < 0 ? NULL : &u->player[host];
}

/* ---- the trace ----------------------------------------------------------------------------------- */

static int bad_trace(const struct playing *w, int e)
{
	char text[256];

	if (e == -EINVAL)
		snprintf(text, sizeof text, "%s:%lu: %s", w->o->replay, w->trace.line, w->trace.error);
	else
		snprintf(text, sizeof text, "%s: %s", w->o->replay, strerror(-e));
	return complain("--replay", text);
}

/* Starts reading the trace from its beginning. */
static int trace_begin(struct playing *w)
{
	int e;

	rewind(w->file);
	scale_reader_deinit(&w->trace);
	e = scale_reader_init(&w->trace, w->file);
	return e < 0 ? bad_trace(w, e) : 0;
}

/* Finds the longest sequence of the trace, and checks that there is a daemon for each host. */
static int look_through(struct playing *w)
{
	struct scale_request r;
	uint32_t longest = 0;
	int e = trace_begin(w);

	if (e < 0)
		return e;
	if (w->trace.hosts != (uint32_t)w->o->n_sockets)
		return complain("--socket", "expected as many as the trace has hosts");
	while ((e = scale_reader_next(&w->trace, &r)) > 0)
		if (r.n_prompt + r.answer.n_tokens > longest)
			longest = r.n_prompt + r.answer.n_tokens;
	if (e < 0)
		return bad_trace(w, e);
	if (longest == 0 || longest > SKV_MAX_TOKENS)
		return complain("--replay", longest ? "a request has more tokens than a sequence can have" : "there is no request in it");
	w->model.max_tokens = longest;
	w->ids = malloc(longest * sizeof *w->ids);
	return w->ids ? 0 : complain("the trace", strerror(ENOMEM));
}

static void make_ids(const struct scale_request *r, int32_t *to)
{
	for (uint32_t s = 0; s <= r->n_segments; s++) {
		const struct scale_segment *seg = s < r->n_segments ? &r->prompt[s] : &r->answer;

		for (uint32_t i = 0; i < seg->n_tokens; i++)
			*to++ = (int32_t)scale_token(seg->content, i, VOCABULARY);
	}
}

static int play(struct playing *w, const struct scale_request *r)
{
	struct host *h = &w->host[r->host];
	struct player *p = player_of(w, r->host, r->tenant);
	struct player_told told;

	if (!p)
		return -1;
	make_ids(r, w->ids);
	if (player_play(p, w->ids, r->n_prompt, r->answer.n_tokens, &told) < 0)
		return complain(w->o->replay, "not all of it was played");
	if (told.differs) {
		w->differ++;
		fprintf(stderr, "sparsekv-bench: prefixes: %s:%lu: %" PRIu32 " tokens of %" PRIu32 " were there, and the output is not what "
		        "reading all of them gives\n", w->o->replay, w->trace.line, told.hit_tokens, r->n_prompt);
	}
	if (figures_add(&h->figures, r->n_prompt, &told) < 0 || figures_add(&w->all, r->n_prompt, &told) < 0)
		return -1;
	return settle(w, h);
}

static int play_all(struct playing *w)
{
	struct scale_request r;
	int e = trace_begin(w);

	while (e == 0 && (e = scale_reader_next(&w->trace, &r)) > 0)
		e = play(w, &r);
	return e;
}

/* ---- the whole benchmark ------------------------------------------------------------------------- */

static int show(struct report *r, struct playing *w)
{
	uint64_t jobs, fetched;
	char name[16];

	for (int i = 0; i < w->o->n_sockets; i++) {
		struct host *h = &w->host[i];

		if (ask(h, &jobs, &fetched) < 0)
			return -1;
		h->figures.fetched_tokens = fetched - h->fetched_before;
		w->all.fetched_tokens += h->figures.fetched_tokens;
		snprintf(name, sizeof name, "%d", i);
		row(r, name, &h->figures);
	}
	row(r, "all", &w->all);
	return 0;
}

static int verdict(const struct playing *w)
{
	const double got = hit_percent(&w->all);
	char text[128];

	if (w->differ)
		return complain("--check", "hits gave what reading the prompt does not");
	if (w->o->expect < 0 || fabs(got - w->o->expect) <= w->o->within)
		return 0;
	snprintf(text, sizeof text, "%.2f per cent were hit, which is not within %g points of %g", got, w->o->within, w->o->expect);
	return complain("--expect", text);
}

static void end(struct playing *w)
{
	for (struct user *u = w->users, *next; u; u = next) {
		next = u->next;
		for (int i = 0; i < w->o->n_sockets; i++)
			if (u->player[i].pid)
				player_stop(&u->player[i]);
		free(u);
	}
	for (int i = 0; i < w->o->n_sockets; i++) {
		skv_ctl_close(&w->host[i].ctl);
		figures_deinit(&w->host[i].figures);
	}
	figures_deinit(&w->all);
	scale_reader_deinit(&w->trace);
	free(w->ids);
	fclose(w->file);
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct playing w = {.o = o, .model = SKV_MODEL_INIT};
	int e;

	for (int i = 0; i < MAX_SOCKETS; i++)
		w.host[i].ctl = (struct skv_ctl)SKV_CTL_NULL;
	w.model.n_layers = o->layers;
	w.model.n_heads = o->heads;
	w.model.n_kv_heads = o->kv_heads;
	w.model.head_dim = o->dim;
	w.model.kv_dtype = SKV_BF16;
	w.model.io_dtype = SKV_F32;
	snprintf(w.model.name, sizeof w.model.name, "%s", o->name);
	w.file = fopen(o->replay, "r");
	if (!w.file)
		return complain(o->replay, strerror(errno));
	e = look_through(&w);
	e = e < 0 ? e : hosts_open(&w);
	e = e < 0 ? e : play_all(&w);
	e = e < 0 ? e : show(r, &w);
	e = e < 0 ? e : verdict(&w);
	end(&w);
	return e;
}

static const char about[] =
	"Plays a trace of sparsekv-bench scale against daemons that serve, one for each of its hosts, with a model that is\n"
	"made up. Prompts begin with what sealed prefixes have of them, and are sealed with their answers. hit_ms and miss_ms\n"
	"are what skv_seq_new_from() takes where something was found and where nothing was, the median and the 90th percentile.";

static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_TEXT("replay", "FILE", &o->replay, "the trace"),
		ENG_TEXTS("socket", "PATH", o->socket, &o->n_sockets, "a daemon's; again for the next host of the trace"),
		ENG_COUNT("uid", &o->uid, 0, INT32_MAX, "tenants are users, from that user id on, which only root can be\n(all are one user)"),
		ENG_COUNT("settle", &o->settle, 0, 3600000,
		             "milliseconds, at most, until a request is in the store, before the next; 0: none (60000)"),
		ENG_FLAG("check", &o->check, "read each prompt from nothing, too, and compare"),
		ENG_REAL("expect", &o->expect, 0, 100, "per cent of prompts' tokens that are hits; else the exit status is 1"),
		ENG_REAL("within", &o->within, 0, 100, "so many points more or less (5)"),
		ENG_TEXT("policy", "SPEC", &o->policy, "the policy (full)"),
		ENG_TEXT("name", "NAME", &o->name, "the model's: what is sealed under another name is not found (prefixes)"),
		ENG_COUNT("layers", &o->layers, 1, SKV_MAX_LAYERS, "layers (2)"),
		BENCH_HEADS(&o->heads, &o->kv_heads, "q heads/kv heads (2/1)"),
		ENG_COUNT("dim", &o->dim, 16, SKV_MAX_HEAD_DIM, "head dimension (16)"),
		BENCH_CSV(&o->csv),
	};
	const struct bench_command command = {"prefixes", NULL, about, table, sizeof table / sizeof *table};
	int e;

	*o = (struct options){.policy = "full", .name = "prefixes", .settle = 60000, .layers = 2, .heads = 2, .kv_heads = 1, .dim = 16,
	                      .expect = -1, .within = 5};
	e = bench_options(&command, argc, argv);
	if (e == 0 && !o->replay)
		e = complain("--replay", "expected a trace that sparsekv-bench scale wrote");
	if (e == 0 && !o->n_sockets)
		e = complain("--socket", "expected one for each host of the trace");
	return e;
}

int bench_prefixes(int argc, char **argv)
{
	struct options o;
	int e = parse(&o, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof columns / sizeof *columns, o.csv);
}
