/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparsekv-calibrate: run a model densely over texts and write which of its layers select well, or a compressor for its
 * K and V. See its page in man/.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/cli.h"
#include "engine/compress.h"
#include "engine/recall-task.h"
#include "engine/observe.h"
#include "engine/profile.h"
#include "engine/progress.h"
#include "engine/env.h"
#include "engine/tasks.h"
#include "engine/tokens.h"

#define PROGRAM "sparsekv-calibrate"
#define TEXT_MAX (256u << 20) /* bytes of a file */
#define BATCH 16u             /* cases decoded together */

static const char usage[] =
	"Usage: sparsekv-calibrate --model DIR (--text FILE | --tasks FILE) [-o FILE] [OPTION…]\n"
	"       sparsekv-calibrate --model DIR (--text FILE | --tasks FILE) --deltakv-pca FILE | --palu FILE [OPTION…]\n"
	"Run a model densely over texts, measure what its layers attend to, and choose layers by it; or compute a\n"
	"codec for its K and V.\n";

struct arguments {
	struct eng_cli cli;
	const char *text, *tasks, *output, *svg;
	uint32_t context, texts, rows, delta, anchors, filters, dense, top, gamma, sinks, window;
	uint32_t by_loss;
	double budget;
	const char *deltakv, *palu; /* compressors to write */
	uint32_t width, stride, near; /* 0; UNSET: as they are usually */
};
#define UNSET UINT32_MAX

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	stop = signal;
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Do the options of codecs go together, and with the rest? */
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
	if (!a->text == !a->tasks)
		return eng_fail(err, -EINVAL, "one of --text and --tasks expected");
	if (a->cli.device != SKV_DEVICE_HOST && !a->by_loss)
		return eng_fail(err, -EINVAL, "--device: only the search of --by loss uses one");
	return check_compressor(a, err);
}

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	static const char *const ways[] = {"papers", "loss", NULL};
	const struct eng_option table[] = {
		ENG_TEXT("text", "FILE", &a->text,
		         "any text: pieces of it, evenly spread; the last half of each is measured"),
		ENG_TEXT("tasks", "FILE", &a->tasks,
		         "cases as of sparsekv-eval: prompt and answer; the answer is measured"),
		ENG_TEXT("output", "FILE", &a->output, "write the profile, which policies take as profile=FILE"),
		ENG_TEXT("svg", "PREFIX", &a->svg, "draw PREFIX-shift.svg, PREFIX-similarity.svg and PREFIX-alike.svg"),
		ENG_COUNT("context", &a->context, 16, SKV_MAX_TOKENS,
		          "tokens of a piece, and of the longest case taken (default 4096)"),
		ENG_COUNT("texts", &a->texts, 1, 1u << 20, "pieces, or cases of each task and size (default 8)"),
		ENG_COUNT("rows", &a->rows, 0, SKV_MAX_TOKENS,
		          "tokens measured in each, evenly spread (default 128; 0: all)"),
		ENG_COUNT("delta-layers", &a->delta, 1, SKV_MAX_LAYERS, "how many to choose (default 3)"),
		ENG_COUNT("anchors", &a->anchors, 1, SKV_MAX_LAYERS, "(default 5)"),
		ENG_COUNT("filters", &a->filters, 1, SKV_MAX_LAYERS, "(default 3)"),
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
		ENG_SHARE("budget", &a->budget, "of the tokens, that the search uses (default 0.25)"),
		ENG_TEXT("deltakv-pca", "FILE", &a->deltakv, "instead of all this: write a codec for deltakv"),
		ENG_TEXT("palu", "FILE", &a->palu, "the same for palu"),
		ENG_COUNT("width", &a->width, 32, 65536,
		          "elements of a code (default: a quarter of those of K and V, for palu half)"),
		ENG_COUNT("stride", &a->stride, 0, 255,
		          "tokens from one reference of deltakv's to the next (default 10; 0: none)"),
		ENG_COUNT("near", &a->near, 1, ENG_RESIDUALS_NEAR, "references of a token (default 4)"),
		ENG_CLI_OPTIONS(&a->cli),
	};
	const struct eng_command command = {PROGRAM, usage, table, sizeof(table) / sizeof(*table)};
	int r;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .context = 4096, .texts = 8, .rows = 128, .delta = 3,
	                        .anchors = 5, .filters = 3, .dense = 2, .top = 64, .gamma = 64, .sinks = 1024,
	                        .window = 2048, .budget = 0.25,
	                        .stride = UNSET, .near = UNSET};
	r = eng_options(&command, argc, argv, err);
	return r ? r : check(a, err);
}

