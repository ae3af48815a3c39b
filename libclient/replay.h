/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/replay.h - layers that a device has recorded, and replays. */
#ifndef SKV_CLIENT_REPLAY_H
#define SKV_CLIENT_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

int replay_open(struct skv_session *s);
void replay_close(struct skv_session *s);
/* The step is laid out: its key. Is it time to record its layers? */
bool replay_begin(struct skv_session *s);
/*
 * Record a layer: what is queued between the two, of an attention to *ret, is recorded. Both say whether it went well
 * so far; after a false replay_recorded() forgets all layers.
 */
bool replay_record_begin(struct skv_session *s, uint32_t layer, const struct skv_attn **ret);
bool replay_record_end(struct skv_session *s, uint32_t layer);
void replay_recorded(struct skv_session *s, bool well);
/* 1: the layer was replayed. 0: attend as it comes. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a);

#endif
