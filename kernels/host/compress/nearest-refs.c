/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/nearest-refs.c - finds the references nearest to a token (L2), by the largest 2 x·c - c·c.
 */
#include "kernels/host/compress/nearest-refs.h"
#include "kernels/host/runtime/gemm.h"

/*
 * Enters a reference into the list of a token's nearest if its score is high enough. References are considered in
 * ascending order of numbers, so of equal scores the lower number is kept.
 */
static void consider(struct nearest_refs *best, uint32_t near, float score, uint32_t id)
{
	uint32_t at = near;

	while (at > 0 && score > best->score[at - 1])
		at--;
	if (at == near)
		return;
	for (uint32_t i = near - 1; i > at; i--) {
		best->score[i] = best->score[i - 1];
		best->id[i] = best->id[i - 1];
	}
	best->score[at] = score;
	best->id[at] = id;
}

static float square_of(const float *x, uint32_t n)
{
	vf sum = {0};

	for (uint32_t i = 0; i < n; i += VL)
		sum = v_fma(v_loadf(x + i), v_loadf(x + i), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

void ISA(nearest_refs)(const struct latent *k, const struct skv_kseq *s, const struct ref_buffers *b, const float *x,
                       const uint32_t *token, uint32_t m, struct nearest_refs *best)
{
	/* number of references at or before the last token */
	const uint32_t most = skv_refs_before(k->c, token[m - 1] + 1);

	for (uint32_t i = 0; i < m; i++) /* if all scores are NaNs, the numbers of the references stay 0 */
		best[i] = (struct nearest_refs){.score = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
	for (uint32_t r0 = 0; r0 < most; r0 += REFS) {
		const uint32_t n = skv_min(REFS, most - r0);
		float norm[REFS];
		for (uint32_t r = 0; r < n; r++) {
			read_ref(k, s, r0 + r, b->ref + r * k->d);
			norm[r] = square_of(b->ref + r * k->d, k->d);
		}
		dots(x, k->d, m, b->ref, k->d, n, k->d, b->score, REFS);
		for (uint32_t i = 0; i < m; i++) {
			const uint32_t usable = skv_refs_before(k->c, token[i] + 1);
			for (uint32_t r = 0; r < n && r0 + r < usable; r++)
				consider(&best[i], k->c->n_refs, 2 * b->score[i * REFS + r] - norm[r], r0 + r);
		}
	}
}
