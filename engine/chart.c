/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/chart.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sizes in pixels. The font is monospaced, so that the width of a text is known without font metrics. */
#define MARGIN 24
#define FONT 13
#define CHAR_WIDTH (FONT * 0.602)
#define LINE 20        /* height of a line of the legend */
#define LABEL_LINE 15  /* least distance between the labels of two lines */
#define LABEL_GAP 24   /* from the end of the plot to the labels of lines */
#define BAR 15
#define BAR_GAP 2
#define GROUP_GAP 14
#define PLOT_WIDTH 620
#define LINES_HEIGHT 300
#define MARKS 24 /* most points of a line that get a mark */
#define AXIS_HEIGHT 44 /* room for tick labels and the label of the x axis */
#define VALUE_WIDTH 76 /* room for the number beside the longest bar */
#define INK "#222222"
#define FAINT "#6b6b6b"
#define GRID "#e2e2e2"

static const char *const colours[] = {
	"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999999",
};
#define N_COLOURS (int)(sizeof(colours) / sizeof(*colours))

static int style_of(const struct chart *c, int series)
{
	return c->style ? c->style[series] : series;
}

static const char *colour_of(const struct chart *c, int series)
{
	return colours[style_of(c, series) % N_COLOURS];
}

/*
 * Ends the SVG element of a bar, a mark or a square of the legend: it is filled with the colour of the series, or
 * outlined in this colour for styles 8 to 15.
 */
static void write_fill(const struct chart *c, int series, FILE *f)
{
	fprintf(f, style_of(c, series) < N_COLOURS ? " fill=\"%s\"/>\n" : " fill=\"#ffffff\" stroke=\"%s\"/>\n",
	        colour_of(c, series));
}

enum anchor { START, MIDDLE, END };

/* ---- elements -------------------------------------------------------------------------------- */

static int columns_of(const char *text)
{
	int n = 0;
	for (; *text; text++)
		n += (*text & 0xc0) != 0x80; /* skip continuation bytes of UTF-8 */
	return n;
}

static void write_text(FILE *f, double x, double y, enum anchor anchor, const char *colour, const char *style,
                       const char *text)
{
	static const char *const anchors[] = {"start", "middle", "end"};
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\"%s>", x, y, anchors[anchor], colour,
	        style);
	for (; *text; text++)
		switch (*text) {
		case '&':
			fputs("&amp;", f);
			break;
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		default:
			fputc(*text, f);
		}
	fputs("</text>\n", f);
}

static void write_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour, double width)
{
	fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\"/>\n",
	        x1, y1, x2, y2, colour, width);
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* Maps values to pixels: the value `low` to pixel `at`, the value `high` to pixel `at` + `length`. */
struct axis {
	double low, high, step; /* base-10 logarithms if `log` */
	bool log;
	double at, length;
};

static double coordinate(const struct axis *a, double x)
{
	if (a->log)
		x = x > 0 ? log10(x) : a->low;
	return a->at + a->length * (x - a->low) / (a->high - a->low);
}

/* Returns the distance of ticks: 1, 2 or 5 times a power of 10, so that `span` has about `ticks` steps. */
static double step_of(double span, int ticks)
{
	double rough = span / ticks, power = pow(10, floor(log10(rough))), x = rough / power;
	return power * (x <= 1 ? 1 : x <= 2 ? 2 : x <= 5 ? 5 : 10);
}

static struct axis axis_of(const struct chart *c, const struct panel *p, double at, double length)
{
	struct axis a = {.log = c->log, .at = at, .length = length};
	double least = INFINITY, most = 0;
	for (int i = 0; i < c->n_series * c->n_x; i++) {
		double top = p->whisker && p->whisker[i] > p->value[i] ? p->whisker[i] : p->value[i];
		if (isnan(p->value[i]))
			continue;
		if (p->value[i] > 0 && p->value[i] < least)
			least = p->value[i];
		most = top > most ? top : most;
	}
	if (!(most > 0))
		least = most = 1;
	if (a.log) {
		a.low = floor(log10(least) - 0.1); /* keeps the shortest bar visible */
		a.high = ceil(log10(most));
		a.step = 1;
	} else {
		a.step = step_of(most, 6);
		a.high = ceil(most / a.step - 1e-9) * a.step;
	}
	return a;
}

