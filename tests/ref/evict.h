/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/evict.h - reference for layers that evict, in plain loops and double precision.
 *
 * A kv head is an array of units, by slot (or page slot), and the contract of kernels.h is applied to it. Does not know
 * pages, tables or slot metadata, and shares no code with the kernels.
 */
#ifndef SKV_REF_SLOTS_H
#define SKV_REF_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

struct ref_unit {
	bool alive;
	uint32_t pos;
	double value;
};

/*
 * Makes room for a new unit with pos new_pos (REF_NONE: there is none): was[extent] becomes now[units], and from[u]
 * says whose rows unit u has: its own, those of another unit, or, with REF_NONE, the new token's. Returns false if the
 * number of units to move does not match the number of free ones.
 */
#define REF_NONE 0xffffffffu
bool ref_alloc(const struct ref_unit *was, uint32_t extent, struct ref_unit *now, uint32_t units, uint32_t new_pos,
               uint32_t *from);

/* Returns the unit with the largest pos. */
uint32_t ref_latest(const struct ref_unit *, uint32_t n);

/*
 * Of n units that are alive, those that are not retained are marked dead. Ranks are used as they are; -0 is 0, and a
 * NaN is -infinity.
 */
struct ref_evict {
	uint32_t n_retained, recent, pinned;
	bool old_first, forget;
};
void ref_evict(struct ref_unit *, uint32_t n, const struct ref_evict *, const double *rank);

/*
 * Among the units of several heads (n slots each) that are alive and have no sign in their value, sets the sign of
 * those that are not chosen. Chosen are the `recent` latest of each head, its best up to `safeguard`, then the best of
 * all heads up to an average of `active`.
 */
struct ref_head_budgets {
	uint32_t recent, safeguard, active;
};
void ref_head_budgets(struct ref_unit *const *, uint32_t heads, uint32_t n, const struct ref_head_budgets *,
               const double *const *rank);

/*
 * Smooths values over `width` positions, then (lambda > 0) subtracts redundancy; n rows of keys, `stride` floats apart.
 */
void ref_rank(const struct ref_unit *, uint32_t n, uint32_t width, double lambda, const float *k, uint32_t stride,
              uint32_t dim, double *rank);

/* The mean, over `rows` rows of score[n], `stride` apart, of the softmax of scale * score. */
void ref_weights(const float *score, uint32_t rows, uint32_t stride, uint32_t n, double scale, double *weight);

/* Marks in chosen[u] the `want` best of those of n units that may be chosen. Ties go to the lower pos. */
void ref_best_entries(const struct ref_unit *, uint32_t n, const double *score, const bool *may, uint32_t want,
                      bool *chosen);

#endif
