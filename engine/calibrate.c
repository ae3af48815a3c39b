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

static const char help[] =
	"Usage: sparsekv-calibrate --model DIR (--text FILE | --tasks FILE) [-o FILE] [OPTION…]\n"
	"       sparsekv-calibrate --model DIR (--text FILE | --tasks FILE) --deltakv-pca FILE | --palu FILE [OPTION…]\n"
	"Run a model densely over texts, measure what its layers attend to, and choose layers by it; or make a\n"
	"compressor of its K and V.\n\n"
	"  --text FILE        any text: pieces of it, evenly spread; the last half of each is looked at\n"
	"  --tasks FILE       cases as of sparsekv-eval: prompt and answer; the answer is looked at\n"
	"  -o, --output FILE  write the profile, which policies take as profile=FILE\n"
	"  --svg PREFIX       draw PREFIX-shift.svg, PREFIX-similarity.svg and PREFIX-alike.svg\n"
	"  --context N        tokens of a piece, and of the longest case taken (default 4096)\n"
	"  --texts N          pieces, or cases of each task and size (default 8)\n"
	"  --rows N           tokens looked at in each, evenly spread (default 128; 0: all)\n"
	"  --delta-layers N   how many to choose (default 3)\n"
	"  --anchors N        (default 5)\n"
	"  --filters N        (default 3)\n"
	"  --dense N          first layers that stay dense before delta's and filter layers (default 2)\n"
	"  --gamma N          rows that share a correction of sparse prompts (default 64)\n"
	"  --sinks N          first tokens that every row sees of such a prompt (default 1024)\n"
	"  --window N         and so many before it (default 2048)\n"
	"  --top N            tokens that Kascade's similarity compares (default 64)\n"
	"  --by WAY           papers (default): by what the layers attend to\n"
	"                     loss: from there on search for layers under which the model predicts best\n"
	"  --budget SHARE     of the tokens, that search goes by (default 0.25)\n"
	"  --deltakv-pca FILE instead of all this: write a compressor for deltakv\n"
	"  --palu FILE        the same for palu\n"
	"  --width N          numbers of a code (default: a quarter of those of K and V, for palu half)\n"
	"  --stride N         every so many tokens one is a reference of deltakv's (default 10; 0: none)\n"
	"  --near N           references of a token (default 4)\n" ENG_CLI_HELP;

enum {
	OPT_TEXT = ENG_OPT_OWN,
	OPT_TASKS,
	OPT_SVG,
	OPT_CONTEXT,
	OPT_TEXTS,
	OPT_ROWS,
	OPT_DELTA,
	OPT_ANCHORS,
	OPT_FILTERS,
	OPT_DENSE,
	OPT_TOP,
	OPT_GAMMA,
	OPT_SINKS,
	OPT_WINDOW,
	OPT_BY,
	OPT_BUDGET,
	OPT_DELTAKV,
	OPT_PALU,
	OPT_WIDTH,
	OPT_STRIDE,
	OPT_NEAR,
};

static const struct option options[] = {
	{"text", required_argument, NULL, OPT_TEXT},
	{"tasks", required_argument, NULL, OPT_TASKS},
	{"output", required_argument, NULL, 'o'},
	{"svg", required_argument, NULL, OPT_SVG},
	{"context", required_argument, NULL, OPT_CONTEXT},
	{"texts", required_argument, NULL, OPT_TEXTS},
	{"rows", required_argument, NULL, OPT_ROWS},
	{"delta-layers", required_argument, NULL, OPT_DELTA},
	{"anchors", required_argument, NULL, OPT_ANCHORS},
	{"filters", required_argument, NULL, OPT_FILTERS},
	{"dense", required_argument, NULL, OPT_DENSE},
	{"top", required_argument, NULL, OPT_TOP},
	{"gamma", required_argument, NULL, OPT_GAMMA},
	{"sinks", required_argument, NULL, OPT_SINKS},
	{"window", required_argument, NULL, OPT_WINDOW},
	{"by", required_argument, NULL, OPT_BY},
	{"budget", required_argument, NULL, OPT_BUDGET},
	{"deltakv-pca", required_argument, NULL, OPT_DELTAKV},
	{"palu", required_argument, NULL, OPT_PALU},
	{"width", required_argument, NULL, OPT_WIDTH},
	{"stride", required_argument, NULL, OPT_STRIDE},
	{"near", required_argument, NULL, OPT_NEAR},
	ENG_CLI_OPTIONS,
	{NULL, 0, NULL, 0},
};