static const char *tick_text(const struct axis *a, double x, char text[32])
{
	snprintf(text, 32, "%.6g", a->log ? pow(10, x) : fabs(x) < a->step / 2 ? 0 : x);
	return text;
}

/* Writes a number with three significant digits, because the figures are not more precise. */
static const char *value_text(double x, char text[32])
{
	snprintf(text, 32, x >= 100 ? "%.0f" : "%.3g", x);
	return text;
}

/* ---- bars ------------------------------------------------------------------------------------ */

/* Returns the height of the bars of one x value; series without a value take no room. */
static double group_height(const struct chart *c, const struct panel *p, int i)
{
	int n = 0;
	for (int s = 0; s < c->n_series; s++)
		n += !isnan(p->value[s * c->n_x + i]);
	return (n ? n : 1) * (BAR + BAR_GAP) + GROUP_GAP;
}

static double groups_height(const struct chart *c, const struct panel *p)
{
	double height = 0;
	for (int i = 0; i < c->n_x; i++)
		height += group_height(c, p, i);
	return height;
}

static double label_width(const struct chart *c)
{
	int longest = 0;
	for (int i = 0; i < c->n_x; i++)
		longest = columns_of(c->x[i]) > longest ? columns_of(c->x[i]) : longest;
	return longest * CHAR_WIDTH + 10;
}

static void draw_bar(const struct chart *c, const struct panel *p, const struct axis *a, int series, int i,
                     double y, FILE *f)
{
	double value = p->value[series * c->n_x + i], end = coordinate(a, value), to = end;
	char text[32];
	fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"", a->at, y, end - a->at, BAR);
	write_fill(c, series, f);
	if (p->whisker && p->whisker[series * c->n_x + i] > value) {
		to = coordinate(a, p->whisker[series * c->n_x + i]);
		write_line(f, end, y + BAR / 2.0, to, y + BAR / 2.0, INK, 1);
		write_line(f, to, y + 3, to, y + BAR - 3, INK, 1);
	}
	write_text(f, to + 5, y + BAR - 3, START, INK, " font-size=\"11\"", value_text(value, text));
}

/* Draws a panel of bars. Returns the y coordinate of the panel's end. */
static double draw_bars(const struct chart *c, const struct panel *p, double y, FILE *f)
{
	double left = MARGIN + label_width(c), height = groups_height(c, p), top = y + GROUP_GAP / 2.0;
	struct axis a = axis_of(c, p, left, PLOT_WIDTH);
	char text[32];
	for (double x = a.low; x < a.high + a.step / 2; x += a.step) {
		double at = a.at + a.length * (x - a.low) / (a.high - a.low);
		write_line(f, at, y, at, y + height, GRID, 1);
		write_text(f, at, y + height + 16, MIDDLE, FAINT, "", tick_text(&a, x, text));
	}
	for (int i = 0; i < c->n_x; i++) {
		double group = group_height(c, p, i), bar = top;
		write_text(f, left - 8, top + (group - GROUP_GAP) / 2 + 4, END, INK, "", c->x[i]);
		for (int s = 0; s < c->n_series; s++)
			if (!isnan(p->value[s * c->n_x + i])) {
				draw_bar(c, p, &a, s, i, bar, f);
				bar += BAR + BAR_GAP;
			}
		top += group;
	}
	write_line(f, left, y, left, y + height, INK, 1);
	write_text(f, left, y - 8, START, INK, "", p->label);
	return y + height + AXIS_HEIGHT;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/*
 * Returns the x axis. The axis is logarithmic if the numbers span a factor of 8 or more, such as 1, 8, 64, and are not
 * evenly spaced.
 */
static struct axis x_axis(const struct chart *c, double at, double length)
{
	double first = c->number[0], last = c->number[c->n_x - 1];
	bool even = c->n_x > 3 && c->number[1] - first == last - c->number[c->n_x - 2];
	struct axis a = {.log = first > 0 && last / first >= 8 && !even, .at = at, .length = length};
	a.low = a.log ? log10(first) : first;
	a.high = a.log ? log10(last) : last;
	if (a.high == a.low)
		a.high++;
	return a;
}

static void draw_series(const struct chart *c, const struct panel *p, const struct axis *x,
                        const struct axis *y, int series, FILE *f)
{
	const double *value = p->value + series * c->n_x;
	const char *join = "M";
	int n = 0;
	fputs("<path d=\"", f);
	for (int i = 0; i < c->n_x; i++)
		if (!isnan(value[i])) {
			fprintf(f, "%s%.1f %.1f", join, coordinate(x, c->number[i]), coordinate(y, value[i]));
			join = " L";
			n++;
		}
	fprintf(f, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", colour_of(c, series),
	        style_of(c, series) >= N_COLOURS ? " stroke-dasharray=\"6 4\"" : "");
	for (int i = 0; i < c->n_x; i++) {
		if (isnan(value[i]))
			continue;
		double at = coordinate(x, c->number[i]);
		if (n <= MARKS) {
			fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"", at, coordinate(y, value[i]));
			write_fill(c, series, f);
		}
		if (p->whisker && p->whisker[series * c->n_x + i] > value[i])
			write_line(f, at, coordinate(y, value[i]), at, coordinate(y, p->whisker[series * c->n_x + i]),
			           colour_of(c, series), 1);
	}
}

