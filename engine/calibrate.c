/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-calibrate: runs a model with dense attention over texts, and writes a profile with the layers that select
 * tokens well for other layers, or a compressor for the model's K and V. See sparsekv-calibrate(1).
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/cli.h"
#include "engine/compress.h"
#include "engine/env.h"
#include "engine/import.h"
#include "engine/loss.h"
#include "engine/observe.h"
#include "engine/profile.h"
#include "engine/progress.h"
#include "engine/texts.h"

#define PROGRAM "sparsekv-calibrate"

static const char usage[] =
	"Usage: sparsekv-calibrate --model DIR [--text FILE | --tasks FILE] [-o FILE] [OPTION…]\n"
	"       sparsekv-calibrate --model DIR [--text FILE | --tasks FILE] --deltakv-pca FILE | --palu FILE [OPTION…]\n"
	"       sparsekv-calibrate --model DIR --import FILE -o FILE\n"
	"Run a model densely over texts, measure what its layers attend to, and choose layers by it; or compute a\n"
	"codec for its K and V.\n";

struct arguments {
	struct eng_cli cli;
	const char *text, *tasks, *output, *svg;
	uint32_t context, texts, rows, delta, anchors, filters, ranks, dense, top, gamma, sinks, window;
	uint32_t by_loss;
	double budget;
	const char *deltakv, *palu; /* output files for a compressor of deltakv and of palu */
	const char *import;         /* head map of Kascade's authors to convert to a profile */
	uint32_t width, stride, near; /* 0, UNSET, UNSET: the default value is used */
};
#define UNSET UINT32_MAX

#define EXIT_PARTIAL 3 /* exit status if interrupted: the results up to then were written */

static volatile sig_atomic_t stop;

/* ---- the command line ------------------------------------------------------------------------ */

/* Checks the options of compressors, and that they fit the other options. */
static int check_compressor(struct arguments *a, struct eng_error *err)
{
	bool any = a->deltakv || a->palu;

	if (a->deltakv && a->palu)
		return eng_fail(err, -EINVAL, "one of --deltakv-pca and --palu expected");
	if (any && (a->output || a->svg || a->by_loss))
		return eng_fail(err, -EINVAL, "%s: a compressor alone is made, no --output, --svg and --by loss expected",
		                a->palu ? "--palu" : "--deltakv-pca");
	if (a->width && !any)
		return eng_fail(err, -EINVAL, "--width: only with --deltakv-pca or --palu");
	if ((a->stride != UNSET || a->near != UNSET) && !a->deltakv)
		return eng_fail(err, -EINVAL, "--stride, --near: only with --deltakv-pca");
	if (a->stride == 0 && a->near != UNSET)
		return eng_fail(err, -EINVAL, "--near: with --stride 0 there are no references");
	a->stride = a->stride == UNSET ? 10 : a->stride;
	a->near = a->stride == 0 ? 0 : a->near == UNSET ? 4 : a->near;
	return 0;
}

