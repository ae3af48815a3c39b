/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/plot.c - sparsekv-bench plot: draws charts of the CSV files that the other subcommands write.
 *
 * The code needs to know nothing about the subcommands. A column whose figures have a decimal point is a measurement;
 * all other columns describe what was measured. Without options, the chart shows the first measured column over the
 * first column. The chart has one series for each combination of values in the other describing columns, as far as they
 * differ between rows.
 */
#include "bench/bench.h"
#include "engine/chart.h"
#include <errno.h>
#include <unistd.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX 32
#define ROWS_MAX 4096

struct options {
	const char *y, *x, *by, *styles, *whisker, *where, *title, *output;
	bool log;
};

struct table {
	char *name[COLUMNS_MAX];
	char *cell[ROWS_MAX][COLUMNS_MAX]; /* [row][column]: text of the cell; "": empty */
	int columns, rows;
};

static void plot_fail(const char *what, const char *name, const char *why)
{
	fprintf(stderr, "sparsekv-bench: plot: %s %s: %s\n", what, name, why);
	exit(1);
}

/* Memory to be freed together, after drawing. */
static void **kept;
static size_t n_kept;

/* Registers p to be freed by free_kept(). */
static void *keep(void *p)
{
	void **more = realloc(kept, (n_kept + 1) * sizeof *kept);
	if (!p || !more)
		plot_fail("no memory", "", "");
	kept = more;
	return kept[n_kept++] = p;
}

static void free_kept(void)
{
	while (n_kept)
		free(kept[--n_kept]);
	free(kept);
}

static void *get(size_t n, size_t size)
{
	return keep(calloc(n ? n : 1, size));
}

/* ---- the table ------------------------------------------------------------------------------- */

/*
 * Splits a line into cells, which point into the line. Only cells with commas are in quotes, and no cell contains
 * quotes.
 */
static int split(char *line, char *ret[COLUMNS_MAX], const char *path)
{
	int n = 0;
	line[strcspn(line, "\r\n")] = '\0';
	for (char *p = line; p; n++) {
		bool quoted = *p == '"';
		if (n == COLUMNS_MAX)
			plot_fail("file", path, "has too many columns");
		ret[n] = p += quoted;
		if (quoted && (p = strchr(p, '"')))
			*p++ = '\0';
		p = p ? strchr(p, ',') : NULL;
		if (p)
			*p++ = '\0';
	}
	return n;
}

static int column(const struct table *t, const char *name, size_t len)
{
	for (int i = 0; i < t->columns; i++)
		if (strlen(t->name[i]) == len && !strncmp(t->name[i], name, len))
			return i;
	return -1;
}

static int need_column(const struct table *t, const char *name, size_t len)
{
	char text[64];
	int i = column(t, name, len);
	if (i >= 0)
		return i;
	snprintf(text, sizeof text, "%.*s", (int)len, name);
	plot_fail("column", text, "no file has it");
	return -1;
}

/*
 * Reads a CSV file and appends its rows to the table. Lines that begin with # are comments. Columns of several files
 * are matched by name.
 */
static void read_table(struct table *t, const char *path)
{
	FILE *f = fopen(path, "r");
	char *cells[COLUMNS_MAX], *line = NULL;
	int at[COLUMNS_MAX], columns = 0, n;
	size_t room = 0;

	if (!f)
		plot_fail("file", path, strerror(errno));
	while (getline(&line, &room, f) > 0) {
		if (*line == '#' || *line == '\n')
			continue;
		n = split(keep(line), cells, path);
		line = NULL; /* makes getline() allocate a new buffer */
		if (!columns) {
			columns = n;
			for (int i = 0; i < n; i++) {
				at[i] = column(t, cells[i], strlen(cells[i]));
				if (at[i] < 0 && t->columns == COLUMNS_MAX)
					plot_fail("file", path, "has too many columns");
				if (at[i] < 0)
					t->name[at[i] = t->columns++] = cells[i];
			}
			continue;
		}
		if (n != columns)
			plot_fail("file", path, "has rows of different lengths");
		if (t->rows == ROWS_MAX)
			plot_fail("file", path, "has too many rows");
		for (int i = 0; i < n; i++)
			t->cell[t->rows][at[i]] = cells[i];
		t->rows++;
	}
	free(line);
	fclose(f);
}