/* Returns whether the labels of the x values would overlap below the axis. */
static bool crowded(const struct chart *c, const struct axis *x)
{
	for (int i = 1; i < c->n_x; i++)
		if (coordinate(x, c->number[i]) - coordinate(x, c->number[i - 1]) <
		    (columns_of(c->x[i]) + columns_of(c->x[i - 1]) + 1) / 2.0 * CHAR_WIDTH)
			return true;
	return false;
}

/* Draws ticks at round numbers: multiples of a step; on a logarithmic axis, 1, 2 and 5 times powers of 10. */
static void draw_round(const struct axis *x, double bottom, FILE *f)
{
	static const double in_decade[] = {1, 2, 5};
	const double step = x->log ? 1 : step_of(x->high - x->low, 8);
	char text[32];
	for (double t = (x->log ? floor(x->low) : ceil(x->low / step) * step); t <= x->high + step * 1e-9; t += step)
		for (int i = 0; i < (x->log ? 3 : 1); i++) {
			double value = x->log ? in_decade[i] * pow(10, t) : t, at = coordinate(x, value);
			if (at < x->at - 0.5 || at > x->at + x->length + 0.5)
				continue;
			write_line(f, at, bottom, at, bottom + 5, INK, 1);
			snprintf(text, sizeof(text), "%.6g", value);
			write_text(f, at, bottom + 18, MIDDLE, FAINT, "", text);
		}
}

/* Do lines have labels of their own? A single series may have no name. */
static bool has_labels(const struct chart *c)
{
	return c->number && *c->series[0];
}

static double labels_width(const struct chart *c)
{
	int longest = 0;
	for (int s = 0; s < c->n_series; s++)
		longest = columns_of(c->series[s]) > longest ? columns_of(c->series[s]) : longest;
	return LABEL_GAP + longest * CHAR_WIDTH;
}

/* Returns the x value at which a series ends, or -1 if it has no value. */
static int last_of(const struct chart *c, const struct panel *p, int series)
{
	int i = c->n_x - 1;
	while (i >= 0 && isnan(p->value[series * c->n_x + i]))
		i--;
	return i;
}

/*
 * Writes the name of each series to the right of the plot, at the height of the line's end, with a thin line from
 * there. The labels have the order of the ends. Labels that overlap push each other up and down.
 */
