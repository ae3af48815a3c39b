/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chart.h - draws charts of a table's columns, and matrices, as SVG files.
 *
 * A chart has one panel for each figure (column). The panels are one below the other and have the same x values and
 * series. A chart has bars if x is text, and lines if x is a number. The colours are the eight of Okabe and Ito, which
 * colour-blind people can distinguish. Styles 0 to 7 are these colours; styles 8 to 15 are the same colours with dashed
 * lines and hollow bars. Lines have their names at their ends, bars have a legend.
 */
#ifndef ENG_CHART_H
#define ENG_CHART_H

#include <stdbool.h>
#include "engine/error.h"

#define CHART_SERIES_MAX 16
#define CHART_PANELS_MAX 8

struct panel {
	const char *label;
	const double *value;   /* [n_series][n_x]: heights of bars or points of lines; NAN: no value */
	const double *whisker; /* [n_series][n_x]: upper ends of whiskers; NULL: no whiskers */
};

struct chart {
	const char *title;
	bool log; /* the value axis is logarithmic; 0 is drawn at the axis' lower end */
	int n_x, n_series, n_panels;
	const char **x;     /* [n_x]: x values as text */
	double *number;     /* [n_x]: x values as numbers, ascending; NULL: x is text */
	const char *x_label;
	const char **series; /* [n_series]: names of the series; "" for a single series, which needs no name */
	const int *style;    /* [n_series]: styles of the series; NULL: their indices */
	struct panel panel[CHART_PANELS_MAX];
};

/* Draws a chart into the file `path`. Returns 0 or a negative errno: -EINVAL if there are more than 16 series. */
int chart_draw(const struct chart *, const char *path, struct eng_error *err);

/*
 * A matrix of numbers from 0 (white) to 1 (dark), each drawn as a square. Row 0 is at the top, and column 0 at the
 * left.
 */
struct matrix {
	const char *title;
	const char *row_label, *column_label;
	int n;               /* number of rows, and of columns */
	const double *value; /* [row][column]; NAN: no value */
};

int chart_draw_matrix(const struct matrix *, const char *path, struct eng_error *err);

#endif
