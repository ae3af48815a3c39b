/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/compress.h"

#include <errno.h>
#include "engine/progress.h"
#include "engine/read-text.h"

#define SPAN 4u /* most kv heads in a span of a palu compressor */

/* ---- reading --------------------------------------------------------------------------------- */

static void begins(void *arg, uint32_t at, uint32_t rows)
{
	eng_residuals_begin(arg, at, rows);
}

static void attends(void *arg, uint32_t layer, const float *q, const float *k, const float *v, uint32_t rows)
{
	(void)q;
	eng_residuals_add(arg, layer, k, v, rows);
}

static void adds(void *arg, uint32_t layer, const float *x, const float *y, uint32_t rows)
{
	(void)arg, (void)layer, (void)x, (void)y, (void)rows;
}

static int read_texts(const struct eng_compress *c, struct eng_residuals *of, struct eng_error *err)
{
	const struct eng_tap tap = {.attends = attends, .adds = adds, .arg = of};
	struct eng_progress progress;
	struct eng_forward f;
	int r = eng_forward_init(&f, c->model, ENG_READ_ROWS, err);

	if (r)
		return r;
	f.tap = &tap;
	eng_progress_begin(&progress, stderr, c->n, c->quiet);
	for (uint32_t i = 0; !r && i < c->n; i++) {
		const struct eng_reading reading = {
			.ids = c->texts[i].ids, .n = c->texts[i].n, .begins = begins, .arg = of, .stop = c->stop};

		r = eng_read(&f, c->session, &reading, err);
		eng_progress_show(&progress, i + 1, "reading texts");
	}
	eng_progress_end(&progress);
	eng_forward_deinit(&f);
	return r;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Returns the smallest number of spans of equal size that divide the kv heads and have at most SPAN heads each. */
static uint32_t spans_of(uint32_t kv_heads)
{
	uint32_t spans = (kv_heads + SPAN - 1) / SPAN;

	while (kv_heads % spans)
		spans++;
	return spans;
}

static void print(const struct eng_compressor *c, FILE *to)
{
	const struct eng_residuals *of = c->of;

	fprintf(to, "%llu tokens, codes of %u numbers for %u of K and V; of how these differ from their mean:\n",
	        (unsigned long long)of->tokens, c->width, of->d);
	fprintf(to, of->shape.stride ? "layer  lost  left beside references\n" : "layer  lost\n");
	for (uint32_t l = 0; l < of->shape.n_layers; l++) {
		double spread = eng_residuals_spread(of, l);

		fprintf(to, "%5u  %.3f", l, c->lost[l] / spread);
		if (of->shape.stride)
			fprintf(to, "  %.3f", eng_residuals_left(of, l) / spread);
		putc('\n', to);
	}
}

static int make(const struct eng_compress *c, const struct eng_residuals *of, uint32_t width, uint32_t spans,
                const char *path, FILE *to, struct eng_error *err)
{
	struct eng_compressor made;
	int r;

	if (of->tokens == 0)
		return eng_fail(err, -EINVAL, "the texts are too short: no token of them would be compressed");
	r = eng_compressor_make(&made, of, c->palu ? "palu" : "deltakv", width, spans, err);
	if (r)
		return r;
	r = eng_compressor_write(&made, path, err);
	if (!r)
		print(&made, to);
	eng_compressor_deinit(&made);
	return r;
}

int eng_compress(const struct eng_compress *c, const char *path, FILE *to, struct eng_error *err)
{
	const struct eng_config *m = &c->model->config;
	const uint32_t stride = c->palu ? 0 : c->stride;
	const struct eng_residuals_shape shape = {
		.n_layers = m->n_layers, .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim, .rope = m->rope,
		.max_tokens = c->longest, .rows = ENG_READ_ROWS,
		.first = stride ? SKV_PAGE_TOKENS : 0, .stride = stride, .near = stride ? c->near : 0};
	uint32_t d = 2 * m->n_kv_heads * m->head_dim, spans = c->palu ? spans_of(m->n_kv_heads) : 0;
	uint32_t usual = c->palu ? d / 2 : (d / 4 + ENG_COMPRESSOR_GROUP - 1) / ENG_COMPRESSOR_GROUP * ENG_COMPRESSOR_GROUP;
	uint32_t width = c->width ? c->width : usual;
	struct eng_residuals of;
	int r = eng_compressor_check(d, width, spans, err);

	if (r)
		return r;
	if (eng_residuals_init(&of, &shape))
		return eng_fail(err, -ENOMEM, "no memory for %u layers of %u numbers a token", m->n_layers, d);
	r = read_texts(c, &of, err);
	r = r ? r : make(c, &of, width, spans, path, to, err);
	eng_residuals_deinit(&of);
	return r;
}
