/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chart.h - draws a table's figures as SVG, and matrices.
 *
 * A chart has a panel for each figure, one below the other, over the same x values and series. Where x is
 * text the figures are bars, where it is a number they are lines. Colours are those of Okabe and Ito, which
 * people who are colour-blind tell apart. There are eight; the next eight series have them again, dashed and hollow.
 */
#ifndef ENG_CHART_H
#define ENG_CHART_H

#include <stdbool.h>
#include <stdio.h>

#define CHART_SERIES_MAX 16
#define CHART_PANELS_MAX 8

struct panel {
	const char *label;
	double *value;   /* [n_series][n_x]; NAN: there is none */
	double *whisker; /* the same, up to where a thin line goes; NULL: no whiskers */
};

struct chart {
	const char *title;
	bool log; /* the axis of the figures; they are above 0 then */
	int n_x, n_series, n_panels;
	const char **x;     /* [n_x], as text */
	double *number;     /* [n_x], ascending; NULL: x is text */
	const char *x_label;
	const char **series; /* [n_series]; "" when there is but one and it needs no name */
	struct panel panel[CHART_PANELS_MAX];
};

/* Errors of writing are left in the stream. */
void chart_draw(const struct chart *, FILE *);

/* Shares between 0 (white) and 1 (dark), as squares; rows go down, columns to the right, both numbered from 0. */
struct matrix {
	const char *title;
	const char *row_label, *column_label;
	int n;               /* rows, and columns */
	const double *value; /* [row][column]; NAN: there is none */
};

void chart_draw_matrix(const struct matrix *, FILE *);

#endif
