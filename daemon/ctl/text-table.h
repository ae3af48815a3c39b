/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ctl/text-table.h - prints tables with aligned columns, and numbers in readable form. */
#ifndef SKV_CTL_TEXT_TABLE_H
#define SKV_CTL_TEXT_TABLE_H

#include <stdint.h>
#include <stdio.h>

#define SKV_TABLE_CELL 96u /* bytes of a cell, NUL included; longer text is truncated */

struct skv_table {
	const char *const *heads; /* head of each column; a leading '-' aligns the column to the left */
	unsigned n_cols;
	char (*cells)[SKV_TABLE_CELL]; /* text of the cells, row by row, [n_rows * n_cols] */
	size_t n_cells, cap;
};

/* Adds the next cell to a table; cells are added row by row. Exits the program if there is no memory. */
void skv_table_cell(struct skv_table *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void skv_table_print(const struct skv_table *, FILE *to);
void skv_table_deinit(struct skv_table *);

/* Returns a size such as "64.0 MiB", in one of a few static buffers. */
const char *skv_human_bytes(uint64_t bytes);
/* Returns a duration such as "3h 04m". */
const char *skv_human_time(double seconds);
/* Returns a percentage such as "12.5 %", or "-" if `whole` is 0. */
const char *skv_human_share(double part, double whole);

#endif
