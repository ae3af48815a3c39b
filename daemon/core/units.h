/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/units.h - what a turn of the core's work may take. */
#ifndef SKV_CORE_UNITS_H
#define SKV_CORE_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Work is counted in units, of some ten nanoseconds. False when there are none left. The last piece of work of a turn may
 * take more than there are, so that every turn comes forward.
 */
static inline bool skv_units_take(uint32_t *units, uint32_t n)
{
	bool any = *units > 0;

	*units -= n < *units ? n : *units;
	return any;
}

#endif
