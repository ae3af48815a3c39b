/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/slot-meta-case.h - slot metadata of a case, and further arguments of layers that evict. */
#ifndef SKV_SLOT_META_CASE_H
#define SKV_SLOT_META_CASE_H

#include "tests/support/kernel-case.h"
#include "tests/ref/evict.h"

/*
 * Write or read the slot metadata of n entries of a sequence's kv head. The caller frees what slot_meta_get() returns.
 */
void slot_meta_put(const struct kernel_case *, uint32_t i, uint32_t h, uint32_t set, const struct ref_unit *,
                   uint32_t n);
struct skv_slot_meta *slot_meta_get(const struct kernel_case *, uint32_t i, uint32_t h, uint32_t set, uint32_t n);

/*
 * Returns n live units at random positions, in random order; about every `gap`-th position has one. The caller frees
 * them.
 */
struct ref_unit *slot_meta_units(uint32_t n, uint32_t gap);

/*
 * slot_meta_sequences() gives the case's sequences random sets and nothing to choose. slot_meta_batch() makes a batch
 * of n of them from number `from` on.
 */
void slot_meta_sequences(const struct kernel_case *, struct skv_kseq *seq);
struct skv_batch slot_meta_batch(struct kernel_case *, const struct skv_kseq *seq, uint32_t from, uint32_t n);

#endif
