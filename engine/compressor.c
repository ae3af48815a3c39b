/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compressor.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "formats/safetensors.h"

#define LEAST 32u /* widths of codes are multiples of LEAST */

/*
 * A function of LAPACK, which is part of OpenBLAS. Fortran passes the lengths of string arguments after all other
 * arguments.
 */
void dsyevd_(const char *job, const char *half, const int *n, double *a, const int *lda, double *w,
             double *work, const int *n_work, int *whole, const int *n_whole, int *info,
             size_t job_len, size_t half_len);

/* ---- directions ------------------------------------------------------------------------------ */

/*
 * Replaces a symmetric matrix [n][n] with its eigenvectors, as rows, and writes the eigenvalues to `value` in ascending
 * order. Only the lower triangle is read; LAPACK, which is column-major, sees it as the upper triangle. Returns 0,
 * -ENOMEM or -EIO.
 */
static int decompose(double *a, uint32_t n, double *value)
{
	int order = (int)n, n_work = -1, n_whole = -1, info = 0, whole_wanted;
	double work_wanted;
	double *work;
	int *whole;

	dsyevd_("V", "U", &order, a, &order, value, &work_wanted, &n_work, &whole_wanted, &n_whole, &info, 1, 1);
	n_work = (int)work_wanted;
	n_whole = whole_wanted;
	work = malloc((size_t)n_work * sizeof(*work));
	whole = malloc((size_t)n_whole * sizeof(*whole));
	if (work && whole)
		dsyevd_("V", "U", &order, a, &order, value, work, &n_work, whole, &n_whole, &info, 1, 1);
	n_work = work && whole ? 0 : -ENOMEM;
	free(work);
	free(whole);
	return n_work ? n_work : info ? -EIO : 0;
}

/* Applies a normalised Hadamard transform across n rows of `cols` elements; n is a power of two. */
static void mix(float *rows, uint32_t n, uint32_t cols)
{
	const float scale = 1 / sqrtf((float)n);

	for (uint32_t half = 1; half < n; half *= 2)
		for (uint32_t i = 0; i < n; i++) {
			float *a = rows + (size_t)i * cols, *b = a + (size_t)half * cols;

			for (uint32_t e = 0; !(i & half) && e < cols; e++) {
				float sum = a[e] + b[e];

				b[e] = a[e] - b[e];
				a[e] = sum;
			}
		}
	for (size_t e = 0; e < (size_t)n * cols; e++)
		rows[e] *= scale;
}

/*
 * A part of a code: its numbers [code, code + width) encode elements [first, first + n) of x. In those rows of `down`
 * all other elements are 0.
 */
struct part {
	uint32_t first, n, code, width;
};

static int make_part(struct eng_compressor *c, uint32_t layer, const struct part *p, float *down)
{
	uint32_t d = c->of->d, group = p->width % ENG_COMPRESSOR_GROUP ? LEAST : ENG_COMPRESSOR_GROUP;
	const double *moment = c->of->moment + (size_t)layer * d * d;
	double *a = malloc((size_t)p->n * p->n * sizeof(*a)), *value = malloc(p->n * sizeof(*value));
	int r = a && value ? 0 : -ENOMEM;

	for (uint32_t i = 0; !r && i < p->n; i++)
		memcpy(a + (size_t)i * p->n, moment + (size_t)(p->first + i) * d + p->first, p->n * sizeof(*a));
	r = r ? r : decompose(a, p->n, value);
	for (uint32_t i = 0; !r && i < p->width; i++)
		for (uint32_t e = 0; e < p->n; e++)
			down[(size_t)(p->code + i) * d + p->first + e] = (float)a[(size_t)(p->n - 1 - i) * p->n + e];
	for (uint32_t i = 0; !r && i < p->width; i += group)
		mix(down + (size_t)(p->code + i) * d, group, d);
	for (uint32_t i = p->width; !r && i < p->n; i++)
		c->lost[layer] += fmax(value[p->n - 1 - i], 0);
	free(a);
	free(value);
	return r;
}

