/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/state/units.h - units of work, which limit how much the core does in a turn. */
#ifndef SKV_CORE_UNITS_H
#define SKV_CORE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Work is counted in units of some ten nanoseconds. skv_units_take() takes n units for a piece of work from the *units
 * that are left in a turn; false: none were left. The last piece of work of a turn may take more units than are left,
 * so that every turn makes progress.
 */
static inline bool skv_units_take(uint32_t *units, uint32_t n)
{
	bool any = *units > 0;

	*units -= n < *units ? n : *units;
	return any;
}

#endif
