/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/choose.h - chooses the layers that select, from the measurements of a calibration.
 *
 * The functions do not depend on how the figures were measured. Layers are 0 … n_layers - 1 in ascending order; of
 * equals the lower layer or head is taken.
 *
 * There are 1 to n_layers - `first` chosen layers, and the first of them is `first`. The layers before it attend
 * densely. A layer after a chosen layer, up to the next chosen one, attends to what that layer selected.
 */
#ifndef ENG_CHOOSE_H
#define ENG_CHOOSE_H

#include <stdint.h>

struct eng_choice {
	uint32_t n_layers;
	uint32_t first;
	uint32_t n; /* number of layers to choose; 1 … n_layers - first */
};

/*
 * DELTA: layers with large shifts, "well distributed across the network depth". shift[l] is 1 - cos of the attention
 * of layers l - 1 and l. The paper does not say how to weigh the two criteria. Here the layers after `first` are
 * divided into n - 1 parts of equal size (the earlier parts have one more if the division leaves a remainder), and
 * each part gives the layer with its largest shift. The four sets that the paper publishes have one layer in each
 * such part.
 */
void eng_choose_by_shift(const struct eng_choice *c, const double *shift, uint32_t *ret_layers);

/*
 * Kascade's Algorithm 1: the layers that maximise the sum over all layers l from `first` on of worth[i][l], where i
 * is the chosen layer that l follows or is. `worth` is [n_layers][n_layers], the paper's S: how well layer l does
 * with layer i's selection, weighted by the importance of l. Returns that sum.
 */
double eng_choose_anchors(const struct eng_choice *c, const double *worth, uint32_t *ret_layers);

/* Returns the chosen layer that `layer` follows or is; `layer` must be `first` or later. */
uint32_t eng_choose_source(const struct eng_choice *c, const uint32_t *layers, uint32_t layer);

/*
 * Kascade's head map of a layer: ret_map[h] is the head of the anchor layer whose selection suits head h of this
 * layer best. `similarity` is [n_heads of the layer][n_heads of the anchor]. n_ranks divides n_heads: heads are split
 * over n_ranks tensor-parallel ranks, and a head maps to a head of the same rank.
 */
void eng_choose_heads(const double *similarity, uint32_t n_heads, uint32_t n_ranks, uint8_t *ret_map);

#endif
