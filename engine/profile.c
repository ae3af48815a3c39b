/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/profile.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <sparsekv/client.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/chart.h"

#define SPEC_MAX 512u /* most bytes of a policy spec, with the NUL: the daemon's limit */

static const char *const kind_names[ENG_KINDS] = {"delta", "anchors", "filters"};

/* ---- choosing -------------------------------------------------------------------------------- */

/*
 * Returns [n_full][n_full]: how well the layer of the column does with the selection of the layer of the row,
 * optionally weighted by the column's importance.
 */
static double *worth_of(const struct eng_profile *p, bool weighted)
{
	const uint32_t n = p->n_full;
	double *worth = calloc((size_t)n * n, sizeof(*worth));

	for (uint32_t a = 0; worth && a < n; a++)
		for (uint32_t b = a; b < n; b++)
			worth[a * n + b] = p->similarity[p->full[a] * p->model->n_layers + p->full[b]] *
			                   (weighted ? p->weight[p->full[b]] : 1);
	return worth;
}

/* A model whose attention overflows makes figures by which no layer can be chosen. */
static int check_finite(const struct eng_profile *p, const double *worth, const double *shift, struct eng_error *err)
{
	const uint32_t n = p->n_full;

	for (uint32_t a = p->choice[ENG_ANCHORS].first; a < n; a++)
		for (uint32_t b = a; b < n; b++)
			if (!isfinite(worth[a * n + b]))
				return eng_fail(err, -EDOM, "the attention of layers %u and %u is not finite in some rows",
				                p->full[a], p->full[b]);
	for (uint32_t i = p->choice[ENG_DELTA].first + 1; i < n; i++)
		if (!isfinite(shift[i]))
			return eng_fail(err, -EDOM, "the attention of layer %u is not finite in some rows", p->full[i]);
	return 0;
}

int eng_profile_choose(struct eng_profile *p, struct eng_error *err)
{
	double *weighted = worth_of(p, true), *plain = worth_of(p, false), shift[SKV_MAX_LAYERS];
	int r = weighted && plain ? 0 : eng_fail(err, -ENOMEM, "no memory to choose layers");

	for (uint32_t i = 0; i < p->n_full; i++)
		shift[i] = p->shift[p->full[i]];
	r = r ? r : check_finite(p, weighted, shift, err);
	if (!r) {
		eng_choose_by_shift(&p->choice[ENG_DELTA], shift, p->papers[ENG_DELTA]);
		eng_choose_anchors(&p->choice[ENG_ANCHORS], weighted, p->papers[ENG_ANCHORS]);
		eng_choose_anchors(&p->choice[ENG_FILTERS], plain, p->papers[ENG_FILTERS]);
		memcpy(p->chosen, p->papers, sizeof(p->chosen));
	}
	free(weighted);
	free(plain);
	return r;
}

/* ---- the search ------------------------------------------------------------------------------ */

struct judging {
	const struct eng_profile *p;
	char prefix[128]; /* beginning of a policy spec up to the list of layers, such as "delta?layers=" */
	const char *label;
	eng_losses *losses;
	void *arg;
};

static int spell(const struct judging *j, const struct skv_layer_set *set, char spec[SPEC_MAX], struct eng_error *err)
{
	size_t at = (size_t)snprintf(spec, SPEC_MAX, "%s", j->prefix);
	const char *comma = "";

	for (uint32_t i = 0; i < j->p->n_full && at < SPEC_MAX; i++)
		if (skv_layer_in(set, i)) {
			at += (size_t)snprintf(spec + at, SPEC_MAX - at, "%s%u", comma, j->p->full[i]);
			comma = ",";
		}
	return at < SPEC_MAX ? 0 : eng_fail(err, -EINVAL, "%.60s...: too many layers for a policy spec", spec);
}

/* Computes the loss of each set of layers; an eng_judge function. */
static int judge(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	const struct judging *j = arg;
	char(*text)[SPEC_MAX] = calloc(n, sizeof(*text));
	const char **specs = calloc(n, sizeof(*specs));
	int r = text && specs ? 0 : eng_fail(err, -ENOMEM, "no memory for %u specs", n);

	for (uint32_t i = 0; !r && i < n; i++) {
		specs[i] = text[i];
		r = spell(j, &sets[i], text[i], err);
	}
	r = r ? r : j->losses(j->arg, specs, n, j->label, ret, err);
	free(specs);
	free(text);
	return r;
}

/*
 * Returns the index of the first layer in `full`, from c->first on, that is not below `layer`; c->first if there is
 * none.
 */
