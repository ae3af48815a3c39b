/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/replay.h - records the decode attention of layers on a device as graphs, and replays them. */
#ifndef SKV_CLIENT_STEP_REPLAY_H
#define SKV_CLIENT_STEP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

int replay_open(struct skv_session *s);
void replay_close(struct skv_session *s);
/*
 * Called when the step is laid out. If a recording is due, records the attention of decoding sequences in some layers,
 * which decode() queues. If a hook misuses a primitive or a layer cannot be recorded, all recordings of the step's key
 * are dropped.
 */
void replay_record(struct skv_session *s,
                   int (*decode)(struct skv_session *s, uint32_t layer, const struct skv_attn *a));
/*
 * If a recording of the layer fits, replay the attention of decoding sequences and set *ret to true; else leave *ret as
 * it is.
 */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool *ret);

#endif