static void draw_labels(const struct chart *c, const struct panel *p, const struct axis *x, const struct axis *y,
                        FILE *f)
{
	int order[CHART_SERIES_MAX], n = 0;
	double end[CHART_SERIES_MAX], at[CHART_SERIES_MAX], right = x->at + x->length + 20;
	for (int s = 0; s < c->n_series; s++) {
		int last = last_of(c, p, s), k = n;
		if (last < 0)
			continue;
		end[s] = at[s] = coordinate(y, p->value[s * c->n_x + last]);
		for (n++; k > 0 && end[order[k - 1]] > end[s]; k--)
			order[k] = order[k - 1];
		order[k] = s;
	}
	for (int pass = 0; pass < 100; pass++)
		for (int k = 1; k < n; k++) {
			double lacks = LABEL_LINE - (at[order[k]] - at[order[k - 1]]);
			at[order[k]] += lacks > 0 ? lacks / 2 : 0;
			at[order[k - 1]] -= lacks > 0 ? lacks / 2 : 0;
		}
	for (int k = 0; k < n; k++) {
		int s = order[k];
		write_line(f, coordinate(x, c->number[last_of(c, p, s)]) + 5, end[s], right + LABEL_GAP - 5, at[s],
		           colour_of(c, s), 0.5);
		write_text(f, right + LABEL_GAP, at[s] + 4, START, colour_of(c, s), "", c->series[s]);
	}
}

static double draw_lines(const struct chart *c, const struct panel *p, double y, FILE *f)
{
	double left = MARGIN + 80, bottom = y + LINES_HEIGHT;
	struct axis v = axis_of(c, p, bottom, -LINES_HEIGHT), x = x_axis(c, left + 20, PLOT_WIDTH - 40);
	const bool round = crowded(c, &x);
	char text[32];
	write_text(f, left, y - 8, START, INK, "", p->label);
	for (double t = v.low; t < v.high + v.step / 2; t += v.step) {
		double at = v.at + v.length * (t - v.low) / (v.high - v.low);
		write_line(f, left, at, left + PLOT_WIDTH, at, GRID, 1);
		write_text(f, left - 8, at + 4, END, FAINT, "", tick_text(&v, t, text));
	}
	if (round)
		draw_round(&x, bottom, f);
	for (int i = 0; i < c->n_x && !round; i++) {
		double at = coordinate(&x, c->number[i]);
		write_line(f, at, bottom, at, bottom + 5, INK, 1);
		write_text(f, at, bottom + 18, MIDDLE, FAINT, "", c->x[i]);
	}
	write_line(f, left, bottom, left + PLOT_WIDTH, bottom, INK, 1);
	if (has_labels(c))
		draw_labels(c, p, &x, &v, f);
	for (int s = 0; s < c->n_series; s++)
		draw_series(c, p, &x, &v, s, f);
	write_text(f, left + PLOT_WIDTH / 2.0, bottom + 36, MIDDLE, INK, "", c->x_label);
	return bottom + AXIS_HEIGHT;
}

/* ---- matrices -------------------------------------------------------------------------------- */

#define CELL 24

/* Draws one number of a matrix; its colour is between white (0) and the first series' colour (1). */
static void draw_cell(double x, double y, double value, FILE *f)
{
	double v = value < 0 ? 0 : value > 1 ? 1 : value;
	char text[32];
	fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"/>\n", x, y, CELL, CELL,
	        (int)(255 * (1 - v)), (int)(255 - v * (255 - 0x72)), (int)(255 - v * (255 - 0xb2)));
	snprintf(text, sizeof(text), "%.0f", 100 * v);
	write_text(f, x + CELL / 2.0, y + CELL / 2.0 + 4, MIDDLE, v > 0.6 ? "#ffffff" : INK, " font-size=\"10\"", text);
}

static void begin_svg(double width, double height, FILE *f)
{
	fprintf(f,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\""
	        " font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"%d\">\n",
	        width, height, width, height, FONT);
	fprintf(f, "<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n", width, height);
}

