/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/steps.h - queues steps on a device, and reports them when they have run. */
#ifndef SKV_CLIENT_DEVICE_STEPS_H
#define SKV_CLIENT_DEVICE_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/types.h>

struct skv_seq;
struct device;
struct skv_session;

/* Report steps that have run; waits for the oldest one if the host is too far ahead. The device must be current. */
int device_turn(struct skv_session *s);
/* Wait for all queued steps, and report them. Like the next function it makes the device current itself. */
int device_settle(struct skv_session *s);
int device_poll(struct skv_session *s); /* reports the steps that have run, without waiting */
bool device_queued(const struct device *d); /* is a step queued that was not yet reported as run? */
int device_settle_seq(struct skv_seq *q); /* waits only for steps of this sequence, and for older ones */
int device_settle_evictions(struct skv_session *s); /* device_settle(), if a queued step evicts */
int device_not_recording(struct skv_session *s); /* -EBUSY: the step's stream is being captured into a graph */
/* The page table entry as kernels see it. */
skv_pte device_pte(const struct skv_seq *q, skv_pte e);
/*
 * device_prepare() makes room for `entries` changed entries in the step that begins. device_entry() records an entry
 * that this step changes. device_stale() records a changed entry that stays valid even if this step is aborted.
 * device_entry() and device_stale() do nothing on host memory.
 */
int device_prepare(struct skv_session *s, uint32_t entries);
void device_entry(struct skv_seq *q, uint32_t table, uint32_t page);
void device_stale(struct skv_seq *q, uint32_t table, uint32_t page);
int device_room_stale(struct skv_session *s, uint64_t n); /* makes room for n more calls of device_stale() */
int device_stage(struct skv_session *s);
/* Queue the step's commits. Work queued between the two calls belongs to the step. A failure changes nothing. */
int device_publish_begin(struct skv_session *s, const int32_t *next);
int device_publish_end(struct skv_session *s);

#endif
