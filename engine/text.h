/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text.h - a calibration text: token ids, and which of its rows count. */
#ifndef ENG_TEXT_H
#define ENG_TEXT_H

#include <stdint.h>

struct eng_text {
	const int32_t *ids;
	uint32_t n;
	uint32_t from, rows; /* the rows that count: `rows` of the rows from `from` on; 0: all of those */
};

/* Returns how many rows count. */
static inline uint32_t eng_text_rows(const struct eng_text *t)
{
	uint32_t all = t->n - t->from;

	return t->rows && t->rows < all ? t->rows : all;
}

#endif