static void draw_matrix(const void *matrix, FILE *f)
{
	const struct matrix *m = matrix;
	double left = MARGIN + 80, top = MARGIN + 66, side = m->n * CELL;
	double title = 2 * MARGIN + columns_of(m->title) * CHAR_WIDTH * 15 / FONT, width = left + side + MARGIN;
	char text[32];
	begin_svg(width > title ? width : title, top + side + MARGIN, f);
	write_text(f, MARGIN, MARGIN + 16, START, INK, " font-size=\"15\" font-weight=\"bold\"", m->title);
	write_text(f, left - 30, top - 8, END, INK, "", m->row_label);
	write_text(f, left + side / 2, top - 26, MIDDLE, INK, "", m->column_label);
	for (int i = 0; i < m->n; i++) {
		snprintf(text, sizeof(text), "%d", i);
		write_text(f, left - 8, top + i * CELL + CELL / 2.0 + 4, END, FAINT, "", text);
		write_text(f, left + i * CELL + CELL / 2.0, top - 8, MIDDLE, FAINT, "", text);
		for (int j = 0; j < m->n; j++)
			if (!isnan(m->value[i * m->n + j]))
				draw_cell(left + j * CELL, top + i * CELL, m->value[i * m->n + j], f);
	}
	fputs("</svg>\n", f);
}

/* ---- whole charts ---------------------------------------------------------------------------- */

/*
 * Draws the legend of a chart of bars: the name of each series beside its colour, in as many lines as needed. Returns
 * the y coordinate of the legend's end. If f is NULL, draws nothing and only computes this coordinate.
 */
static double legend(const struct chart *c, double width, double y, FILE *f)
{
	double x = MARGIN;
	if (c->number || (c->n_series == 1 && !*c->series[0]))
		return y;
	for (int s = 0; s < c->n_series; s++) {
		double wide = columns_of(c->series[s]) * CHAR_WIDTH + 40;
		if (x > MARGIN && x + wide > width - MARGIN) {
			x = MARGIN;
			y += LINE;
		}
		if (f) {
			fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\"", x, y);
			write_fill(c, s, f);
			write_text(f, x + 20, y + 12, START, INK, "", *c->series[s] ? c->series[s] : "-");
		}
		x += wide;
	}
	return y + LINE + 6;
}

static void draw_chart(const void *chart, FILE *f)
{
	const struct chart *c = chart;
	double left = c->number ? 80 : label_width(c), right = has_labels(c) ? labels_width(c) : VALUE_WIDTH;
	double width = 2 * MARGIN + left + PLOT_WIDTH + right;
	double title = 2 * MARGIN + columns_of(c->title) * CHAR_WIDTH * 15 / FONT, y = MARGIN + 16, height;
	if (title > width)
		width = title;
	height = legend(c, width, y + 16, NULL) + MARGIN / 2.0;
	for (int i = 0; i < c->n_panels; i++)
		height += AXIS_HEIGHT + 28 + (c->number ? LINES_HEIGHT : groups_height(c, &c->panel[i]));

	begin_svg(width, height, f);
	write_text(f, MARGIN, y, START, INK, " font-size=\"15\" font-weight=\"bold\"", c->title);
	y = legend(c, width, y + 16, f);
	for (int i = 0; i < c->n_panels; i++)
		y = 8 + (c->number ? draw_lines(c, &c->panel[i], y + 20, f) : draw_bars(c, &c->panel[i], y + 20, f));
	fputs("</svg>\n", f);
}

/* ---- files ----------------------------------------------------------------------------------- */

static int draw_file(const char *path, void (*draw)(const void *, FILE *), const void *what, struct eng_error *err)
{
	FILE *f = fopen(path, "we");
	bool bad;

	if (!f)
		return eng_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	draw(what, f);
	bad = ferror(f);
	return fclose(f) || bad ? eng_fail(err, -EIO, "%.300s: could not be written", path) : 0;
}

int chart_draw(const struct chart *c, const char *path, struct eng_error *err)
{
	if (c->n_series > CHART_SERIES_MAX)
		return eng_fail(err, -EINVAL, "%.300s: %d series, expected at most %d", path, c->n_series, CHART_SERIES_MAX);
	return draw_file(path, draw_chart, c, err);
}

int chart_draw_matrix(const struct matrix *m, const char *path, struct eng_error *err)
{
	return draw_file(path, draw_matrix, m, err);
}
