/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/measure.h - the statistics of attention that a calibration collects about a model's layers.
 *
 * A row is the attention of one token, in all layers, to itself and the tokens before it. Rows are added one by one. So
 * the memory needed is that of one row and of a table of layer pairs, and does not grow with the number of rows.
 */
#ifndef ENG_MEASURE_H
#define ENG_MEASURE_H

#include <stdint.h>

struct eng_measure_shape {
	uint32_t n_layers, n_heads, n_kv_heads;
	uint32_t max_tokens; /* most tokens in a row */
	uint32_t top;        /* number of best tokens that are compared: Kascade's k */
};

struct eng_measure {
	struct eng_measure_shape shape;
	uint64_t rows, texts;
	double *shift;      /* [layer]: sums over rows; see eng_measure_shift() */
	double *change;     /* [layer]: sums over rows; see eng_measure_change_mean() */
	uint64_t *changes;  /* [layer]: number of rows in `change` */
	float *least;       /* [a][b][h][h']: minimum of the similarity over the rows of the current text */
	double *similarity; /* [a][b][h][h']: mean of those minima over texts */
	struct eng_measured_layer *layers; /* [n_layers]: of the current row */
};
#define ENG_MEASURE_NULL ((struct eng_measure){.rows = 0})

/* Returns 0 or -ENOMEM. */
int eng_measure_init(struct eng_measure *m, const struct eng_measure_shape *shape);
void eng_measure_deinit(struct eng_measure *m);

/* Adds one row: the softmax weights [n_layers][n_heads][n] of one token over n tokens. */
void eng_measure_row(struct eng_measure *m, const float *weights, uint32_t n);

/*
 * Adds how much the attention of a layer changes one row of the residual stream. x [n] is the row before attention, and
 * y [n] is the output of attention that is added to x.
 */
void eng_measure_change(struct eng_measure *m, uint32_t layer, const float *x, const float *y, uint32_t n);

/* Ends a text, which consists of the rows added since the last call. There must be at least one such row. */
void eng_measure_end_text(struct eng_measure *m);

/* ---- results --------------------------------------------------------------------------------- */

/*
 * DELTA's shift of a layer: 1 - cosine between the softmax weights of all heads of the layer and of the layer before,
 * averaged over rows. Layer 0 has shift 0.
 */
double eng_measure_shift(const struct eng_measure *m, uint32_t layer);

/*
 * Kascade's importance of a layer: 1 - cosine between the residual stream before and after attention, averaged over
 * rows.
 */
double eng_measure_change_mean(const struct eng_measure *m, uint32_t layer);

/*
 * Kascade's similarity of layers a <= b, [kv head of b][kv head of a]: the attention weight that b's head gives to the
 * `top` best tokens of a's head, divided by the weight that b's head gives to its own `top` best tokens. The weight of
 * a kv head is the sum over its q heads. The result is the minimum over the rows of a text, averaged over texts.
 */
const double *eng_measure_similarity(const struct eng_measure *m, uint32_t a, uint32_t b);

/*
 * The similarity of layers a and b as a whole: for each kv head of b the most similar kv head of a, averaged over the
 * kv heads of b.
 */
double eng_measure_best_heads(const struct eng_measure *m, uint32_t a, uint32_t b);

#endif
