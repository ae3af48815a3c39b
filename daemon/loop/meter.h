/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/loop/meter.h - measures which kinds of work made turns of the loop long, in CPU time and in wall-clock time.
 *
 * Wall-clock time includes the time that other processes had the CPU, so only CPU time shows that a piece of work is
 * too large. Reading the CPU time is a system call. So it is read once at the beginning of a turn, and again after a
 * piece of work that took SKV_METER_LEAST_NS or more of wall-clock time. The CPU time of shorter pieces may therefore
 * be counted as that of a longer piece after them in the same turn.
 */
#ifndef SKV_LOOP_METER_H
#define SKV_LOOP_METER_H

#include <stdint.h>

#define SKV_METER_LEAST_NS 100000u /* wall-clock time below which a piece of work is not recorded */
/* CPU time from which on a piece of work counts as long, and is logged at level debug */
#define SKV_METER_LONG_NS 2000000u
#define SKV_METER_WORKS 24u

/* One kind of work: the time of its longest piece, and the number of long pieces. */
struct skv_meter_work {
	const char *name;
	uint64_t cpu_max_ns, max_ns, n_long;
};

struct skv_meter {
	uint64_t begun_ns, mark_ns, begun_cpu_ns, mark_cpu_ns;
	uint64_t turn_max_ns, turn_cpu_max_ns;
	struct skv_meter_work works[SKV_METER_WORKS]; /* in no order; the first entry without a name ends the list */
};

/* Begin a turn of the loop, and end it, before the loop waits. */
void skv_meter_begin(struct skv_meter *);
void skv_meter_end(struct skv_meter *);
/*
 * Attributes the time since the turn began, or since the last call, to the kind of work with this name (a static text).
 * Kinds of work beyond the first SKV_METER_WORKS are not recorded.
 */
void skv_meter_did(struct skv_meter *, const char *name);

#endif