static int check(struct arguments *a, struct eng_error *err)
{
	if (!a->cli.model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (a->text && a->tasks)
		return eng_fail(err, -EINVAL, "one of --text and --tasks expected");
	if (a->import && (!a->output || a->text || a->tasks || a->by_loss || a->svg || a->deltakv || a->palu))
		return eng_fail(err, -EINVAL, "--import: --output alone expected beside it and --model");
	if (a->cli.device != SKV_DEVICE_HOST && !a->by_loss)
		return eng_fail(err, -EINVAL, "--device: only the search of --by loss uses one");
	return check_compressor(a, err);
}

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	static const char *const ways[] = {"papers", "loss", NULL};
	const struct eng_option table[] = {
		ENG_TEXT("text", "FILE", &a->text,
		         "any text (default: one that is installed): pieces of it, evenly spread; the last half of each is "
		         "measured"),
		ENG_TEXT("tasks", "FILE", &a->tasks,
		         "cases as of sparsekv-eval: prompt and answer; the answer is measured"),
		ENG_TEXT("output", "FILE", &a->output, "write the profile, which policies take as profile=FILE"),
		ENG_TEXT("svg", "PREFIX", &a->svg, "draw PREFIX-shift.svg, PREFIX-similarity.svg and PREFIX-alike.svg"),
		ENG_COUNT("context", &a->context, 16, SKV_MAX_TOKENS,
		          "tokens of a piece, and of the longest case taken (default 4096)"),
		ENG_COUNT("texts", &a->texts, 1, 1u << 20, "pieces, or cases of each task and size (default 8)"),
		ENG_COUNT("rows", &a->rows, 0, SKV_MAX_TOKENS,
		          "tokens measured in each, evenly spread (default 128, with --by loss 64; 0: all)"),
		ENG_COUNT("delta-layers", &a->delta, 1, SKV_MAX_LAYERS, "how many to choose (default 3)"),
		ENG_COUNT("anchors", &a->anchors, 1, SKV_MAX_LAYERS, "(default 5)"),
		ENG_COUNT("filters", &a->filters, 1, SKV_MAX_LAYERS, "(default 3)"),
		ENG_COUNT("ranks", &a->ranks, 1, SKV_MAX_HEADS,
		          "kascade's head map leads to heads of the same tensor-parallel rank, of so many (default 1)"),
		ENG_COUNT("dense", &a->dense, 0, SKV_MAX_LAYERS,
		          "first layers that stay dense before delta's and filter layers (default 2)"),
		ENG_POWER("gamma", &a->gamma, 2, 4096, "rows that share a correction of sparse prompts (default 64)"),
		ENG_COUNT("sinks", &a->sinks, 0, SKV_MAX_TOKENS,
		          "attention sinks of such a prompt: first tokens that every row attends to (default 1024)"),
		ENG_COUNT("window", &a->window, 1, SKV_MAX_TOKENS, "and so many before it (default 2048)"),
		ENG_COUNT("top", &a->top, 1, 65536, "tokens that Kascade's similarity compares (default 64)"),
		ENG_NAME("by", "WAY", &a->by_loss, ways,
		         "papers (default): by what the layers attend to\n"
		         "loss: from there on search for layers under which the model predicts best"),
		ENG_SHARE("budget", &a->budget, "of the tokens, that the search uses (default 0.125)"),
		ENG_TEXT("import", "FILE", &a->import,
		         "instead of all this: convert a head map of Kascade's authors, MODEL_layers_0_2_8_13_14.npy"),
		ENG_TEXT("deltakv-pca", "FILE", &a->deltakv, "instead of all this: write a codec for deltakv"),
		ENG_TEXT("palu", "FILE", &a->palu, "the same for palu"),
		ENG_COUNT("width", &a->width, 32, 65536,
		          "elements of a code (default: a quarter of those of K and V, up to a multiple of 64; for palu half)"),
		ENG_COUNT("stride", &a->stride, 0, 255,
		          "tokens from one reference of deltakv's to the next (default 10; 0: none)"),
		ENG_COUNT("near", &a->near, 1, ENG_RESIDUALS_NEAR, "references of a token (default 4)"),
		ENG_CLI_OPTIONS(&a->cli),
	};
	const struct eng_command command = {PROGRAM, usage, table, sizeof(table) / sizeof(*table), false};
	int r;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .context = 4096, .texts = 8, .rows = UNSET, .delta = 3,
	                        .anchors = 5, .filters = 3, .ranks = 1, .dense = 2, .top = 64, .gamma = 64, .sinks = 1024,
	                        .window = 2048, .budget = 0.125,
	                        .stride = UNSET, .near = UNSET};
	r = eng_options(&command, argc, argv, err);
	if (a->rows == UNSET)
		/* the search decodes these rows once for each of hundreds of sets of layers */
		a->rows = a->by_loss ? 64 : 128;
	return r ? r : check(a, err);
}

