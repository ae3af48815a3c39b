/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/choose.h - which layers select, from what a calibration has measured.
 *
 * Nothing here knows where the figures come from. Layers are 0 … n_layers - 1 in ascending order; of equals the
 * lower layer or head is taken.
 *
 * The chosen layers are 1 to n_layers - `first`, and the first of them is `first`: the layers before it attend
 * densely, and whatever follows a chosen layer, up to the next, attends to what that one selected.
 */
#ifndef ENG_CHOOSE_H
#define ENG_CHOOSE_H

#include <stdint.h>

struct eng_choice {
	uint32_t n_layers;
	uint32_t first;
	uint32_t n; /* how many are to be chosen; 1 … n_layers - first */
};

/*
 * DELTA: layers with large shifts, "well distributed across the network depth". shift[l]: 1 - cos of the
 * attention of layers l - 1 and l. The paper does not say how the two are weighed. Here the layers after
 * `first` are divided into n - 1 parts of equal size (the earlier ones larger by one where it does not come
 * out even), and each gives the layer with its largest shift. The four sets that the paper publishes have one
 * layer in each such part.
 */
void eng_choose_by_shift(const struct eng_choice *c, const double *shift, uint32_t *ret_layers);

/*
 * Kascade's Algorithm 1: the layers that maximise the sum over all layers l from `first` on of
 * worth[i][l], i the chosen layer that l follows (or is). `worth` is [n_layers][n_layers], the paper's S:
 * how well layer l does with what layer i selects, weighed with how much l matters. Returns that sum.
 */
double eng_choose_anchors(const struct eng_choice *c, const double *worth, uint32_t *ret_layers);

/* The chosen layer that `layer` follows or is; `first` or later. */
uint32_t eng_choose_source(const struct eng_choice *c, const uint32_t *layers, uint32_t layer);

/*
 * Kascade's head map of a layer: ret_map[h] is the head of its anchor whose selection suits its head h best.
 * `similarity` is of the two layers, [n_heads of the layer][n_heads of the anchor]. n_ranks, which divides n_heads: heads are
 * split over so many tensor-parallel ranks, and a head's is one of the same rank.
 */
void eng_choose_heads(const double *similarity, uint32_t n_heads, uint32_t n_ranks, uint8_t *ret_map);

#endif