/* Which layers the choices are made from; as the model has them. */
static int check_counts(const struct arguments *a, const struct eng_config *c, struct eng_error *err)
{
	uint32_t most = c->n_layers > a->dense ? c->n_layers - a->dense : 0;

	if (a->delta > most || a->filters > most || a->anchors > c->n_layers)
		return eng_fail(err, -EINVAL,
		                "the model has %u layers, %u behind the dense ones: --delta-layers and --filters up to "
		                "that expected, --anchors up to %u",
		                c->n_layers, most, c->n_layers);
	return 0;
}

/* ---- texts ----------------------------------------------------------------------------------- */

struct texts {
	struct eng_text *list;
	uint32_t n, longest;
	uint64_t tokens;
	uint32_t hash; /* FNV-1a of all token ids in their order */
	struct eng_cases cases; /* to search by: those of --tasks, or made of the text */
	struct eng_tokens vocabulary;
};

/* Takes over `ids`, n of them. */
static int add_text(struct texts *t, int32_t *ids, uint32_t n, uint32_t from, uint32_t rows, struct eng_error *err)
{
	struct eng_text *list = reallocarray(t->list, t->n + 1, sizeof(*list));

	if (!list || !ids) {
		free(ids);
		return eng_fail(err, -ENOMEM, "no memory for texts");
	}
	t->list = list;
	t->list[t->n++] = (struct eng_text){.ids = ids, .n = n, .from = from, .rows = rows};
	t->longest = n > t->longest ? n : t->longest;
	t->tokens += n;
	for (uint32_t i = 0; i < n; i++)
		t->hash = (t->hash ^ (uint32_t)ids[i]) * 16777619u;
	return 0;
}

static void texts_deinit(struct texts *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		free((int32_t *)t->list[i].ids);
	free(t->list);
	eng_cases_deinit(&t->cases);
	eng_tokens_deinit(&t->vocabulary);
}

static int cut_pieces(struct texts *t, const struct arguments *a, const struct skv_ids *text, struct eng_error *err)
{
	const struct skv_ids *begin = &t->vocabulary.begin;
	size_t most = a->context - begin->n, piece = most < text->n ? most : text->n, n = text->n / (piece ? piece : 1);
	int r = 0;

	if (text->n < 16)
		return eng_fail(err, -EINVAL, "%.300s: %zu tokens, at least 16 expected", a->text, text->n);
	n = n < a->texts ? n : a->texts;
	for (size_t i = 0; !r && i < n; i++) {
		size_t at = n > 1 ? i * (text->n - piece) / (n - 1) : 0;
		struct skv_ids ids = SKV_IDS_NULL;

		if (!skv_ids_add(&ids, begin->id, begin->n) && skv_ids_add(&ids, text->id + at, piece))
			skv_ids_deinit(&ids);
		r = add_text(t, ids.id, (uint32_t)ids.n, (uint32_t)piece / 2, a->rows, err);
	}
	return r;
}

/* As many tokens as --rows says are predicted, the rest of --context is before them. */
static int make_echoes(struct texts *t, const struct arguments *a, const struct skv_ids *text, struct eng_error *err)
{
	uint32_t answer = a->rows && a->rows < a->context / 2 ? a->rows : a->context / 2;
	struct eng_recall_task echo = {.n = a->texts, .prompt = a->context - answer, .answer = answer};

	if (text->n < echo.prompt || echo.prompt < 2 * ENG_RECALL_TASK_PIECE)
		return eng_fail(err, -EINVAL, "--by loss: a --context from %u on, and a text as long, expected",
		                4 * ENG_RECALL_TASK_PIECE);
	return eng_recall_task_cases(&t->cases, text->id, text->n, &echo, &t->vocabulary, err);
}