static int make_layer(struct eng_compressor *c, uint32_t layer)
{
	uint32_t d = c->of->d, parts = c->spans ? 2 * c->spans : 1;
	float *down = c->weights + 2 * (size_t)layer * c->width * d, *out = down + (size_t)c->width * d;
	int r = 0;

	for (uint32_t i = 0; !r && i < parts; i++)
		r = make_part(c, layer,
		              &(struct part){.first = i * (d / parts), .n = d / parts, .code = i * (c->width / parts),
		                             .width = c->width / parts}, down);
	for (uint32_t i = 0; i < c->width; i++)
		for (uint32_t e = 0; e < d; e++)
			out[(size_t)e * c->width + i] = down[(size_t)i * d + e];
	return r;
}

int eng_compressor_check(uint32_t d, uint32_t width, uint32_t spans, struct eng_error *err)
{
	uint32_t each = LEAST * (spans ? 2 * spans : 1);

	if (width < each || width > d || width % each)
		return eng_fail(err, -EINVAL, "--width %u: of the model's %u elements of K and V a multiple of %u expected",
		                width, d, each);
	return 0;
}

int eng_compressor_make(struct eng_compressor *ret, const struct eng_residuals *of, const char *kind, uint32_t width,
                        uint32_t spans, struct eng_error *err)
{
	uint32_t layers = of->shape.n_layers;
	struct eng_compressor c = {.of = of, .kind = kind, .width = width, .spans = spans};
	int r = 0;

	c.weights = calloc(2 * (size_t)layers * width * of->d, sizeof(*c.weights));
	c.lost = calloc(layers, sizeof(*c.lost));
	if (!c.weights || !c.lost)
		r = -ENOMEM;
	for (uint32_t l = 0; !r && l < layers; l++)
		r = make_layer(&c, l);
	if (r) {
		eng_compressor_deinit(&c);
		return eng_fail(err, r, r == -ENOMEM ? "no memory for a compressor of %u layers"
		                                     : "no principal directions were found in %u layers", layers);
	}
	*ret = c;
	return 0;
}

void eng_compressor_deinit(struct eng_compressor *c)
{
	free(c->weights);
	free(c->lost);
	*c = ENG_COMPRESSOR_NULL;
}

/* ---- the file -------------------------------------------------------------------------------- */

int eng_compressor_write(const struct eng_compressor *c, const char *path, struct eng_error *err)
{
	const struct eng_residuals_shape *s = &c->of->shape;
	char d[16], width[16], stride[16], near[16], spans[16];
	const struct skv_about about[] = {
		{"sparsekv_codec", "1"}, {"kind", c->kind}, {"d", d}, {"width", width}, {"stride", stride}, {"near", near},
		{"spans", spans},
	};
	struct skv_new_tensor *t = calloc(2 * (size_t)s->n_layers, sizeof(*t));
	char text[256];
	int r;

	if (!t)
		return eng_fail(err, -ENOMEM, "no memory to write %.300s", path);
	snprintf(d, sizeof(d), "%u", c->of->d);
	snprintf(width, sizeof(width), "%u", c->width);
	snprintf(stride, sizeof(stride), "%u", s->stride);
	snprintf(near, sizeof(near), "%u", s->near);
	snprintf(spans, sizeof(spans), "%u", c->spans ? c->spans : 1);
	for (uint32_t l = 0; l < s->n_layers; l++) {
		const float *down = c->weights + 2 * (size_t)l * c->width * c->of->d;

		t[2 * l] = (struct skv_new_tensor){.rows = c->width, .cols = c->of->d, .data = down};
		t[2 * l + 1] = (struct skv_new_tensor){
			.rows = c->of->d, .cols = c->width, .data = down + (size_t)c->width * c->of->d};
		snprintf(t[2 * l].name, sizeof(t->name), "layers.%u.down", l);
		snprintf(t[2 * l + 1].name, sizeof(t->name), "layers.%u.out", l);
	}
	r = skv_safetensors_write(path, t, 2 * s->n_layers, about, sizeof(about) / sizeof(*about), text, sizeof(text));
	free(t);
	return r < 0 ? eng_fail(err, r, "%s", text) : 0;
}
