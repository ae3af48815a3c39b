/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/profile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <sparsekv/client.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "engine/chart.h"

/* ---- choosing -------------------------------------------------------------------------------- */

static double *worth_of(const struct eng_measure *m, bool weighted)
{
	uint32_t n = m->shape.n_layers;
	double *worth = calloc((size_t)n * n, sizeof(*worth));

	for (uint32_t a = 0; worth && a < n; a++)
		for (uint32_t b = a; b < n; b++)
			worth[a * n + b] = eng_measure_best_heads(m, a, b) *
			                   (weighted ? eng_measure_change_mean(m, b) : 1);
	return worth;
}

int eng_profile_choose(struct eng_profile *p, struct eng_error *err)
{
	uint32_t n = p->measure->shape.n_layers;
	double *weighted = worth_of(p->measure, true), *plain = worth_of(p->measure, false), shift[SKV_MAX_LAYERS];
	int r = weighted && plain ? 0 : eng_fail(err, -ENOMEM, "no memory to choose layers");

	for (uint32_t l = 0; l < n; l++)
		shift[l] = eng_measure_shift(p->measure, l);
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

/*
 * A search only descends from its start. It begins with the layers that policies use without a profile
 * (sparsekv/policy-select.h) if these lose less than the papers' choice. *ret: the loss of the papers' choice.
 */
static int begin_search(struct eng_profile *p, uint32_t kind, struct eng_loss *l, double *ret, struct eng_error *err)
{
	const struct eng_choice *c = &p->choice[kind];
	const uint32_t guess[] = {c->first, (2 * c->n_layers + 2) / 5, (3 * c->n_layers + 2) / 5};
	struct skv_layer_set sets[2] = {{{0}}};
	double loss[2];
	int r;

	for (uint32_t i = 0; i < c->n; i++)
		skv_layer_add(&sets[0], p->papers[kind][i]);
	for (uint32_t i = 0; i < 3; i++)
		skv_layer_add(&sets[1], guess[i]);
	r = eng_loss_of_layers(l, sets, c->n == 3 && guess[1] > c->first ? 2 : 1, loss, err);
	if (r)
		return r;
	if (c->n == 3 && guess[1] > c->first && loss[1] < loss[0])
		memcpy(p->chosen[kind], guess, sizeof(guess));
	*ret = loss[0];
	return 0;
}

int eng_profile_search(struct eng_profile *p, struct eng_loss *l, struct eng_error *err)
{
	static const char *const policy[ENG_KINDS] = {"delta?", "kascade:dense-anchors?", "omnikv?more=0&"};
	static const char *const label[ENG_KINDS] = {"searching delta's layers", "searching kascade's anchors",
	                                             "searching filter layers"};
	struct eng_progress *progress = l->setup.progress;
	int r = 0;

	p->loss_rows = l->rows;
	for (uint32_t k = 0; !r && k < ENG_KINDS; k++) {
		double end = progress->done + (double)eng_search_sets(&p->choice[k]) * (double)l->rows;
		char prefix[128], dense[32] = "";
		double papers = 0;

		if (k != ENG_ANCHORS)
			snprintf(dense, sizeof(dense), "dense=%u&", p->choice[k].first);
		snprintf(prefix, sizeof(prefix), "%s%sbudget=%g&layers=", policy[k], dense, p->budget);
		l->prefix = prefix;
		l->label = label[k];
		r = begin_search(p, k, l, &papers, err);
		r = r ? r : eng_search(&p->choice[k], eng_loss_of_layers, l, p->chosen[k], &p->found[k], err);
		p->found[k].first_loss = papers;
		if (!r)
			eng_progress_show(progress, end, label[k]);
		p->searched += !r;
	}
	return r;
}

uint32_t eng_profile_search_sets(const struct eng_profile *p)
{
	uint32_t sets = 0;

	for (uint32_t k = 0; k < ENG_KINDS; k++)
		sets += eng_search_sets(&p->choice[k]);
	return sets;
}

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static const char *const kind_names[ENG_KINDS] = {"delta", "anchors", "filters"};

static json_t *series(const struct eng_measure *m, double (*of)(const struct eng_measure *, uint32_t))
{
	json_t *a = json_array();

	for (uint32_t l = 0; l < m->shape.n_layers; l++)
		json_array_append_new(a, number(of(m, l)));
	return a;
}

static json_t *matrix(const struct eng_measure *m)
{
	json_t *rows = json_array();

	for (uint32_t a = 0; a < m->shape.n_layers; a++) {
		json_t *row = json_array();

		for (uint32_t b = 0; b < m->shape.n_layers; b++)
			json_array_append_new(row, a <= b ? number(eng_measure_best_heads(m, a, b)) : json_null());
		json_array_append_new(rows, row);
	}
	return rows;
}

static json_t *head_map(const struct eng_profile *p, const uint32_t *anchors)
{
	uint32_t n = p->measure->shape.n_kv_heads;
	json_t *rows = json_array();

	for (uint32_t l = 0; l < p->measure->shape.n_layers; l++) {
		uint32_t anchor = eng_choose_source(&p->choice[ENG_ANCHORS], anchors, l);
		json_t *row = json_array();
		uint8_t map[SKV_MAX_HEADS];

		eng_choose_heads(eng_measure_similarity(p->measure, anchor, l), n, p->n_ranks, map);
		for (uint32_t h = 0; h < n; h++)
			json_array_append_new(row, json_integer(map[h]));
		json_array_append_new(rows, row);
	}
	return rows;
}

static json_t *of_layers(const struct eng_delta_error *d, double (*of)(const struct eng_delta_similarity *))
{
	json_t *a = json_array();

	for (uint32_t l = 0; l < d->shape.n_layers; l++)
		json_array_append_new(a, number(of(&d->layer[l])));
	return a;
}

/* The error of corrected sparse prefill, with and without the correction. */
static json_t *correction(const struct eng_delta_error *d)
{
	json_t *o = json_pack("{s:i, s:i, s:i}", "sinks", (int)d->shape.sinks, "window", (int)d->shape.window, "gamma",
	                      (int)d->shape.gamma);

	if (eng_delta_error_any(d)) {
		json_object_set_new(o, "cosine", of_layers(d, eng_delta_similarity_cosine));
		json_object_set_new(o, "missed", of_layers(d, eng_delta_similarity_missed));
		json_object_set_new(o, "left", of_layers(d, eng_delta_similarity_left));
		json_object_set_new(o, "all_left", number(eng_delta_error_left(d)));
		json_object_set_new(o, "helps", json_boolean(eng_delta_error_left(d) < 1));
	}
	return o;
}

/* The chosen layers of all kinds. */
static json_t *sets(const struct eng_profile *p, const uint32_t layers[ENG_KINDS][SKV_MAX_LAYERS])
{
	json_t *all = json_object();

	for (uint32_t k = 0; k < ENG_KINDS; k++) {
		json_t *list = json_array();

		for (uint32_t i = 0; i < p->choice[k].n; i++)
			json_array_append_new(list, json_integer(layers[k][i]));
		json_object_set_new(all, kind_names[k], list);
	}
	json_object_set_new(all, "head_map", head_map(p, layers[ENG_ANCHORS]));
	return all;
}

/* The results of the search. */
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
	int at = snprintf(to, room, "%llu of %u texts, %llu rows", (unsigned long long)p->measure->texts, p->texts,
	                  (unsigned long long)p->measure->rows);

	for (uint32_t k = 0; p->loss_rows && k < ENG_KINDS && at >= 0 && (size_t)at < room; k++)
		at += snprintf(to + at, room - (size_t)at, "%s %s %s", k ? "," : ";", kind_names[k],
		               k < p->searched ? "searched" : p->found[k].judged ? "searched in part" : "not searched");
}