static int read_text(struct texts *t, const struct arguments *a, struct eng_error *err)
{
	struct skv_ids text = SKV_IDS_NULL;
	FILE *f = fopen(a->text, "re");
	char *bytes = NULL;
	struct stat st;
	int r = 0;

	if (!f || fstat(fileno(f), &st) < 0)
		r = eng_fail(err, -errno, "%.300s: %s", a->text, strerror(errno));
	else if (!S_ISREG(st.st_mode) || st.st_size < 16 || st.st_size > (off_t)TEXT_MAX)
		r = eng_fail(err, -EINVAL, "%.300s: a file of 16 bytes to 256 MiB expected", a->text);
	else if (!(bytes = malloc((size_t)st.st_size)))
		r = eng_fail(err, -ENOMEM, "no memory for %.300s", a->text);
	else if (fread(bytes, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
		r = eng_fail(err, -EIO, "%.300s: cannot be read to its end", a->text);
	else
		r = eng_tokens_encode(&t->vocabulary, bytes, (size_t)st.st_size, &text, err);
	if (!r)
		r = cut_pieces(t, a, &text, err);
	if (!r && a->by_loss)
		r = make_echoes(t, a, &text, err);
	skv_ids_deinit(&text);
	free(bytes);
	if (f)
		fclose(f);
	return r;
}

/* The prompt's last token decides the answer's first: it is the first row that is measured. eos is not one of them. */
static int add_case(struct texts *t, const struct arguments *a, const struct eng_case *k, struct eng_error *err)
{
	uint32_t n_answer = k->n_answer - (k->answer[k->n_answer - 1] == t->vocabulary.eos);
	struct skv_ids ids = SKV_IDS_NULL;

	if (!skv_ids_add(&ids, k->prompt, k->n_prompt) && skv_ids_add(&ids, k->answer, n_answer))
		skv_ids_deinit(&ids);
	return add_text(t, ids.id, (uint32_t)ids.n, k->n_prompt - 1, a->rows, err);
}

/* Where a search uses them, only the tokens that --rows says are decoded: the first. */
static int read_tasks(struct texts *t, const struct arguments *a, struct eng_error *err)
{
	const struct eng_task_filter filter = {.limit = a->texts, .longest = a->context};
	int r = eng_cases_load(&t->cases, a->tasks, &filter, &t->vocabulary, err);

	for (size_t i = 0; !r && i < t->cases.n; i++) {
		r = add_case(t, a, &t->cases.list[i], err);
		if (a->rows)
			eng_case_shorten(&t->cases.list[i], a->rows, t->vocabulary.eos);
	}
	return r;
}

/* ---- the work -------------------------------------------------------------------------------- */

static int observe(struct eng_observer *o, const struct texts *t, bool quiet, struct eng_error *err)
{
	struct eng_progress progress;
	double done = 0;
	int r = 0;

	eng_progress_begin(&progress, stderr, (double)t->tokens, quiet);
	for (uint32_t i = 0; !r && i < t->n; i++) {
		r = eng_observe(o, &t->list[i], &stop, err);
		done += t->list[i].n;
		eng_progress_show(&progress, done, "reading texts");
	}
	eng_progress_end(&progress);
	return r;
}

/* What layers attend to, and their K and V, is measured under the policy full. */
static int open_session(const struct arguments *a, struct eng_host *host, struct skv_session **ret,
                        struct eng_error *err)
{
	struct skv_model model = eng_model_describe(&host->model, a->cli.kv_dtype);
	int r = skv_open(host->client, &model, "full", ret);

	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

static int measure(struct eng_measure *m, struct eng_delta_error *d, const struct arguments *a, struct eng_host *host,
                   const struct texts *t, struct eng_error *err)
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
	r = r ? r : observe(o, t, a->cli.quiet, err);
	eng_observer_free(o);
	skv_close(session);
	return r;
}

static int write_file(const struct eng_profile *p, const char *path, struct eng_error *err)
{
	FILE *f = fopen(path, "we");
	int r, bad;

	if (!f)
		return eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	r = eng_profile_write(p, f, err);
	bad = ferror(f);
	bad |= fclose(f);
	return r || !bad ? r : eng_fail(err, -EIO, "%.300s: could not be written", path);
}

static int draw_file(const struct eng_profile *p, const char *prefix, const char *what,
                     void (*draw)(const struct eng_profile *, FILE *), struct eng_error *err)
{
	char path[4096];
	FILE *f;
	int bad;

	snprintf(path, sizeof(path), "%.4000s-%s.svg", prefix, what);
	f = fopen(path, "we");
	if (!f)
		return eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	draw(p, f);
	bad = ferror(f);
	bad |= fclose(f);
	return bad ? eng_fail(err, -EIO, "%.300s: could not be written", path) : 0;
}

/* From what the papers' criteria chose on, with the backend that was asked for. */
static int search(struct eng_profile *p, const struct arguments *a, struct eng_host *host, const struct texts *t,
                  struct eng_loss *l, struct eng_error *err)
{
	int r = eng_host_move(host, &a->cli, err);
	const struct eng_eval eval = {
		.model = &host->model, .tokens = &t->vocabulary, .client = host->client, .kv_dtype = a->cli.kv_dtype, .cases = &t->cases,
		.batch = t->cases.n < BATCH ? (uint32_t)t->cases.n : BATCH, .chunk = ENG_CHUNK, .quiet = a->cli.quiet,
		.no_graph = a->cli.no_graph, .stop = &stop,
	};

	r = r ? r : eng_loss_init(l, &eval, err);
	return r ? r : eng_profile_search(p, l, err);
}

static int report(const struct arguments *a, struct eng_host *host, const struct eng_measure *m,
                  const struct eng_delta_error *d, const struct texts *t, struct eng_error *err)
{
	const char *source = a->text ? a->text : a->tasks, *slash = strrchr(source, '/');
	uint32_t layers = host->model.config.n_layers;
	struct eng_loss loss = ENG_LOSS_NULL;
	struct eng_profile p = {
		.model = &host->model, .measure = m, .differ = d, .source = slash ? slash + 1 : source, .source_hash = t->hash,
		.tokens = t->tokens, .budget = a->budget,
		.choice = {[ENG_DELTA] = {layers, a->dense, a->delta}, [ENG_ANCHORS] = {layers, 0, a->anchors},
		           [ENG_FILTERS] = {layers, a->dense, a->filters}},
	};
	int r = eng_profile_choose(&p, err);

	if (!r && a->by_loss)
		r = search(&p, a, host, t, &loss, err);
	if (!r)
		eng_profile_print(&p, stdout);
	if (!r && a->output)
		r = write_file(&p, a->output, err);
	if (!r && a->svg)
		r = draw_file(&p, a->svg, "shift", eng_profile_draw_shift, err);
	if (!r && a->svg)
		r = draw_file(&p, a->svg, "similarity", eng_profile_draw_similarity, err);
	if (!r && a->svg)
		r = draw_file(&p, a->svg, "alike", eng_profile_draw_alike, err);
	eng_loss_deinit(&loss);
	return r;
}

/* Which layers select well. */
static int choose(const struct arguments *a, struct eng_host *host, const struct texts *t, struct eng_error *err)
{
	struct eng_measure m = ENG_MEASURE_NULL;
	struct eng_delta_error d = ENG_DELTA_ERROR_NULL;
	int r = measure(&m, &d, a, host, t, err);

	r = r ? r : report(a, host, &m, &d, t, err);
	eng_measure_deinit(&m);
	eng_delta_error_deinit(&d);
	return r;
}

static int compress(const struct arguments *a, struct eng_host *host, const struct texts *t, struct eng_error *err)
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

static int work(const struct arguments *a, struct eng_host *host, struct texts *t, struct eng_error *err)
{
	const struct eng_config *c = &host->model.config;
	bool compressor = a->deltakv || a->palu;
	int r = compressor ? 0 : check_counts(a, c, err);

	if (!r)
		r = a->text ? read_text(t, a, err) : read_tasks(t, a, err);
	if (r)
		return r;
	return compressor ? compress(a, host, t, err) : choose(a, host, t, err);
}

int main(int argc, char **argv)
{
	struct texts texts = {.hash = 2166136261u};
	struct eng_host host = ENG_HOST_NULL;
	struct eng_cli here; /* what layers attend to is measured on the host */
	struct arguments a;
	struct eng_error err;
	int r;

	eng_env_init(argv);
	r = parse(&a, argc, argv, &err);
	here = a.cli;
	here.device = SKV_DEVICE_HOST;
	r = r ? r : eng_tokens_load(&texts.vocabulary, a.cli.model, NULL, &err);
	r = r ? r : eng_host_open(&host, &here, &err);
	if (!r) {
		sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND}, NULL);
		sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESETHAND}, NULL);
		r = work(&a, &host, &texts, &err);
		eng_host_close(&host);
	}
	texts_deinit(&texts);
	if (stop) {
		/* end as the signal asks, now that the daemon has its sequences back */
		signal(stop, SIG_DFL);
		raise(stop);
	}
	return r ? eng_cli_failed(PROGRAM, &err) : EXIT_SUCCESS;
}
