/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/chart.h - draws charts of a table, and matrices, as SVG.
 *
 * A chart has one panel for each figure, one below the other, with the same x values and series. A chart has bars if
 * x is text, and lines if x is a number. The colours are those of Okabe and Ito, which colour-blind people can tell
 * apart. There are eight; the next eight series use them again, dashed and hollow.
 */
#ifndef ENG_CHART_H
#define ENG_CHART_H

#include <stdbool.h>
#include "engine/error.h"

#define CHART_SERIES_MAX 16
#define CHART_PANELS_MAX 8

struct panel {
	const char *label;
	const double *value;   /* [n_series][n_x]; NAN: no value */
	const double *whisker; /* the same: upper ends of the whiskers; NULL: no whiskers */
};

struct chart {
	const char *title;
	bool log; /* logarithmic value axis; all values must be above 0 */
	int n_x, n_series, n_panels;
	const char **x;     /* [n_x], as text */
	double *number;     /* [n_x], ascending; NULL: x is text */
	const char *x_label;
	const char **series; /* [n_series]; "" for a single series that needs no name */
	struct panel panel[CHART_PANELS_MAX];
};

/* Draws it into a file. Returns a negative errno. */
int chart_draw(const struct chart *, const char *path, struct eng_error *err);

/*
 * A matrix of shares from 0 (white) to 1 (dark), drawn as squares. Rows go down, columns to the right, both numbered
 * from 0.
 */
struct matrix {
	const char *title;
	const char *row_label, *column_label;
	int n;               /* number of rows, and of columns */
	const double *value; /* [row][column]; NAN: no value */
};

int chart_draw_matrix(const struct matrix *, const char *path, struct eng_error *err);

#endif