/* How much of the calibration was done. */
static json_t *partial(const struct eng_profile *p)
{
	json_t *searched = json_array();
	char text[256];

	for (uint32_t k = 0; k < p->searched; k++)
		json_array_append_new(searched, json_string(kind_names[k]));
	eng_profile_partial(p, text, sizeof(text));
	return json_pack("{s:s, s:I, s:i, s:I, s:o}", "interrupted", text, "texts", (json_int_t)p->measure->texts,
	                 "of_texts", (int)p->texts, "rows", (json_int_t)p->measure->rows, "searched", searched);
}

int eng_profile_write(const struct eng_profile *p, FILE *to, struct eng_error *err)
{
	const struct eng_config *c = &p->model->config;
	const struct eng_measure *m = p->measure;
	char hash[16];
	json_t *root;

	snprintf(hash, sizeof(hash), "%08x", p->source_hash);
	root = json_pack("{s:i, s:{s:s, s:s, s:s, s:I, s:I, s:I, s:i}, s:{s:s, s:i, s:i, s:i, s:i},"
	                 " s:{s:o, s:o, s:o}, s:o}",
	                 "sparsekv_profile", 1,
	                 "made", "version", skv_version(), "from", p->source, "fnv1a", hash, "texts", (json_int_t)m->texts,
	                 "tokens", (json_int_t)p->tokens, "rows", (json_int_t)m->rows, "top", (int)m->shape.top,
	                 "model", "name", p->model->name, "layers", (int)c->n_layers, "heads", (int)c->n_heads,
	                 "kv_heads", (int)c->n_kv_heads, "head_dim", (int)c->head_dim,
	                 "measured", "shift", series(m, eng_measure_shift), "weight", series(m, eng_measure_change_mean),
	                 "similarity", matrix(m), "chosen", sets(p, p->chosen));
	if (root)
		json_object_set_new(json_object_get(root, "measured"), "correction", correction(p->differ));
	if (root && p->partial)
		json_object_set_new(root, "partial", partial(p));
	if (root && p->loss_rows) {
		json_object_set_new(root, "papers", sets(p, p->papers));
		json_object_set_new(root, "search", search(p));
	}
	if (!root || json_dumpf(root, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) || fputc('\n', to) == EOF) {
		json_decref(root);
		return eng_fail(err, -EIO, "the profile cannot be written (%.100s is its text's name)", p->source);
	}
	json_decref(root);
	return 0;
}

