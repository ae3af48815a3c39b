/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/slot-meta-case.h - slot metadata of a case, and the other arguments of layers that evict. */
#ifndef SKV_SLOT_META_CASE_H
#define SKV_SLOT_META_CASE_H

#include "tests/support/kernel-case.h"
#include "tests/ref/evict.h"

/* Write the slot metadata of n entries of a sequence's kv head, or read them (the caller's to free). */
void slot_meta_put(const struct kernel_case *, uint32_t i, uint32_t h, uint32_t set, const struct ref_unit *,
                   uint32_t n);
struct skv_slot_meta *slot_meta_get(const struct kernel_case *, uint32_t i, uint32_t h, uint32_t set, uint32_t n);

/*
 * n units that live, of positions at random, in no order; about every `gap`-th position has one. The caller's to
 * free.
 */
struct ref_unit *slot_meta_units(uint32_t n, uint32_t gap);

/* The case's sequences with sets at random and nothing to choose; and n of them from number `from` on as a batch. */
void slot_meta_sequences(const struct kernel_case *, struct skv_kseq *seq);
struct skv_batch slot_meta_batch(struct kernel_case *, const struct skv_kseq *seq, uint32_t from, uint32_t n);

#endif
