/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/meter.h - which work made turns of the loop long, in CPU time and in wall-clock time.
 *
 * Wall-clock time includes time of other processes on the CPU, so only CPU time says that a piece of work is too
 * large. Reading CPU time is a system call: it is read once at the beginning of a turn, and again after pieces that
 * took SKV_METER_LEAST_NS or more of wall-clock time. So CPU time of shorter pieces may be counted with a long one of
 * the same turn.
 */
#ifndef SKV_LOOP_METER_H
#define SKV_LOOP_METER_H

#include <stdint.h>

#define SKV_METER_LEAST_NS 100000u /* shorter pieces are not recorded */
#define SKV_METER_LONG_NS 2000000u /* CPU time above which a piece counts as long and is logged at level debug */
#define SKV_METER_WORKS 24u

/* One kind of work: the longest piece, and how many were long. */
struct skv_meter_work {
	const char *name;
	uint64_t cpu_max_ns, max_ns, n_long;
};

struct skv_meter {
	uint64_t begun_ns, mark_ns, begun_cpu_ns, mark_cpu_ns;
	uint64_t turn_max_ns, turn_cpu_max_ns;
	struct skv_meter_work works[SKV_METER_WORKS]; /* in no order; the first without a name ends the list */
};

/* Begin a turn; end it, before the loop waits. */
void skv_meter_begin(struct skv_meter *);
void skv_meter_end(struct skv_meter *);
/*
 * Attributes the time since the turn began, or since the last call, to work of this name (static text). Names beyond
 * SKV_METER_WORKS are not recorded.
 */
void skv_meter_did(struct skv_meter *, const char *name);

#endif