static void fill_empty(struct table *t)
{
	static char empty[1];
	for (int r = 0; r < t->rows; r++)
		for (int i = 0; i < t->columns; i++)
			t->cell[r][i] = t->cell[r][i] ? t->cell[r][i] : empty;
}

/* Returns the number in a cell, or NAN if the cell is not a number. */
static double number(const char *cell)
{
	char *end;
	double x = strtod(cell, &end);
	return *cell && !*end ? x : NAN;
}

static bool measured(const struct table *t, int col)
{
	bool any = false;
	for (int r = 0; r < t->rows; r++) {
		if (*t->cell[r][col] && (isnan(number(t->cell[r][col])) || !strchr(t->cell[r][col], '.')))
			return false;
		any |= *t->cell[r][col] != '\0';
	}
	return any;
}

static bool varies(const struct table *t, int col)
{
	for (int r = 1; r < t->rows; r++)
		if (strcmp(t->cell[r][col], t->cell[0][col]))
			return true;
	return false;
}

/* Removes all rows but those that match `where`, such as "column=value,column=value". */
static void filter(struct table *t, const char *where)
{
	for (const char *p = where; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t name = strcspn(p, "=,"), value;
		int col, left = 0;
		if (p[name] != '=')
			plot_fail("--where", where, "expected column=value, several separated by commas");
		col = need_column(t, p, name);
		value = strcspn(p + name + 1, ",");
		for (int r = 0; r < t->rows; r++)
			if (strlen(t->cell[r][col]) == value && !strncmp(t->cell[r][col], p + name + 1, value))
				memmove(t->cell[left++], t->cell[r], sizeof t->cell[r]);
		t->rows = left;
	}
}

/* ---- from the table to a chart --------------------------------------------------------------- */

/* Returns the label of a column: "GB/s" for "gb_per_s", "median, µs" for "median_us", "of dense" for "of_dense". */
static const char *label_of(const char *name)
{
	static const char *const spelled[][2] = {
		{"gb_per_s", "GB/s"}, {"gflop_per_s", "GFLOP/s"}, {"steps_per_s", "steps/s"},
	};
	char *to = get(strlen(name) + 8, 1);
	size_t n = strlen(name);
	for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
		if (!strcmp(name, spelled[i][0]))
			return strcpy(to, spelled[i][1]);
	if (n > 3 && !strcmp(name + n - 3, "_us"))
		sprintf(to, "%.*s, µs", (int)n - 3, name);
	else if (n > 3 && !strcmp(name + n - 3, "_ms"))
		sprintf(to, "%.*s, ms", (int)n - 3, name);
	else
		strcpy(to, name);
	for (char *p = to; *p; p++)
		*p = *p == '_' ? ' ' : *p;
	return to;
}

/* Returns the index of a text in the list, and appends it if it is new. Returns -1 if the list is full. */
static int index_of(const char **list, int *n, int most, const char *text)
{
	for (int i = 0; i < *n; i++)
		if (!strcmp(list[i], text))
			return i;
	if (*n == most)
		return -1;
	list[*n] = text;
	return (*n)++;
}

/* Returns, as a bit set, the columns whose values distinguish series. */
static uint32_t series_columns(const struct table *t, const struct options *o, int x)
{
	uint32_t set = 0;
	if (!o->by) {
		for (int i = 0; i < t->columns; i++)
			set |= (uint32_t)(i != x && varies(t, i) && !measured(t, i)) << i;
		return set;
	}
	for (const char *p = o->by; *p; p += strcspn(p, ","), p += *p == ',')
		set |= 1u << need_column(t, p, strcspn(p, ","));
	return set;
}

