/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/state/units.h - limits how much work the core does in a turn. */
#ifndef SKV_CORE_UNITS_H
#define SKV_CORE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Work is counted in units of some ten nanoseconds. Takes n units; false if none were left. The last piece of work of a
 * turn may take more units than are left, so that every turn makes progress.
 */
static inline bool skv_units_take(uint32_t *units, uint32_t n)
{
	bool any = *units > 0;

	*units -= n < *units ? n : *units;
	return any;
}

#endif
