/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/profile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <sparsekv/client.h>
#include <stdbool.h>
#include <stdlib.h>
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
		eng_choose_by_shift(&p->delta, shift, p->delta_layers);
		eng_choose_anchors(&p->anchors, weighted, p->anchor_layers);
		eng_choose_anchors(&p->filters, plain, p->filter_layers);
	}
	free(weighted);
	free(plain);
	return r;
}

/* ---- the file -------------------------------------------------------------------------------- */

static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static json_t *layers(const struct eng_choice *c, const uint32_t *list)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < c->n; i++)
		json_array_append_new(a, json_integer(list[i]));
	return a;
}

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

static json_t *head_map(const struct eng_profile *p)
{
	uint32_t n = p->measure->shape.n_kv_heads;
	json_t *rows = json_array();

	for (uint32_t l = 0; l < p->measure->shape.n_layers; l++) {
		uint32_t anchor = eng_choose_source(&p->anchors, p->anchor_layers, l);
		json_t *row = json_array();
		uint8_t map[SKV_MAX_HEADS];

		eng_choose_heads(eng_measure_similarity(p->measure, anchor, l), n, map);
		for (uint32_t h = 0; h < n; h++)
			json_array_append_new(row, json_integer(map[h]));
		json_array_append_new(rows, row);
	}
	return rows;
}

int eng_profile_write(const struct eng_profile *p, FILE *to, struct eng_error *err)
{
	const struct eng_config *c = &p->model->config;
	const struct eng_measure *m = p->measure;
	char hash[16];
	json_t *root;

	snprintf(hash, sizeof(hash), "%08x", p->source_hash);
	root = json_pack("{s:i, s:{s:s, s:s, s:s, s:I, s:I, s:I, s:i}, s:{s:s, s:i, s:i, s:i, s:i},"
	                 " s:{s:o, s:o, s:o}, s:{s:o, s:o, s:o, s:o}}",
	                 "sparsekv_profile", 1,
	                 "made", "version", skv_version(), "from", p->source, "fnv1a", hash, "texts", (json_int_t)m->texts,
	                 "tokens", (json_int_t)p->tokens, "rows", (json_int_t)m->rows, "top", (int)m->shape.top,
	                 "model", "name", p->model->name, "layers", (int)c->n_layers, "heads", (int)c->n_heads,
	                 "kv_heads", (int)c->n_kv_heads, "head_dim", (int)c->head_dim,
	                 "measured", "shift", series(m, eng_measure_shift), "weight", series(m, eng_measure_change_mean),
	                 "similarity", matrix(m),
	                 "chosen", "delta", layers(&p->delta, p->delta_layers), "anchors",
	                 layers(&p->anchors, p->anchor_layers), "filters", layers(&p->filters, p->filter_layers),
	                 "head_map", head_map(p));
	if (!root || json_dumpf(root, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) || fputc('\n', to) == EOF) {
		json_decref(root);
		return eng_fail(err, -EIO, "the profile cannot be written (%.100s is its text's name)", p->source);
	}
	json_decref(root);
	return 0;
}

/* ---- to look at ------------------------------------------------------------------------------ */

static void print_layers(FILE *to, const char *name, const struct eng_choice *c, const uint32_t *list)
{
	fprintf(to, "%-18s", name);
	for (uint32_t i = 0; i < c->n; i++)
		fprintf(to, "%s%u", i ? "," : " ", list[i]);
	fputc('\n', to);
}

void eng_profile_print(const struct eng_profile *p, FILE *to)
{
	const struct eng_measure *m = p->measure;

	fprintf(to, "layer   shift  weight  similarity of the layer before\n");
	for (uint32_t l = 0; l < m->shape.n_layers; l++)
		fprintf(to, "%5u  %6.3f  %6.3f  %6.3f\n", l, eng_measure_shift(m, l), eng_measure_change_mean(m, l),
		        l ? eng_measure_best_heads(m, l - 1, l) : 1);
	fputc('\n', to);
	print_layers(to, "delta layers:", &p->delta, p->delta_layers);
	print_layers(to, "kascade anchors:", &p->anchors, p->anchor_layers);
	print_layers(to, "filter layers:", &p->filters, p->filter_layers);
}

/* The names 0 … n - 1 for an axis, in memory of their own; to be freed. */
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