/* Returns the name of a row's series, such as "delta, batch 64". A number is preceded by the name of its column. */
static const char *series_name(const struct table *t, int row, uint32_t set)
{
	char *name = NULL;
	size_t bytes;
	FILE *f = open_memstream(&name, &bytes);
	const char *between = "";
	for (int i = 0; f && i < t->columns; i++) {
		const char *cell = t->cell[row][i];
		if (!(set >> i & 1) || !*cell)
			continue;
		fputs(between, f);
		if (!isnan(number(cell)))
			fprintf(f, "%s ", t->name[i]);
		fputs(cell, f);
		between = ", ";
	}
	if (!f || fclose(f))
		plot_fail("no memory", "", "");
	return keep(name);
}

static int compare_numbers(const void *a, const void *b)
{
	double x = number(*(const char *const *)a), y = number(*(const char *const *)b);
	return (x > y) - (x < y);
}

/*
 * Collects the values of the x axis: numbers in ascending order, texts in the order of the table. Rows without such a
 * value are skipped.
 */
static void collect_x(struct chart *c, const struct table *t, int x)
{
	bool numbers = true;
	c->x = get((size_t)t->rows, sizeof *c->x);
	for (int r = 0; r < t->rows; r++)
		if (*t->cell[r][x]) {
			index_of(c->x, &c->n_x, t->rows, t->cell[r][x]);
			numbers &= !isnan(number(t->cell[r][x]));
		}
	if (!numbers || c->n_x < 2)
		return;
	qsort(c->x, (size_t)c->n_x, sizeof *c->x, compare_numbers);
	c->number = get((size_t)c->n_x, sizeof *c->number);
	for (int i = 0; i < c->n_x; i++)
		c->number[i] = number(c->x[i]);
}

#define CHOOSE ": choose rows with --where, columns with --by"

/* Returns the figures of column y as [series][x]; NAN where there is none. */
static double *figures(struct chart *c, const struct table *t, int x, uint32_t set, int y)
{
	double *value = get((size_t)c->n_x * CHART_SERIES_MAX, sizeof *value);
	for (int i = 0; i < c->n_x * CHART_SERIES_MAX; i++)
		value[i] = NAN;
	for (int r = 0; r < t->rows; r++) {
		double figure = number(t->cell[r][y]), *to;
		const char *name = series_name(t, r, set);
		int s, i = *t->cell[r][x] ? index_of(c->x, &c->n_x, c->n_x, t->cell[r][x]) : -1;
		if (isnan(figure) || i < 0)
			continue;
		s = index_of(c->series, &c->n_series, CHART_SERIES_MAX, name);
		if (s < 0)
			plot_fail("series", name, "one more than can be told apart" CHOOSE);
		to = &value[s * c->n_x + i];
		if (!isnan(*to) && *to != figure)
			plot_fail("series", name, "has several figures in one place" CHOOSE);
		*to = figure;
	}
	return value;
}

/* Gives each series the style that its name's place in the list has, so that charts of other series have the same. */
static void set_styles(struct chart *c, const char *names)
{
	int *style = get(CHART_SERIES_MAX, sizeof *style);
	for (int s = 0; s < c->n_series; s++) {
		const size_t len = strlen(c->series[s]);
		const char *p = names;
		while (*p && !(strcspn(p, ",") == len && !strncmp(p, c->series[s], len))) {
			p += strcspn(p, ",");
			p += *p == ',';
			style[s]++;
		}
		if (!*p || style[s] >= CHART_SERIES_MAX)
			plot_fail("--styles", c->series[s], "is not among its first 16 names");
	}
	c->style = style;
}

static int first_measured(const struct table *t)
{
	for (int i = 0; i < t->columns; i++)
		if (measured(t, i))
			return i;
	plot_fail("figures", "", "no column has figures with a decimal point: choose one with --y");
	return -1;
}

/* Checks that no figure is below 0, as a logarithmic axis requires. */
static void check_log(const struct chart *c)
{
	for (int p = 0; p < c->n_panels; p++)
		for (int i = 0; i < c->n_x * c->n_series; i++)
			if (c->panel[p].value[i] < 0)
				plot_fail("--log", c->panel[p].label, "has a figure below 0");
}

