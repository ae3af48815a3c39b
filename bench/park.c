/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/park.c - sparsekv-bench park: measures how fast sequences are parked on disk and attached again.
 *
 * The daemon must be running already, with its folder for parked sequences on the disk to be measured. bench/park.sh
 * starts such a daemon, and also measures the disk itself for comparison. The time of an operation is that from the
 * request to the reply: after the reply, a parked sequence's file is on the disk, and an attached sequence can be used.
 */
#include "bench/bench.h"
#include "bench/stack-fixture.h"
#include "daemon/ctl/conn.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
	const char *socket, *beside, *csv;
	uint32_t device, heads, kv_heads;
	long layers, dim, tokens, sequences, repeat;
};

static const struct column columns[] = {
	{"what", -10}, {"sequences", 0}, {"MB_each", 1}, {"seconds", 3}, {"GB_per_s", 3},
};

static void park(struct skv_ctl *ctl, const struct skv_model *m, const char *name, uint64_t *ret_bytes)
{
	struct skv_msg_seq_of of = {.uid = (uint32_t)getuid()};
	json_t *answer;

	snprintf(of.model, sizeof(of.model), "%s", m->name);
	snprintf(of.name, sizeof(of.name), "%s", name);
	if (skv_ctl_ask(ctl, SKV_MSG_SEQ_PARK, &of, sizeof(of), -1, &answer) < 0) {
		fprintf(stderr, "sparsekv-bench: %s\n", ctl->err);
		exit(EXIT_FAILURE);
	}
	*ret_bytes += (uint64_t)json_integer_value(json_object_get(answer, "bytes"));
	json_decref(answer);
}

static void row(struct report *r, const char *what, uint32_t n, uint64_t bytes, double seconds)
{
	report_row(r, what, (double)n, (double)bytes / 1e6 / n, seconds, (double)bytes / 1e9 / seconds);
}

static void name_of(uint32_t i, char ret[SKV_NAME_MAX])
{
	snprintf(ret, SKV_NAME_MAX, "bench-%u", i);
}

/* Runs a command that reads the file of a parked sequence; the command finds the sequence's name in $SEQUENCE. */
static void run_beside(const char *command, const char *name)
{
	setenv("SEQUENCE", name, 1);
	if (system(command) == 0)
		return;
	fprintf(stderr, "sparsekv-bench: park: failed for %s: %s\n", name, command);
	exit(EXIT_FAILURE);
}

/* Attaches sequence i. Returns the seconds that it takes. */
static double attach(struct stack_fixture *s, uint32_t i)
{
	const double begun = bench_now();
	char name[SKV_NAME_MAX];

	name_of(i, name);
	stack_need(skv_seq_attach(s->session, name, &s->seq[i]));
	return bench_now() - begun;
}

/*
 * Attaches every second sequence and times it. Before each, the command reads the file of the sequence before it. Then
 * attaches the other sequences, whose files are in the page cache by now, without timing them.
 */
static double attach_beside(struct stack_fixture *s, const char *command)
{
	char name[SKV_NAME_MAX];
	double seconds = 0;

	for (uint32_t i = 1; i < s->n; i += 2) {
		name_of(i - 1, name);
		run_beside(command, name);
		seconds += attach(s, i);
	}
	for (uint32_t i = 0; i < s->n; i += 2)
		(void)attach(s, i);
	return seconds;
}

/* Parks all sequences, one after the other, then attaches them again. */
static void there_and_back(struct report *r, struct stack_fixture *s, struct skv_ctl *ctl, const char *beside)
{
	uint64_t bytes = 0;
	char name[SKV_NAME_MAX];
	double begun, seconds = 0;

	for (uint32_t i = 0; i < s->n; i++)
		stack_need(skv_seq_detach(s->seq[i]));
	begun = bench_now();
	for (uint32_t i = 0; i < s->n; i++) {
		name_of(i, name);
		park(ctl, &s->model, name, &bytes);
	}
	row(r, "park", s->n, bytes, bench_now() - begun);
	if (beside) {
		row(r, "attach", s->n / 2, bytes / s->n * (s->n / 2), attach_beside(s, beside));
		return;
	}
	for (uint32_t i = 0; i < s->n; i++)
		seconds += attach(s, i);
	row(r, "attach", s->n, bytes, seconds);
}

static int measure(struct report *r, const void *options)
{
	const struct options *o = options;
	struct skv_model m = SKV_MODEL_INIT;
	struct stack_fixture s;
	struct skv_ctl ctl;

	m.n_layers = (uint32_t)o->layers;
	m.n_heads = o->heads;
	m.n_kv_heads = o->kv_heads;
	m.head_dim = (uint32_t)o->dim;
	m.kv_dtype = SKV_BF16;
	m.max_tokens = (uint32_t)o->tokens;
	snprintf(m.name, sizeof(m.name), "bench");
	if (!o->socket) {
		fprintf(stderr, "sparsekv-bench: park: expected --socket, of a daemon that parks sequences\n");
		return -1;
	}
	if (o->beside && o->sequences < 2) {
		fprintf(stderr, "sparsekv-bench: park: --beside: expected two sequences or more, got %ld\n", o->sequences);
		return -1;
	}
	stack_connect(&s, o->socket, o->device);
	if (skv_ctl_connect(&ctl, o->socket, "sparsekv-bench", 60000) < 0) {
		fprintf(stderr, "sparsekv-bench: %s\n", ctl.err);
		return -1;
	}
	stack_open(&s, &m, "full");
	stack_fill(&s, (uint32_t)o->sequences, (uint32_t)o->tokens, 0);
	for (long i = 0; i < o->repeat; i++)
		there_and_back(r, &s, &ctl, o->beside);
	stack_empty(&s);
	stack_close(&s);
	skv_ctl_close(&ctl);
	stack_stop(&s);
	return 0;
}

static const char about[] =
	"Times sequences on their way to disk and back. The daemon is one that serves already, with parked-path on the\n"
	"disk that is meant: bench/park.sh starts one, and measures that disk with fio in the same run.";

int bench_park(int argc, char **argv)
{
	struct options o = {.layers = 32, .heads = 32, .kv_heads = 8, .dim = 128, .tokens = 8192, .sequences = 4, .repeat = 1};
	const struct eng_option table[] = {
		ENG_TEXT("socket", "PATH", &o.socket, "the daemon's"),
		ENG_DEVICE(&o.device, "pages on that device (host memory)"),
		ENG_COUNT("sequences", &o.sequences, 1, 1000, "of them (4)"),
		ENG_COUNT("tokens", &o.tokens, SKV_PAGE_TOKENS, SKV_MAX_TOKENS, "of each, about (8192)"),
		ENG_TEXT("beside", "COMMAND", &o.beside, "attach every second one, after COMMAND for $SEQUENCE, the one before"),
		ENG_COUNT("repeat", &o.repeat, 1, 100, "so many times (1)"),
		ENG_COUNT("layers", &o.layers, 1, SKV_MAX_LAYERS, "layers (32)"),
		BENCH_HEADS(&o.heads, &o.kv_heads, "q heads/kv heads (32/8)"),
		ENG_COUNT("dim", &o.dim, 16, SKV_MAX_HEAD_DIM, "head dimension (128)"),
		BENCH_CSV(&o.csv),
	};
	const struct bench_command command = {"park", NULL, about, table, sizeof(table) / sizeof(*table)};
	int e = bench_options(&command, argc, argv);

	return bench_report(e, measure, &o, columns, sizeof(columns) / sizeof(*columns), o.csv);
}