/* ---- charts ---------------------------------------------------------------------------------- */

static void print_layers(FILE *to, uint32_t kind, const struct eng_choice *c, const uint32_t *list)
{
	static const char *const titles[ENG_KINDS] = {"delta layers:", "kascade anchors:", "filter layers:"};

	fprintf(to, "%-18s", titles[kind]);
	for (uint32_t i = 0; i < c->n; i++)
		fprintf(to, "%s%u", i ? "," : " ", list[i]);
}

static void print_correction(const struct eng_delta_error *d, FILE *to)
{
	const struct eng_delta_error_shape *s = &d->shape;
	const double left = eng_delta_error_left(d);
	uint32_t helps = 0;

	fprintf(to, "\nprompts that see %u sinks and a window of %u, corrected in windows of %u rows:\n", s->sinks,
	        s->window, s->gamma);
	if (!eng_delta_error_any(d)) {
		fprintf(to, "no text is longer than these: nothing is missed\n");
		return;
	}
	fprintf(to, "layer  cosine  missed    left\n");
	for (uint32_t l = 0; l < s->n_layers; l++) {
		fprintf(to, "%5u  %6.3f  %6.4f  %6.3f\n", l, eng_delta_similarity_cosine(&d->layer[l]),
		        eng_delta_similarity_missed(&d->layer[l]), eng_delta_similarity_left(&d->layer[l]));
		helps += eng_delta_similarity_left(&d->layer[l]) < 1;
	}
	fprintf(to, "the correction %s: with it there is %.2f times what is missed, less than 1 in %u of %u layers\n",
	        left < 1 ? "helps" : "does harm", left, helps, s->n_layers);
}

