/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/steps.h - steps that a device has not run yet. */
#ifndef SKV_CLIENT_DEVICE_STEPS_H
#define SKV_CLIENT_DEVICE_STEPS_H

#include <stdint.h>

#include <sparsekv/types.h>

struct skv_seq;
struct skv_session;

/* Report the steps that have run; waits for the oldest if the host is too far ahead. The device must be entered. */
int device_turn(struct skv_session *s);
/* Wait for all steps, and report them. Enters the device itself. */
int device_settle(struct skv_session *s);
int device_settle_evictions(struct skv_session *s); /* the same, if one of them evicts */
int device_not_recording(struct skv_session *s); /* -EBUSY: the step's stream is being recorded */
/* The entry as kernels see it. */
skv_pte device_pte(const struct skv_seq *q, skv_pte e);
/*
 * device_prepare() makes room for so many entries in the step that begins. device_entry() records an entry of this
 * step, device_stale() one that holds whatever becomes of the step; both do nothing on host memory.
 */
int device_prepare(struct skv_session *s, uint32_t entries);
void device_entry(struct skv_seq *q, uint32_t table, uint32_t page);
void device_stale(struct skv_seq *q, uint32_t table, uint32_t page);
int device_room_stale(struct skv_session *s, uint64_t n); /* makes room for n more of these */
int device_stage(struct skv_session *s);
/* Queue the commits; what else is queued in between belongs to the step, too. On failure nothing has changed. */
int device_publish_begin(struct skv_session *s, const int32_t *next);
int device_publish_end(struct skv_session *s);

#endif