struct arguments {
	struct eng_cli cli;
	const char *text, *tasks, *output, *svg;
	uint32_t context, texts, rows, delta, anchors, filters, dense, top, gamma, sinks, window;
	bool by_loss;
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

static int take_by(struct arguments *a, const char *text, struct eng_error *err)
{
	a->by_loss = !strcmp(text, "loss");
	if (!a->by_loss && strcmp(text, "papers"))
		return eng_fail(err, -EINVAL, "--by %.60s: papers or loss expected", text);
	return 0;
}

static int take_budget(struct arguments *a, const char *text, struct eng_error *err)
{
	char *end;

	a->budget = strtod(text, &end);
	if (*text == '\0' || *end || !(a->budget > 0 && a->budget < 1))
		return eng_fail(err, -EINVAL, "--budget %.60s: a share above 0 and below 1 expected", text);
	return 0;
}

static int take_gamma(struct arguments *a, const char *text, struct eng_error *err)
{
	int r = eng_cli_count("--gamma", text, 2, 4096, &a->gamma, err);

	return r || !(a->gamma & (a->gamma - 1)) ? r : eng_fail(err, -EINVAL, "--gamma %u: a power of two expected", a->gamma);
}

static int take(struct arguments *a, int option, struct eng_error *err)
{
	int r = eng_cli_take(&a->cli, option, PROGRAM, help, err);

	if (r)
		return r < 0 ? r : 0;
	switch (option) {
	case OPT_TEXT:
		a->text = optarg;
		return 0;
	case OPT_TASKS:
		a->tasks = optarg;
		return 0;
	case 'o':
		a->output = optarg;
		return 0;
	case OPT_SVG:
		a->svg = optarg;
		return 0;
	case OPT_CONTEXT:
		return eng_cli_count("--context", optarg, 16, SKV_MAX_TOKENS, &a->context, err);
	case OPT_TEXTS:
		return eng_cli_count("--texts", optarg, 1, 1u << 20, &a->texts, err);
	case OPT_ROWS:
		return eng_cli_count("--rows", optarg, 0, SKV_MAX_TOKENS, &a->rows, err);
	case OPT_DELTA:
		return eng_cli_count("--delta-layers", optarg, 1, SKV_MAX_LAYERS, &a->delta, err);
	case OPT_ANCHORS:
		return eng_cli_count("--anchors", optarg, 1, SKV_MAX_LAYERS, &a->anchors, err);
	case OPT_FILTERS:
		return eng_cli_count("--filters", optarg, 1, SKV_MAX_LAYERS, &a->filters, err);
	case OPT_DENSE:
		return eng_cli_count("--dense", optarg, 0, SKV_MAX_LAYERS, &a->dense, err);
	case OPT_TOP:
		return eng_cli_count("--top", optarg, 1, 65536, &a->top, err);
	case OPT_GAMMA:
		return take_gamma(a, optarg, err);
	case OPT_SINKS:
		return eng_cli_count("--sinks", optarg, 0, SKV_MAX_TOKENS, &a->sinks, err);
	case OPT_WINDOW:
		return eng_cli_count("--window", optarg, 1, SKV_MAX_TOKENS, &a->window, err);
	case OPT_BY:
		return take_by(a, optarg, err);
	case OPT_BUDGET:
		return take_budget(a, optarg, err);
	case OPT_DELTAKV:
		a->deltakv = optarg;
		return 0;
	case OPT_PALU:
		a->palu = optarg;
		return 0;
	case OPT_WIDTH:
		return eng_cli_count("--width", optarg, 32, 65536, &a->width, err);
	case OPT_STRIDE:
		return eng_cli_count("--stride", optarg, 0, 255, &a->stride, err);
	case OPT_NEAR:
		return eng_cli_count("--near", optarg, 1, ENG_RESIDUALS_NEAR, &a->near, err);
	default: /* getopt_long has said what is wrong */
		exit(EXIT_FAILURE);
	}
}

/* Does what is said of compressors go together, and with the rest? */
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

static int parse(struct arguments *a, int argc, char **argv, struct eng_error *err)
{
	int option, r = 0;

	*a = (struct arguments){.cli = ENG_CLI_INIT, .context = 4096, .texts = 8, .rows = 128, .delta = 3,
	                        .anchors = 5, .filters = 3, .dense = 2, .top = 64, .gamma = 64, .sinks = 1024,
	                        .window = 2048, .budget = 0.25,
	                        .stride = UNSET, .near = UNSET};
	while (!r && (option = getopt_long(argc, argv, "o:", options, NULL)) >= 0)
		r = take(a, option, err);
	if (r)
		return r;
	if (optind < argc)
		return eng_fail(err, -EINVAL, "%.200s: options only expected; try --help", argv[optind]);
	if (!a->cli.model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (!a->text == !a->tasks)
		return eng_fail(err, -EINVAL, "one of --text and --tasks expected");
	if (a->cli.device != SKV_DEVICE_HOST && !a->by_loss)
		return eng_fail(err, -EINVAL, "--device: only the search of --by loss uses one");
	return check_compressor(a, err);
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
}

static int cut_pieces(struct texts *t, const struct arguments *a, const struct eng_config *c, const char *bytes,
                      size_t size, struct eng_error *err)
{
	size_t piece = a->context - 1 < size ? a->context - 1 : size, n = size / piece;
	int r = 0;

	n = n < a->texts ? n : a->texts;
	for (size_t i = 0; !r && i < n; i++) {
		size_t at = n > 1 ? i * (size - piece) / (n - 1) : 0;
		int32_t *ids = malloc((piece + 1) * sizeof(*ids));

		if (ids)
			eng_tokens_prompt(c, bytes + at, piece, ids);
		r = add_text(t, ids, (uint32_t)piece + 1, (uint32_t)piece / 2, a->rows, err);
	}
	return r;
}

/* As many tokens as --rows says are predicted, the rest of --context is before them. */
static int make_echoes(struct texts *t, const struct arguments *a, const char *bytes, size_t size, struct eng_error *err)
{
	uint32_t answer = a->rows && a->rows < a->context / 2 ? a->rows : a->context / 2;
	struct eng_recall_task echo = {.n = a->texts, .prompt = a->context - answer, .answer = answer};

	if (size < echo.prompt || echo.prompt < 2 * ENG_RECALL_TASK_PIECE)
		return eng_fail(err, -EINVAL, "--by loss: a --context from %u on, and a text as long, expected",
		                4 * ENG_RECALL_TASK_PIECE);
	return eng_recall_task_cases(&t->cases, bytes, size, &echo, err);
}

static int read_text(struct texts *t, const struct arguments *a, const struct eng_config *c, struct eng_error *err)
{
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
		r = cut_pieces(t, a, c, bytes, (size_t)st.st_size, err);
	if (!r && a->by_loss)
		r = make_echoes(t, a, bytes, (size_t)st.st_size, err);
	free(bytes);
	if (f)
		fclose(f);
	return r;
}

/* The prompt's last token decides the answer's first: it is the first row that is looked at. */
static int add_case(struct texts *t, const struct arguments *a, const struct eng_config *c, const struct eng_case *k,
                    struct eng_error *err)
{
	size_t n = k->prompt_len + 1 + k->answer_len;
	int32_t *ids = malloc(n * sizeof(*ids));

	if (ids) {
		eng_tokens_prompt(c, k->prompt, k->prompt_len, ids);
		for (size_t i = 0; i < k->answer_len; i++)
			ids[k->prompt_len + 1 + i] = (unsigned char)k->answer[i];
	}
	return add_text(t, ids, (uint32_t)n, (uint32_t)k->prompt_len, a->rows, err);
}

/* Where a search goes by them, only the tokens that --rows says are decoded: the first. */
static int read_tasks(struct texts *t, const struct arguments *a, const struct eng_config *c, struct eng_error *err)
{
	const struct eng_task_filter filter = {.limit = a->texts, .longest = a->context - 1};
	int r = eng_cases_load(&t->cases, a->tasks, &filter, err);

	for (size_t i = 0; !r && i < t->cases.n; i++) {
		struct eng_case *k = &t->cases.list[i];

		r = add_case(t, a, c, k, err);
		k->answer_len = a->rows && a->rows < k->answer_len ? a->rows : k->answer_len;
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

/* What layers attend to, and what they keep, is looked at under the policy full. */
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
		.model = &host->model, .client = host->client, .kv_dtype = a->cli.kv_dtype, .cases = &t->cases,
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
		r = a->text ? read_text(t, a, c, err) : read_tasks(t, a, c, err);
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
