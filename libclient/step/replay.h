/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/replay.h - layers that a device has recorded, and replays. */
#ifndef SKV_CLIENT_STEP_REPLAY_H
#define SKV_CLIENT_STEP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

int replay_open(struct skv_session *s);
void replay_close(struct skv_session *s);
/* The step is laid out: compute its key. Returns whether to record layers *ret_first up to *ret_end now. */
bool replay_next(struct skv_session *s, uint32_t *ret_first, uint32_t *ret_end);
/*
 * Record how decoding sequences attend in a layer with the rows *ret: all that is queued between begin and end, whose
 * result is `error`. Both return whether recording has succeeded so far. replay_recorded() then keeps all layers up to
 * `end`, or forgets all without `well`.
 */
bool replay_record_begin(struct skv_session *s, uint32_t layer, const struct skv_attn **ret);
bool replay_record_end(struct skv_session *s, uint32_t layer, int error);
void replay_recorded(struct skv_session *s, uint32_t end, bool well);
/* Replay the layer's decoding sequences if a recording fits: then *ret is true, else it stays as it is. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool *ret);

#endif