/*
 * Checks that the model has enough layers, that the ranks divide its kv heads, and that no sliding window is shorter
 * than the context.
 */
static int check_counts(const struct arguments *a, const struct eng_config *c, struct eng_error *err)
{
	uint32_t most = c->n_layers > a->dense ? c->n_layers - a->dense : 0;

	if (a->delta > most || a->filters > most || a->anchors > c->n_layers)
		return eng_fail(err, -EINVAL,
		                "the model has %u layers, %u behind the dense ones: --delta-layers and --filters up to "
		                "that expected, --anchors up to %u",
		                c->n_layers, most, c->n_layers);
	if (c->n_kv_heads % a->ranks)
		return eng_fail(err, -EINVAL, "--ranks %u: the model has %u kv heads, expected a number that divides them", a->ranks,
		                c->n_kv_heads);
	for (uint32_t l = 0; l < c->n_layers; l++)
		if (c->window[l] > 0 && c->window[l] < a->context)
			return eng_fail(err, -EINVAL, "the model's layer %u has a sliding window of %u tokens: layers are chosen "
			                "where all see the whole context, --context up to %u expected", l, c->window[l], c->window[l]);
	return 0;
}

/* ---- files ------------------------------------------------------------------------------------ */

/* Writes a profile to PATH.part and renames this file to PATH when it is complete. Frees `text`. */
static int write_file(const char *path, char *text, struct eng_error *err)
{
	char part[PATH_MAX];
	FILE *f = NULL;
	int r = 0, bad;

	if (!text)
		return eng_fail(err, -EIO, "%.300s: no memory for it, or the name of its source is not UTF-8", path);
	if (snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part))
		r = eng_fail(err, -ENAMETOOLONG, "%.300s...: too long a name", path);
	if (!r && !(f = fopen(part, "we")))
		r = eng_fail(err, -errno, "%.300s: %s", part, strerror(errno));
	if (!r) {
		fprintf(f, "%s\n", text);
		bad = fflush(f) || fsync(fileno(f));
		bad |= ferror(f);
		bad |= fclose(f);
		r = bad ? eng_fail(err, -EIO, "%.300s: could not be written", part) : 0;
		if (!r && rename(part, path))
			r = eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
		if (r)
			unlink(part);
	}
	free(text);
	return r;
}

