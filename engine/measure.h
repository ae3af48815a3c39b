/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/measure.h - what a calibration learns of a model's layers, attention row by attention row.
 *
 * A row is one token's attention in all layers. Rows are added up as they come and forgotten, so memory is that of one
 * row and of a table of pairs of layers, however long the text.
 */
#ifndef ENG_MEASURE_H
#define ENG_MEASURE_H

#include <stdint.h>

struct eng_measure_shape {
	uint32_t n_layers, n_heads, n_kv_heads;
	uint32_t max_tokens; /* of a row */
	uint32_t top;        /* Kascade's k, tokens */
};

struct eng_measure {
	struct eng_measure_shape shape;
	uint64_t rows, texts;
	double *shift;      /* [layer] sums over rows */
	double *change;     /* [layer] sums over rows */
	uint64_t *changes;  /* [layer] those rows */
	float *least;       /* [a][b][h][h'] of this text */
	double *similarity; /* [a][b][h][h'] means over texts */
	struct eng_measured_layer *layers; /* of the row at hand */
};
#define ENG_MEASURE_NULL ((struct eng_measure){.rows = 0})

/* -ENOMEM. */
int eng_measure_init(struct eng_measure *m, const struct eng_measure_shape *shape);
void eng_measure_deinit(struct eng_measure *m);

/* One row over n tokens: softmax weights, `weights` is [n_layers][n_heads][n]. */
void eng_measure_row(struct eng_measure *m, const float *weights, uint32_t n);

/* How attention of a layer changes one row of the residual stream: x [n] before, y [n] is added to it. */
void eng_measure_change(struct eng_measure *m, uint32_t layer, const float *x, const float *y, uint32_t n);

/* The rows since the last call were one text's; at least one. */
void eng_measure_end_text(struct eng_measure *m);

/* ---- what came out --------------------------------------------------------------------------- */

/* DELTA: 1 - cos of the weights of all heads with those of the layer before, mean over rows. 0 of layer 0. */
double eng_measure_shift(const struct eng_measure *m, uint32_t layer);

/* Kascade's weight of a layer: 1 - cos of the residual stream before and after attention, mean over rows. */
double eng_measure_change_mean(const struct eng_measure *m, uint32_t layer);

/*
 * Kascade's similarity of layers a <= b, [kv head of b][kv head of a]: of the mass that b's head has on its own `top`
 * best tokens, the part that it has on those of a's head. Weights are added up over the q heads of a kv head. The
 * smallest of a text's rows, mean over texts.
 */
const double *eng_measure_similarity(const struct eng_measure *m, uint32_t a, uint32_t b);

/* The same for whole layers: the best head of a for each of b, mean over b's. */
double eng_measure_best_heads(const struct eng_measure *m, uint32_t a, uint32_t b);

#endif