static void add_whiskers(struct chart *c, struct panel *p, const struct table *t, int x, uint32_t set,
                         const char *name)
{
	char *label;
	p->whisker = figures(c, t, x, set, need_column(t, name, strlen(name)));
	if (asprintf(&label, "%s (line: %s)", p->label, label_of(name)) < 0)
		plot_fail("no memory", "", "");
	p->label = keep(label);
}

static struct chart chart_of(const struct table *t, const struct options *o)
{
	struct chart c = {.title = o->title, .log = o->log};
	int x = o->x ? need_column(t, o->x, strlen(o->x)) : 0;
	uint32_t set = series_columns(t, o, x) & ~(1u << x);
	const char *y = o->y ? o->y : t->name[first_measured(t)];

	c.x_label = label_of(t->name[x]);
	c.series = get(CHART_SERIES_MAX, sizeof *c.series);
	collect_x(&c, t, x);
	for (const char *p = y; *p; p += strcspn(p, ","), p += *p == ',') {
		int col = need_column(t, p, strcspn(p, ","));
		if (c.n_panels == CHART_PANELS_MAX)
			plot_fail("--y", y, "fewer columns expected");
		c.panel[c.n_panels].label = label_of(t->name[col]);
		c.panel[c.n_panels].value = figures(&c, t, x, set, col);
		if (o->whisker)
			add_whiskers(&c, &c.panel[c.n_panels], t, x, set, o->whisker);
		c.n_panels++;
	}
	if (!c.n_x || !c.n_series)
		plot_fail("figures", y, "there are none in these rows");
	if (c.log)
		check_log(&c);
	if (o->styles)
		set_styles(&c, o->styles);
	return c;
}

/* ---- options --------------------------------------------------------------------------------- */

static const char about[] =
	"Draws what other subcommands wrote with --csv. A column whose figures have a decimal point was\n"
	"measured, every other one says what was measured. Where the values of x are numbers the figures\n"
	"are lines, where they are text bars.";

/* Returns 0, or -1 after an error was reported. */
static int parse(struct options *o, int argc, char **argv)
{
	const struct eng_option table[] = {
		ENG_TEXT("y", "COLUMNS", &o->y, "figures, a panel for each (the first measured column)"),
		ENG_TEXT("x", "COLUMN", &o->x, "what they are drawn over (the first column)"),
		ENG_TEXT("by", "COLUMNS", &o->by,
		           "what tells series apart (all others that differ and were not measured)"),
		ENG_TEXT("styles", "NAMES", &o->styles, "series in the order of their colours, drawn or not (as they come)"),
		ENG_TEXT("where", "C=V,...", &o->where, "only rows with these values"),
		ENG_TEXT("whisker", "COLUMN", &o->whisker, "a thin line from each figure up to this one, such as p99_us"),
		ENG_FLAG("log", &o->log, "a logarithmic axis"),
		ENG_TEXT("title", "TEXT", &o->title, "(the first file's name)"),
		ENG_TEXT("output", "FILE", &o->output, "where to"),
	};
	const struct bench_command command = {"plot", "--output FILE.svg FILE.csv...", about, table,
	                                      sizeof table / sizeof *table};
	int e;

	*o = (struct options){0};
	e = bench_options(&command, argc, argv);
	if (e)
		return e;
	if (o->output && optind < argc) {
		o->title = o->title ? o->title : basename(argv[optind]);
		return 0;
	}
	fputs("sparsekv-bench: plot: expected --output FILE.svg and the CSV files to draw\n", stderr);
	return -1;
}

int bench_plot(int argc, char **argv)
{
	struct table *t = get(1, sizeof *t);
	struct options o;
	struct eng_error err;
	struct chart c;
	int e = parse(&o, argc, argv);

	if (e)
		return 2;
	for (int i = optind; i < argc; i++)
		read_table(t, argv[i]);
	fill_empty(t);
	filter(t, o.where);
	c = chart_of(t, &o);
	if (chart_draw(&c, o.output, &err))
		plot_fail("chart", "", err.text);
	free_kept();
	return 0;
}