void eng_profile_print(const struct eng_profile *p, FILE *to)
{
	const struct eng_measure *m = p->measure;

	fprintf(to, "layer   shift  weight  similarity of the layer before\n");
	for (uint32_t l = 0; l < m->shape.n_layers; l++)
		fprintf(to, "%5u  %6.3f  %6.3f  %6.3f\n", l, eng_measure_shift(m, l), eng_measure_change_mean(m, l),
		        l ? eng_measure_best_heads(m, l - 1, l) : 1);
	fputc('\n', to);
	for (uint32_t k = 0; k < ENG_KINDS; k++) {
		print_layers(to, k, &p->choice[k], p->papers[k]);
		if (p->found[k].judged)
			fprintf(to, "  loss %.4f", p->found[k].first_loss);
		fputc('\n', to);
	}
	print_correction(p->differ, to);
	if (!p->loss_rows)
		return;
	fprintf(to, "\nby loss, %zu tokens, a budget of %g:\n", p->loss_rows, p->budget);
	for (uint32_t k = 0; k < ENG_KINDS && p->found[k].judged; k++) {
		print_layers(to, k, &p->choice[k], p->chosen[k]);
		fprintf(to, "  loss %.4f, %u sets tried\n", p->found[k].loss, p->found[k].judged);
	}
}

/* Returns the names 0 … n - 1 for an axis, in one block of memory, which the caller frees. */
static const char **numbers(uint32_t n)
{
	const char **names = malloc(n * (sizeof(*names) + 4));
	char *text = (char *)(names + n);

	for (uint32_t i = 0; names && i < n; i++) {
		sprintf(text + 4 * (size_t)i, "%u", i % 1000);
		names[i] = text + 4 * (size_t)i;
	}
	return names;
}

void eng_profile_draw_shift(const struct eng_profile *p, FILE *to)
{
	uint32_t n = p->measure->shape.n_layers;
	double number[SKV_MAX_LAYERS], shift[SKV_MAX_LAYERS];
	const char *series[] = {""}, **names = numbers(n);
	struct chart c = {
		.title = "Attention shift from the layer before", .n_x = (int)n, .n_series = 1, .n_panels = 1,
		.x = names, .number = number, .x_label = "layer", .series = series,
		.panel[0] = {.label = "1 - cosine of all heads' weights", .value = shift},
	};

	for (uint32_t l = 0; l < n; l++) {
		number[l] = l;
		shift[l] = l ? eng_measure_shift(p->measure, l) : NAN;
	}
	if (names)
		chart_draw(&c, to);
	free(names);
}

void eng_profile_draw_alike(const struct eng_profile *p, FILE *to)
{
	uint32_t n = p->differ->shape.n_layers;
	double number[SKV_MAX_LAYERS], cosine[SKV_MAX_LAYERS], left[SKV_MAX_LAYERS];
	const char *series[] = {""}, **names = numbers(n);
	struct chart c = {
		.title = "What a sparse prompt misses, beside the first row of a window", .n_x = (int)n, .n_series = 1,
		.n_panels = 2, .x = names, .number = number, .x_label = "layer", .series = series,
		.panel = {{.label = "cosine", .value = cosine}, {.label = "left by the correction", .value = left}},
	};

	for (uint32_t l = 0; l < n; l++) {
		number[l] = l;
		cosine[l] = eng_delta_similarity_cosine(&p->differ->layer[l]);
		left[l] = eng_delta_error_any(p->differ) ? eng_delta_similarity_left(&p->differ->layer[l]) : NAN;
	}
	if (names)
		chart_draw(&c, to);
	free(names);
}

void eng_profile_draw_similarity(const struct eng_profile *p, FILE *to)
{
	uint32_t n = p->measure->shape.n_layers;
	double *value = malloc((size_t)n * n * sizeof(*value));
	struct matrix m = {
		.title = "Similarity: mass of a layer on the best tokens of another", .n = (int)n,
		.row_label = "selects", .column_label = "uses", .value = value,
	};

	for (uint32_t i = 0; value && i < n * n; i++)
		value[i] = i / n <= i % n ? eng_measure_best_heads(p->measure, i / n, i % n) : NAN;
	if (value)
		chart_draw_matrix(&m, to);
	free(value);
}
