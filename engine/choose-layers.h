/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/choose-layers.h - chooses from the measurements of a calibration the layers that select tokens for the layers
 * after them.
 *
 * The functions do not depend on how the figures were measured. Layers are numbered from 0 to n_layers - 1, and lists
 * of layers are ascending. If two layers or heads are equally good, the lower one is chosen.
 *
 * The first chosen layer is always layer `first`, and there are 1 to n_layers - `first` chosen layers. The layers
 * before `first` use dense attention. A layer that is not chosen attends to the tokens selected by the last chosen
 * layer before it.
 */
#ifndef ENG_CHOOSE_LAYERS_H
#define ENG_CHOOSE_LAYERS_H

#include <stdint.h>

struct eng_choice {
	uint32_t n_layers;
	uint32_t first;
	uint32_t n; /* number of layers to choose; 1 … n_layers - first */
};

/*
 * Chooses layers for the policy delta. The paper (DELTA) chooses layers with large shifts that are "well distributed
 * across the network depth", and does not say how to weigh the two criteria. shift[l] is 1 - cosine between the
 * attention weights of layers l - 1 and l. Here the layers after `first` are divided into n - 1 parts of equal size
 * (the earlier parts have one more if the division leaves a remainder), and each part gives the layer with its largest
 * shift. The four sets that the paper publishes have one layer in each such part.
 */
void eng_choose_by_shift(const struct eng_choice *c, const double *shift, uint32_t *ret_layers);

/*
 * Kascade's Algorithm 1: chooses the layers that maximise the sum of worth[i][l] over all layers l from `first` on,
 * where i is the last chosen layer that is not after l. `worth` is [n_layers][n_layers], the paper's S: how well layer
 * l does with the tokens that layer i selects, weighted by the importance of l. Returns the sum.
 */
double eng_choose_anchors(const struct eng_choice *c, const double *worth, uint32_t *ret_layers);

/* Returns the last chosen layer that is not after `layer`, which must be `first` or later. */
uint32_t eng_choose_source(const struct eng_choice *c, const uint32_t *layers, uint32_t layer);

/*
 * Computes Kascade's head map of a layer: ret_map[h] is the head of the anchor layer whose selection of tokens suits
 * head h of this layer best. `similarity` is [n_heads of the layer][n_heads of the anchor]. If heads are split over
 * n_ranks tensor-parallel ranks, a head maps to a head of the same rank. n_heads must be a multiple of n_ranks.
 */
void eng_choose_heads(const double *similarity, uint32_t n_heads, uint32_t n_ranks, uint8_t *ret_map);

#endif
