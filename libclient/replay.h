/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/replay.h - layers that a device has recorded, and replays. */
#ifndef SKV_CLIENT_REPLAY_H
#define SKV_CLIENT_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

int replay_open(struct skv_session *s);
void replay_close(struct skv_session *s);
/* The step is laid out: its key. Is it time to record some of its layers, *ret_first up to *ret_end? */
bool replay_begin(struct skv_session *s, uint32_t *ret_first, uint32_t *ret_end);
/*
 * Record how the sequences that decode attend in a layer, to *ret: what is queued between the two; `error` is what came of it. Both
 * say whether it went well so far. Then replay_recorded(): all layers up to `end` are; without `well` all are forgotten.
 */
bool replay_record_begin(struct skv_session *s, uint32_t layer, const struct skv_attn **ret);
bool replay_record_end(struct skv_session *s, uint32_t layer, int error);
void replay_recorded(struct skv_session *s, uint32_t end, bool well);
/* *ret: the sequences that decode have attended in the layer. Else they attend as it comes. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool *ret);

#endif