static uint32_t candidate(const struct eng_profile *p, const struct eng_choice *c, uint32_t layer)
{
	for (uint32_t i = c->first; i < c->n_layers; i++)
		if (p->full[i] >= layer)
			return i;
	return c->first;
}

/*
 * Writes the sets that a search starts from: the papers' choice, and the layers that policies use without a profile
 * (sparsekv/policy-select.h). Because the search finds only a local optimum, it begins with the better of the two.
 * Returns the number of sets.
 */
static uint32_t starts_of(const struct eng_profile *p, uint32_t kind, struct skv_layer_set sets[2])
{
	const struct eng_choice *c = &p->choice[kind];
	const uint32_t n = p->model->n_layers;
	const uint32_t guess[] = {c->first, candidate(p, c, (2 * n + 2) / 5), candidate(p, c, (3 * n + 2) / 5)};

	for (uint32_t i = 0; i < c->n; i++)
		skv_layer_add(&sets[0], p->papers[kind][i]);
	for (uint32_t i = 0; i < 3; i++)
		skv_layer_add(&sets[1], guess[i]);
	return c->n == 3 && guess[0] < guess[1] && guess[1] < guess[2] ? 2 : 1;
}

int eng_profile_search(struct eng_profile *p, enum eng_kind kind, eng_losses *losses, void *arg, struct eng_error *err)
{
	static const char *const policy[ENG_KINDS] = {"delta?", "kascade:dense-anchors?", "omnikv?more=0&"};
	static const char *const label[ENG_KINDS] = {"searching delta's layers", "searching kascade's anchors",
	                                             "searching filter layers"};
	struct judging j = {.p = p, .label = label[kind], .losses = losses, .arg = arg};
	struct skv_layer_set starts[2] = {{{0}}};
	const uint32_t n = starts_of(p, kind, starts);
	char dense[32] = "";
	int r;

	if (kind != ENG_ANCHORS)
		snprintf(dense, sizeof(dense), "dense=%u&", p->dense);
	snprintf(j.prefix, sizeof(j.prefix), "%s%sbudget=%g&layers=", policy[kind], dense, p->budget);
	r = eng_search(&p->choice[kind], judge, &j, starts, n, p->chosen[kind], &p->found[kind], err);
	p->searched += !r;
	return r;
}

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static json_t *numbers(const double *x, uint32_t n)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(a, number(x[i]));
	return a;
}

static json_t *matrix(const double *x, uint32_t n)
{
	json_t *rows = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(rows, numbers(x + (size_t)i * n, n));
	return rows;
}

/*
 * Returns for each layer which kv heads of its anchor layer suit its own kv heads best. A layer that was not measured
 * is mapped to its own heads.
 */
static json_t *head_map(const struct eng_profile *p, const uint32_t *anchors)
{
	const uint32_t n = p->model->n_kv_heads;
	json_t *rows = json_array();

	for (uint32_t l = 0, i = 0; l < p->model->n_layers; l++) {
		json_t *row = json_array();
		uint8_t map[SKV_MAX_HEADS];

		for (uint32_t h = 0; h < n; h++)
			map[h] = (uint8_t)h;
		if (i < p->n_full && p->full[i] == l) {
			const uint32_t anchor = eng_choose_source(&p->choice[ENG_ANCHORS], anchors, i);

			eng_choose_heads(p->heads + ((size_t)anchor * p->n_full + i++) * n * n, n, p->n_ranks, map);
		}
		for (uint32_t h = 0; h < n; h++)
			json_array_append_new(row, json_integer(map[h]));
		json_array_append_new(rows, row);
	}
	return rows;
}

/* Returns the error of sparse prefill, with and without the correction. */
static json_t *correction(const struct eng_profile_correction *c, uint32_t n_layers)
{
	json_t *o = json_pack("{s:i, s:i, s:i}", "sinks", (int)c->sinks, "window", (int)c->window, "gamma", (int)c->gamma);

	if (c->any) {
		json_object_set_new(o, "cosine", numbers(c->cosine, n_layers));
		json_object_set_new(o, "missed", numbers(c->missed, n_layers));
		json_object_set_new(o, "left", numbers(c->left, n_layers));
		json_object_set_new(o, "all_left", number(c->all_left));
		json_object_set_new(o, "helps", json_boolean(c->all_left < 1));
	}
	return o;
}

