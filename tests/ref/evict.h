/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/ref/evict.h - what layers that keep slots should do, in plain loops and double precision.
 *
 * A kv head is an array of units, by slot (or page slot), and the contract of kernels.h is applied to it. It knows
 * nothing of pages, tables or slot metadata, and shares no code with the kernels.
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
 * Room for a new unit of pos new_pos (REF_NONE: for none): was[extent] becomes now[units], and from[u] says whose rows
 * unit u has: its own, another one's, or REF_NONE: the new one's. Returns false if the two sides do not agree in
 * number.
 */
#define REF_NONE 0xffffffffu
bool ref_alloc(const struct ref_unit *was, uint32_t extent, struct ref_unit *now, uint32_t units, uint32_t new_pos,
               uint32_t *from);

/* The unit of the largest pos. */
uint32_t ref_latest(const struct ref_unit *, uint32_t n);

/* Of n units that live, those that do not stay die. Ranks are as they come: -0 is 0, and a NaN is -infinity. */
struct ref_evict {
	uint32_t n_retained, recent, pinned;
	bool old_first, forget;
};
void ref_evict(struct ref_unit *, uint32_t n, const struct ref_evict *, const double *rank);

/*
 * Of the units of several heads, n slots each, that are alive and whose value has no sign, those that are not chosen
 * get one: of each head the `recent` latest and the best until it has `safeguard`, then the best of all until they
 * are `active` a head.
 */
struct ref_head_budgets {
	uint32_t recent, safeguard, active;
};
void ref_head_budgets(struct ref_unit *const *, uint32_t heads, uint32_t n, const struct ref_head_budgets *,
               const double *const *rank);

/*
 * Values smoothed over `width` positions, then (lambda > 0) against redundancy: n rows of keys, `stride` floats
 * apart.
 */
void ref_rank(const struct ref_unit *, uint32_t n, uint32_t width, double lambda, const float *k, uint32_t stride,
              uint32_t dim, double *rank);

/* The mean over `rows` rows of score[n], `stride` apart, of their softmax times scale. */
void ref_weights(const float *score, uint32_t rows, uint32_t stride, uint32_t n, double scale, double *weight);

/* The `want` best of those of n units that may be chosen: chosen[u]. Of equals the one of the lower pos. */
void ref_best_entries(const struct ref_unit *, uint32_t n, const double *score, const bool *may, uint32_t want,
                      bool *chosen);

#endif
