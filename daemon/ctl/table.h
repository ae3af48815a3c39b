/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ctl/table.h - text in aligned columns, and numbers in readable form. */
#ifndef SKV_CTL_TABLE_H
#define SKV_CTL_TABLE_H

#include <stdint.h>
#include <stdio.h>

#define SKV_TABLE_CELL 96u /* bytes of a cell, NUL included; longer text is truncated */

struct skv_table {
	const char *const *heads; /* one per column; a leading '-' aligns the column to the left */
	unsigned n_cols;
	char (*cells)[SKV_TABLE_CELL]; /* [n_rows * n_cols] */
	size_t n_cells, cap;
};

/* Adds the next cell, row by row. Exits if memory is lacking. */
void skv_table_cell(struct skv_table *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void skv_table_print(const struct skv_table *, FILE *to);
void skv_table_deinit(struct skv_table *);

/* "64.0 MiB", in one of a few static buffers. */
const char *skv_human_bytes(uint64_t bytes);
/* "3h 04m" */
const char *skv_human_time(double seconds);
/* "12.5 %", "-" for a share of nothing */
const char *skv_human_share(double part, double whole);

#endif
