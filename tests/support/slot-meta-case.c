/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/slot-meta-case.h"
#include <stdlib.h>

/* Address of unit u's slot metadata in the backend's memory; *ret_n units are contiguous there. */
static uint8_t *slot_meta_at(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t set, uint32_t u,
                             uint32_t *ret_n)
{
	const size_t head = skv_head_room(&c->sh), each = sizeof(struct skv_slot_meta);
	const uint32_t n = (uint32_t)(head / (2 * each));

	*ret_n = n - u % n;
	return c->sh.pool + skv_pte_id(c->slot_meta[i][u / n]) * c->sh.page_bytes + h * head + (set * n + u % n) * each;
}

void slot_meta_put(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t set, const struct ref_unit *unit,
              uint32_t n)
{
	struct skv_slot_meta *x = malloc((n ? n : 1) * sizeof *x);

	for (uint32_t u = 0; u < n; u++)
		x[u] = (struct skv_slot_meta){unit[u].pos | (unit[u].alive ? 0 : SKV_SLOT_EVICTED),
		                              (float)unit[u].value};
	for (uint32_t u = 0, some; u < n; u += some) {
		uint8_t *to = slot_meta_at(c, i, h, set, u, &some);
		some = some < n - u ? some : n - u;
		c->on->to(to, x + u, some * sizeof *x);
	}
	free(x);
}

struct skv_slot_meta *slot_meta_get(const struct kernel_case *c, uint32_t i, uint32_t h, uint32_t set, uint32_t n)
{
	struct skv_slot_meta *x = malloc((n ? n : 1) * sizeof *x);

	for (uint32_t u = 0, some; u < n; u += some) {
		const uint8_t *from = slot_meta_at(c, i, h, set, u, &some);
		some = some < n - u ? some : n - u;
		case_from(c, x + u, from, some * sizeof *x);
	}
	return x;
}

struct ref_unit *slot_meta_units(uint32_t n, uint32_t gap)
{
	struct ref_unit *unit = calloc(n ? n : 1, sizeof *unit);
	uint32_t pos = rnd_below(gap);

	for (uint32_t u = 0; u < n; u++, pos += 1 + rnd_below(2 * gap - 1)) {
		uint32_t other = rnd_below(u + 1);
		unit[u] = unit[other];
		unit[other] = (struct ref_unit){.alive = true, .pos = pos};
	}
	return unit;
}

struct skv_batch slot_meta_batch(struct kernel_case *c, const struct skv_kseq *seq, uint32_t from, uint32_t n)
{
	struct skv_batch b = case_part(c, 0, n);

	b.seq = case_to(c, seq + from, n * sizeof *seq);
	return b;
}

void slot_meta_sequences(const struct kernel_case *c, struct skv_kseq *seq)
{
	case_from(c, seq, c->batch.seq, c->n * sizeof *seq);
	for (uint32_t i = 0; i < c->n; i++) {
		seq[i].n_tokens = seq[i].slot_end = seq[i].len;
		seq[i].set = rnd_below(2);
		seq[i].n_retained = seq[i].n_active = UINT32_MAX;
	}
}
