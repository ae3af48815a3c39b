/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/replay.h - layers that a device has recorded, and replays. */
#ifndef SKV_CLIENT_STEP_REPLAY_H
#define SKV_CLIENT_STEP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

int replay_open(struct skv_session *s);
void replay_close(struct skv_session *s);
/*
 * The step is laid out: if it is time to, record how decoding sequences attend in some layers, which decode() queues.
 * If one misuses a primitive or cannot be recorded, no layer is replayed.
 */
void replay_record(struct skv_session *s,
                   int (*decode)(struct skv_session *s, uint32_t layer, const struct skv_attn *a));
/* Replay the layer's decoding sequences if a recording fits: then *ret is true, else it stays as it is. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool *ret);

#endif