/* Returns the chosen layers of each kind. */
static json_t *sets(const struct eng_profile *p, const uint32_t layers[ENG_KINDS][SKV_MAX_LAYERS])
{
	json_t *all = json_object();

	for (uint32_t k = 0; k < ENG_KINDS; k++) {
		json_t *list = json_array();

		for (uint32_t i = 0; i < p->choice[k].n; i++)
			json_array_append_new(list, json_integer(p->full[layers[k][i]]));
		json_object_set_new(all, kind_names[k], list);
	}
	json_object_set_new(all, "head_map", head_map(p, layers[ENG_ANCHORS]));
	return all;
}

/* Returns the results of the search by loss. */
static json_t *search(const struct eng_profile *p)
{
	json_t *all = json_pack("{s:f, s:I}", "budget", p->budget, "rows", (json_int_t)p->loss_rows);

	for (uint32_t k = 0; k < ENG_KINDS && p->found[k].judged; k++)
		json_object_set_new(all, kind_names[k],
		                    json_pack("{s:i, s:o, s:o}", "sets", (int)p->found[k].judged, "loss",
		                              number(p->found[k].loss), "papers_loss",
		                              number(p->found[k].first_loss)));
	return all;
}

void eng_profile_partial(const struct eng_profile *p, char *to, size_t room)
{
	int at = snprintf(to, room, "%llu of %u texts, %llu rows", (unsigned long long)p->texts_measured, p->texts,
	                  (unsigned long long)p->rows);

	for (uint32_t k = 0; p->loss_rows && k < ENG_KINDS && at >= 0 && (size_t)at < room; k++)
		at += snprintf(to + at, room - (size_t)at, "%s %s %s", k ? "," : ";", kind_names[k],
		               k < p->searched ? "searched" : p->found[k].judged ? "searched in part" : "not searched");
}

/* Returns how much of an interrupted calibration was done. */
static json_t *partial(const struct eng_profile *p)
{
	json_t *searched = json_array();
	char text[256];

	for (uint32_t k = 0; k < p->searched; k++)
		json_array_append_new(searched, json_string(kind_names[k]));
	eng_profile_partial(p, text, sizeof(text));
	return json_pack("{s:s, s:I, s:i, s:I, s:o}", "interrupted", text, "texts", (json_int_t)p->texts_measured,
	                 "of_texts", (int)p->texts, "rows", (json_int_t)p->rows, "searched", searched);
}

char *eng_profile_json(const struct eng_profile *p)
{
	const struct skv_model *m = p->model;
	char hash[16], *text;
	json_t *root;

	snprintf(hash, sizeof(hash), "%08x", p->source_hash);
	root = json_pack("{s:i, s:{s:s, s:s, s:s, s:I, s:I, s:I, s:i}, s:{s:s, s:i, s:i, s:i, s:i},"
	                 " s:{s:o, s:o, s:o, s:o}, s:o}",
	                 "sparsekv_profile", 1,
	                 "made", "version", skv_version(), "from", p->source, "fnv1a", hash, "texts",
	                 (json_int_t)p->texts_measured, "tokens", (json_int_t)p->tokens, "rows", (json_int_t)p->rows, "top",
	                 (int)p->top,
	                 "model", "name", m->name, "layers", (int)m->n_layers, "heads", (int)m->n_heads, "kv_heads",
	                 (int)m->n_kv_heads, "head_dim", (int)m->head_dim,
	                 "measured", "shift", numbers(p->shift, m->n_layers), "weight", numbers(p->weight, m->n_layers),
	                 "similarity", matrix(p->similarity, m->n_layers),
	                 "correction", correction(&p->correction, m->n_layers),
	                 "chosen", sets(p, p->chosen));
	if (root && p->partial)
		json_object_set_new(root, "partial", partial(p));
	if (root && p->loss_rows) {
		json_object_set_new(root, "papers", sets(p, p->papers));
		json_object_set_new(root, "search", search(p));
	}
	text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
	json_decref(root);
	return text;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_layers(FILE *to, const struct eng_profile *p, uint32_t kind, const uint32_t *list)
{
	static const char *const titles[ENG_KINDS] = {"delta layers:", "kascade anchors:", "filter layers:"};

	fprintf(to, "%-18s", titles[kind]);
	for (uint32_t i = 0; i < p->choice[kind].n; i++)
		fprintf(to, "%s%u", i ? "," : " ", p->full[list[i]]);
}

static void print_correction(const struct eng_profile *p, FILE *to)
{
	const struct eng_profile_correction *c = &p->correction;
	uint32_t helps = 0;

	fprintf(to, "\nprompts that see %u sinks and a window of %u, corrected in windows of %u rows:\n", c->sinks, c->window,
	        c->gamma);
	if (!c->any) {
		fprintf(to, "no text is longer than these: nothing is missed\n");
		return;
	}
	fprintf(to, "layer  cosine  missed    left\n");
	for (uint32_t i = 0; i < p->n_full; i++) {
		const uint32_t l = p->full[i];

		fprintf(to, "%5u  %6.3f  %6.4f  %6.3f\n", l, c->cosine[l], c->missed[l], c->left[l]);
		helps += c->left[l] < 1;
	}
	fprintf(to, "the correction %s: with it there is %.2f times what is missed, less than 1 in %u of %u layers\n",
	        c->all_left < 1 ? "helps" : "does harm", c->all_left, helps, p->n_full);
}

static void print(const struct eng_profile *p, FILE *to)
{
	uint32_t before = UINT32_MAX; /* last layer without a sliding window before layer l; UINT32_MAX: none */

	fprintf(to, "layer   shift  weight  similarity of the layer before\n");
	for (uint32_t l = 0, i = 0; l < p->model->n_layers; l++) {
		fprintf(to, "%5u  %6.3f  %6.3f  %6.3f\n", l, p->shift[l], p->weight[l],
		        before == UINT32_MAX ? 1 : p->similarity[(size_t)before * p->model->n_layers + l]);
		if (i < p->n_full && p->full[i] == l)
			before = p->full[i++];
	}
	fputc('\n', to);
	for (uint32_t k = 0; k < ENG_KINDS; k++) {
		print_layers(to, p, k, p->papers[k]);
		if (p->found[k].judged)
			fprintf(to, "  loss %.4f", p->found[k].first_loss);
		fputc('\n', to);
	}
	print_correction(p, to);
	if (!p->loss_rows)
		return;
	fprintf(to, "\nby loss, %llu tokens, a budget of %g:\n", (unsigned long long)p->loss_rows, p->budget);
	for (uint32_t k = 0; k < ENG_KINDS && p->found[k].judged; k++) {
		print_layers(to, p, k, p->chosen[k]);
		fprintf(to, "  loss %.4f, %u sets tried\n", p->found[k].loss, p->found[k].judged);
	}
}

char *eng_profile_text(const struct eng_profile *p)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	print(p, f);
	if (fclose(f) == 0)
		return text;
	free(text);
	return NULL;
}

