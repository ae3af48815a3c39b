/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/measure.h - the statistics of attention that a calibration collects about a model's layers.
 *
 * A row is one token's attention in all layers. Rows are accumulated one by one, so the memory is that of one row and
 * of a table of layer pairs, whatever the length of the text.
 */
#ifndef ENG_MEASURE_H
#define ENG_MEASURE_H

#include <stdint.h>

struct eng_measure_shape {
	uint32_t n_layers, n_heads, n_kv_heads;
	uint32_t max_tokens; /* in a row */
	uint32_t top;        /* Kascade's k, tokens */
};

struct eng_measure {
	struct eng_measure_shape shape;
	uint64_t rows, texts;
	double *shift;      /* [layer]: sums over rows */
	double *change;     /* [layer]: sums over rows */
	uint64_t *changes;  /* [layer]: number of those rows */
	float *least;       /* [a][b][h][h']: minimum over this text */
	double *similarity; /* [a][b][h][h']: means over texts */
	struct eng_measured_layer *layers; /* of the current row */
};
#define ENG_MEASURE_NULL ((struct eng_measure){.rows = 0})

/* -ENOMEM. */
int eng_measure_init(struct eng_measure *m, const struct eng_measure_shape *shape);
void eng_measure_deinit(struct eng_measure *m);

/* Adds one row over n tokens: softmax weights, [n_layers][n_heads][n]. */
void eng_measure_row(struct eng_measure *m, const float *weights, uint32_t n);

/*
 * Adds how attention of a layer changes one row of the residual stream: x [n] is the row before, y [n] is added to
 * it.
 */
void eng_measure_change(struct eng_measure *m, uint32_t layer, const float *x, const float *y, uint32_t n);

/* Ends a text, which has the rows since the last call, at least one. */
void eng_measure_end_text(struct eng_measure *m);

/* ---- results --------------------------------------------------------------------------------- */

/* DELTA: 1 - cos of the weights of all heads and those of the previous layer, mean over rows. 0 for layer 0. */
double eng_measure_shift(const struct eng_measure *m, uint32_t layer);

/* Kascade's importance of a layer: 1 - cos of the residual stream before and after attention, mean over rows. */
double eng_measure_change_mean(const struct eng_measure *m, uint32_t layer);

/*
 * Kascade's similarity of layers a <= b, [kv head of b][kv head of a]: the weight of b's head on the `top` best
 * tokens of a's head, relative to its weight on its own `top` best tokens. Weights are summed over the q heads of a
 * kv head. It is the minimum over a text's rows, averaged over texts.
 */
const double *eng_measure_similarity(const struct eng_measure *m, uint32_t a, uint32_t b);

/* The same for whole layers: the best head of a for each head of b, averaged over the heads of b. */
double eng_measure_best_heads(const struct eng_measure *m, uint32_t a, uint32_t b);

#endif
