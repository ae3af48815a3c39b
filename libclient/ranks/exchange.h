/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks/exchange.h - compresses tokens when each tensor-parallel rank has only some of the heads. */
#ifndef SKV_CLIENT_RANKS_EXCHANGE_H
#define SKV_CLIENT_RANKS_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct skv_batch;
struct skv_seq;
struct skv_session;
struct skv_shape;

/* Are the sequence's tokens compressed together with those of the other ranks? */
bool exchange_has(const struct skv_seq *q);
/* Bytes that step.compress.exchanged needs for the keys and values of all ranks in the step, which must be laid out. */
size_t exchange_bytes(const struct skv_session *s);
/*
 * Queue the compression of a batch's tokens in n layers. The codecs in `shapes` may differ only in their pointers. An
 * error of the exchange between ranks is recorded as the step's: step.ranks_error.
 */
void exchange_compress(struct skv_session *s, const struct skv_shape *shapes, uint32_t n, const struct skv_batch *batch);

#endif