/* ---- charts ---------------------------------------------------------------------------------- */

/* Draws panels, one below the other, whose x axis is the model's layers. */
static int draw_layers(const struct eng_profile *p, const char *path, const char *title, const struct panel *panels,
                       int n, struct eng_error *err)
{
	const uint32_t n_layers = p->model->n_layers;
	const char *series[] = {""}, *names[SKV_MAX_LAYERS];
	char text[SKV_MAX_LAYERS][8];
	double number[SKV_MAX_LAYERS];
	struct chart c = {.title = title, .n_x = (int)n_layers, .n_series = 1, .n_panels = n, .x = names, .number = number,
	                  .x_label = "layer", .series = series};

	memcpy(c.panel, panels, (size_t)n * sizeof(*panels));
	for (uint32_t l = 0; l < n_layers; l++) {
		number[l] = l;
		snprintf(text[l], sizeof(text[l]), "%u", l);
		names[l] = text[l];
	}
	return chart_draw(&c, path, err);
}

int eng_profile_draw(const struct eng_profile *p, const char *prefix, struct eng_error *err)
{
	const struct eng_profile_correction *correction = &p->correction;
	const struct panel alike[] = {{.label = "cosine", .value = correction->cosine},
	                              {.label = "left by the correction", .value = correction->left}};
	const struct matrix m = {
		.title = "Similarity: mass of a layer on the best tokens of another", .n = (int)p->model->n_layers,
		.row_label = "selects", .column_label = "uses", .value = p->similarity,
	};
	double shift[SKV_MAX_LAYERS];
	char path[PATH_MAX];
	int r;

	memcpy(shift, p->shift, sizeof(shift));
	shift[p->full[0]] = NAN; /* the first measured layer has no layer before it to compare with */
	snprintf(path, sizeof(path), "%.4000s-shift.svg", prefix);
	r = draw_layers(p, path, "Attention shift from the layer before",
	                &(struct panel){.label = "1 - cosine of all heads' weights", .value = shift}, 1, err);
	snprintf(path, sizeof(path), "%.4000s-similarity.svg", prefix);
	r = r ? r : chart_draw_matrix(&m, path, err);
	snprintf(path, sizeof(path), "%.4000s-alike.svg", prefix);
	return r ? r : draw_layers(p, path, "What a sparse prompt misses, beside the first row of a window", alike, 2, err);
}
