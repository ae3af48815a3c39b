/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/meter.h - which work made turns of the loop long: by the processor's time, and by the clock.
 *
 * The clock also counts what other processes had of the processor, so only the processor's time says that a piece of work is too large. To read
 * that is a system call: it is read once at the beginning of a turn, and again after pieces that took SKV_METER_LEAST_NS by the clock.
 * What shorter pieces of the same turn took may thus be counted with a long one.
 */
#ifndef SKV_LOOP_METER_H
#define SKV_LOOP_METER_H

#include <stdint.h>

#define SKV_METER_LEAST_NS 100000u /* shorter pieces are not recorded */
#define SKV_METER_LONG_NS 1000000u /* of the processor's time: the piece is counted as long, and told at level debug */
#define SKV_METER_WORKS 24u

/* A kind of work: the most that a piece of it took, and how many were long. */
struct skv_meter_work {
	const char *name;
	uint64_t cpu_max_ns, max_ns, n_long;
};

struct skv_meter {
	uint64_t begun_ns, mark_ns, begun_cpu_ns, mark_cpu_ns;
	uint64_t turn_max_ns, turn_cpu_max_ns;
	struct skv_meter_work works[SKV_METER_WORKS]; /* in no order; the first that has no name ends them */
};

/* A turn begins; it ends, before the loop waits. */
void skv_meter_begin(struct skv_meter *);
void skv_meter_end(struct skv_meter *);
/* What was done since the turn began, or the last call, was work of this name: static text. What is beyond SKV_METER_WORKS names is not recorded. */
void skv_meter_did(struct skv_meter *, const char *name);

#endif