/* Converts a head map of Kascade's authors to a profile. */
static int import(const struct arguments *a, struct eng_error *err)
{
	static struct eng_import map;
	struct eng_config c;
	const char *slash = strrchr(a->cli.model, '/');
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/config.json", a->cli.model) >= (int)sizeof(path))
		return eng_fail(err, -ENAMETOOLONG, "%.300s...: too long a name", a->cli.model);
	r = eng_config_load(&c, path, err);
	r = r ? r : eng_import_read(&map, a->import, &c, err);
	return r ? r : write_file(a->output, eng_import_json(&map, &c, slash ? slash + 1 : a->cli.model), err);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/*
 * Finds the text that is installed with the program: in the program's directory (a build tree), or in share/sparsekvd.
 */
static bool find_prose(char *to, size_t room)
{
	static const char *const near[] = {"prose.txt", "../share/sparsekvd/prose.txt"};
	char own[PATH_MAX];

	for (size_t i = 0; eng_env_directory(own, sizeof(own)) && i < sizeof(near) / sizeof(*near); i++)
		if (snprintf(to, room, "%s/%s", own, near[i]) < (int)room && !access(to, R_OK))
			return true;
	return snprintf(to, room, "%s", ENG_PROSE) < (int)room && !access(to, R_OK);
}

static int read_texts(struct eng_texts *t, const struct arguments *a, const struct eng_tokens *tokens, struct eng_error *err)
{
	const struct eng_texts_wanted wanted = {.context = a->context, .texts = a->texts, .rows = a->rows};
	char prose[PATH_MAX];

	if (a->tasks)
		return eng_texts_read_tasks(t, a->tasks, tokens, &wanted, err);
	if (a->text)
		return eng_texts_read(t, a->text, tokens, &wanted, err);
	if (!find_prose(prose, sizeof(prose)))
		return eng_fail(err, -ENOENT, "%s: not there; --text or --tasks expected", ENG_PROSE);
	return eng_texts_read(t, prose, tokens, &wanted, err);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Reads and measures all texts. *ret_read is the number of tokens read, even if interrupted. */
static int observe(struct eng_observer *o, const struct eng_texts *t, bool quiet, uint64_t *ret_read,
                   struct eng_error *err)
{
	struct eng_progress progress;
	int r = 0;

	eng_progress_begin(&progress, stderr, (double)t->tokens, quiet);
	for (uint32_t i = 0; !r && i < t->n; i++)
		r = eng_observe(o, &t->list[i], &stop, &progress, err);
	*ret_read = (uint64_t)progress.done;
	eng_progress_end(&progress);
	return r;
}

/* Opens a session with the policy full, because attention, K and V are measured under dense attention. */
static int open_session(const struct arguments *a, struct eng_host *host, struct skv_session **ret,
                        struct eng_error *err)
{
	struct skv_model model = eng_model_describe(&host->model, a->cli.kv_dtype);
	int r = skv_open(host->client, &model, "full", ret);

	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

static int measure(struct eng_measure *m, struct eng_delta_error *d, const struct arguments *a, struct eng_host *host,
                   const struct eng_texts *t, uint64_t *ret_read, struct eng_error *err)
{
	const struct eng_config *c = &host->model.config;
	const struct eng_measure_shape shape = {
		.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .max_tokens = t->longest,
		.top = a->top};
	const struct eng_delta_error_shape differ = {
		.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
		.max_tokens = t->longest, .sinks = a->sinks, .window = a->window, .gamma = a->gamma};
	struct skv_session *session = NULL;
	struct eng_observer *o = NULL;
	int r = open_session(a, host, &session, err);

	if (r)
		return r;
	if (eng_measure_init(m, &shape) || eng_delta_error_init(d, &differ))
		r = eng_fail(err, -ENOMEM, "no memory for pairs of %u layers", c->n_layers);
	r = r ? r : eng_observer_new(&o, &host->model, session, m, d, err);
	r = r ? r : observe(o, t, a->cli.quiet, ret_read, err);
	eng_observer_free(o);
	skv_close(session);
	return r;
}

/* ---- the profile ----------------------------------------------------------------------------- */

/* Copies the measured figures to a profile. The profile uses `similarity` [n_layers][n_layers] as its table. */
static void take_figures(struct eng_profile *p, const struct eng_measure *m, const struct eng_delta_error *d,
                         double *similarity)
{
	struct eng_profile_correction *c = &p->correction;
	const uint32_t n = m->shape.n_layers;

	p->texts_measured = m->texts;
	p->rows = m->rows;
	p->top = m->shape.top;
	p->heads = m->similarity;
	p->similarity = similarity;
	*c = (struct eng_profile_correction){.sinks = d->shape.sinks, .window = d->shape.window, .gamma = d->shape.gamma,
	                                     .any = eng_delta_error_any(d), .all_left = eng_delta_error_left(d)};
	for (uint32_t l = 0; l < n; l++) {
		p->full[p->n_full++] = l;
		p->shift[l] = eng_measure_shift(m, l);
		p->weight[l] = eng_measure_change_mean(m, l);
		c->cosine[l] = eng_delta_similarity_cosine(&d->layer[l]);
		c->missed[l] = eng_delta_similarity_missed(&d->layer[l]);
		c->left[l] = c->any ? eng_delta_similarity_left(&d->layer[l]) : NAN;
		for (uint32_t b = 0; b < n; b++)
			similarity[l * n + b] = l <= b ? eng_measure_best_heads(m, l, b) : NAN;
	}
}

/*
 * Searches for layers with a smaller loss, starting from the papers' choice. The search runs on the backend that
 * --device names.
 */
static int search_by(struct eng_profile *p, const struct arguments *a, struct eng_host *host,
                     const struct eng_texts *t, struct eng_loss *l, struct eng_error *err)
{
	struct eng_progress progress;
	double rows = 0, sets = 0;
	int r = eng_host_move(host, &a->cli, err);
	const struct eng_loss_setup setup = {
		.model = &host->model, .client = host->client, .kv_dtype = a->cli.kv_dtype, .texts = t->list, .n = t->n,
		.no_graph = a->cli.no_graph, .progress = &progress, .stop = &stop,
	};

	for (uint32_t i = 0; i < t->n; i++)
		rows += eng_text_rows(&t->list[i]);
	for (uint32_t k = 0; k < ENG_KINDS; k++)
		sets += eng_search_sets(&p->choice[k]);
	eng_progress_begin(&progress, stderr, (double)t->tokens + rows * sets, a->cli.quiet);
	r = r ? r : eng_loss_init(l, &setup, err);
	p->loss_rows = r ? 0 : l->rows;
	for (uint32_t k = 0; !r && k < ENG_KINDS; k++) {
		const double end = progress.done + (double)eng_search_sets(&p->choice[k]) * (double)l->rows;

		r = eng_profile_search(p, k, eng_loss_of, l, err);
		if (!r)
			eng_progress_show(&progress, end, l->label);
	}
	eng_progress_end(&progress);
	return r;
}

static int search(struct eng_profile *p, const struct arguments *a, struct eng_host *host, const struct eng_texts *t,
                  struct eng_loss *l, struct eng_error *err)
{
	struct eng_texts recalled = ENG_TEXTS_NULL;
	int r = a->tasks ? 0 : eng_texts_recall(&recalled, t, a->rows, err);

	r = r ? r : search_by(p, a, host, a->tasks ? t : &recalled, l, err);
	eng_loss_deinit(l);
	eng_texts_deinit(&recalled);
	return r;
}

/* Prints the profile, and writes the profile and the charts to the files that the user asked for. */
static int put_out(const struct eng_profile *p, const struct arguments *a, struct eng_error *err)
{
	char rests_on[256], *text = eng_profile_text(p);
	int r = text ? 0 : eng_fail(err, -ENOMEM, "no memory for the table");

	if (p->partial) {
		eng_profile_partial(p, rests_on, sizeof(rests_on));
		fprintf(stderr, PROGRAM ": interrupted: this profile rests on %s\n", rests_on);
	}
	if (text)
		fputs(text, stdout);
	free(text);
	if (!a->by_loss && !a->cli.quiet)
		fputs(PROGRAM ": these layers fit the papers' criteria; --by loss looks for those with which the model predicts best\n", stderr);
	if (!r && a->output)
		r = write_file(a->output, eng_profile_json(p), err);
	return r || !a->svg ? r : eng_profile_draw(p, a->svg, err);
}

/*
 * Chooses layers from the measurements of `tokens` tokens, searches by loss if the user asked for it, and writes the
 * profile. `partial` is true if the measuring was interrupted. Returns 0, 1 if the profile is partial, or a negative
 * errno.
 */
static int report(const struct arguments *a, struct eng_host *host, const struct eng_measure *m,
                  const struct eng_delta_error *d, const struct eng_texts *t, uint64_t tokens, bool partial,
                  struct eng_error *err)
{
	const char *source = a->text ? a->text : a->tasks ? a->tasks : ENG_PROSE, *slash = strrchr(source, '/');
	const struct skv_model model = eng_model_describe(&host->model, a->cli.kv_dtype);
	const uint32_t layers = model.n_layers;
	struct eng_loss loss = ENG_LOSS_NULL;
	struct eng_profile p = {
		.model = &model, .source = slash ? slash + 1 : source, .source_hash = t->hash, .tokens = tokens, .texts = t->n,
		.n_ranks = a->ranks, .dense = a->dense, .budget = a->budget,
		.choice = {[ENG_DELTA] = {layers, a->dense, a->delta}, [ENG_ANCHORS] = {layers, 0, a->anchors},
		           [ENG_FILTERS] = {layers, a->dense, a->filters}},
	};
	double *similarity = calloc((size_t)layers * layers, sizeof(*similarity));
	int r;

	if (!similarity)
		return eng_fail(err, -ENOMEM, "no memory for pairs of %u layers", layers);
	take_figures(&p, m, d, similarity);
	r = eng_profile_choose(&p, err);
	if (!r) {
		if (a->by_loss && !partial)
			r = search(&p, a, host, t, &loss, err);
		p.partial = r == -EINTR || partial;
		r = r && !p.partial ? r : put_out(&p, a, err);
	}
	free(similarity);
	return r ? r : p.partial;
}

/*
 * Measures the model, chooses layers and writes the profile. If interrupted after at least one measured row, writes a
 * partial profile and returns 1.
 */
static int choose(const struct arguments *a, struct eng_host *host, const struct eng_texts *t, struct eng_error *err)
{
	struct eng_measure m = ENG_MEASURE_NULL;
	struct eng_delta_error d = ENG_DELTA_ERROR_NULL;
	uint64_t tokens = 0;
	int r = measure(&m, &d, a, host, t, &tokens, err);

	if (!r || (r == -EINTR && m.rows > 0))
		r = report(a, host, &m, &d, t, tokens, r, err);
	eng_measure_deinit(&m);
	eng_delta_error_deinit(&d);
	return r;
}

static int compress(const struct arguments *a, struct eng_host *host, const struct eng_texts *t, struct eng_error *err)
{
	struct eng_compress c = {
		.model = &host->model, .texts = t->list, .n = t->n, .longest = t->longest, .palu = a->palu, .width = a->width,
		.stride = a->stride, .near = a->near, .quiet = a->cli.quiet, .stop = &stop,
	};
	int r = open_session(a, host, &c.session, err);

	if (r)
		return r;
	r = eng_compress(&c, a->palu ? a->palu : a->deltakv, stdout, err);
	skv_close(c.session);
	return r;
}

static int work(const struct arguments *a, struct eng_host *host, struct eng_error *err)
{
	const struct eng_config *c = &host->model.config;
	bool compressor = a->deltakv || a->palu;
	struct eng_tokens tokens = ENG_TOKENS_NULL;
	struct eng_texts texts = ENG_TEXTS_NULL;
	int r = compressor ? 0 : check_counts(a, c, err);

	r = r ? r : eng_tokens_load(&tokens, a->cli.model, NULL, err);
	r = r ? r : read_texts(&texts, a, &tokens, err);
	if (!r)
		r = compressor ? compress(a, host, &texts, err) : choose(a, host, &texts, err);
	eng_texts_deinit(&texts);
	eng_tokens_deinit(&tokens);
	return r;
}

/* The first signal ends the work, and a partial profile is written. A second signal ends the program at once. */
static void on_signal(int signal_)
{
	stop = signal_;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
}

/* Runs the measurements on the host backend, the only one on which attention can be measured. */
static int run(const struct arguments *a, struct eng_error *err)
{
	struct eng_host host = ENG_HOST_NULL;
	struct eng_cli here = a->cli;
	int r;

	here.device = SKV_DEVICE_HOST;
	r = eng_host_open(&host, &here, err);
	if (r)
		return r;
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	r = work(a, &host, err);
	eng_host_close(&host);
	return r;
}

int main(int argc, char **argv)
{
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	if (!r)
		r = a.import ? import(&a, &err) : run(&a, &err);
	if (r == -EINTR) {
		/* terminate by the signal, now that all sequences in the daemon are dropped */
		signal(stop, SIG_DFL);
		raise(stop);
	}
	if (r < 0)
		return eng_cli_failed(PROGRAM, &err);
	return r ? EXIT_PARTIAL : EXIT_SUCCESS;
}
