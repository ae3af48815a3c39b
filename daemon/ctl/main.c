/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ctl/main.c - the command line of sparsekvctl. */
#include <config.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/process.h"
#include "daemon/ctl/ctl.h"

/* Options that a command may take besides --socket, --json and --timeout. */
enum { TAKES_MODEL = 1, TAKES_UID = 2, TAKES_SESSION = 4, TAKES_ALL = 8, TAKES_COUNT = 16, TAKES_WAIT = 32,
       TAKES_DELAY = 64, TAKES_SEED = 128, TAKES_SHAPE = 256, TAKES_CLIENT = 512 };
/* options that select the sessions of a swap, besides --all */
#define SCOPES (TAKES_SESSION | TAKES_CLIENT | TAKES_UID | TAKES_MODEL)

static const struct command {
	const char *word, *second; /* the words of the command; second NULL: the command is one word */
	const char *arg;           /* name of the command's argument; NULL: it takes none */
	unsigned takes;
	skv_ctl_command run;
	const char *help;
} commands[] = {
	{"status", NULL, NULL, 0, skv_ctl_status, "the daemon, its users and clients"},
	{"top", NULL, NULL, TAKES_COUNT | TAKES_DELAY, skv_ctl_top,
	 "sessions with their rates, repeated on a terminal"},
	{"seq", "list", NULL, 0, skv_ctl_seq_list, "sequences"},
	{"seq", "drop", "NAME", TAKES_MODEL | TAKES_UID, skv_ctl_seq_drop,
	 "drop a named sequence that no client holds"},
	{"seq", "park", "NAME", TAKES_MODEL | TAKES_UID, skv_ctl_seq_park, "move a sequence that no client holds from memory to disk"},
	{"seq", "resume", "NAME", TAKES_MODEL | TAKES_UID, skv_ctl_seq_resume,
	 "move it back to memory, as a client that attaches it does"},
	{"seq", "export", "NAME", TAKES_MODEL | TAKES_UID, skv_ctl_seq_export, "park it, and write its file to standard output"},
	{"seq", "import", NULL, TAKES_UID, skv_ctl_seq_import,
	 "import a parked sequence from such a file, on standard input (operator)"},
	{"policy", "list", NULL, 0, skv_ctl_policy_list, "policies with their parameters"},
	{"policy", "load", "FILE", 0, skv_ctl_policy_load, "try a plugin, then load it (operator)"},
	{"policy", "swap", "SPEC", SCOPES | TAKES_ALL | TAKES_WAIT, skv_ctl_policy_swap,
	 "make running sessions switch (operator): those of --session, --client, --uid, --model, or --all"},
	{"policy", "verify", "SPEC", TAKES_COUNT | TAKES_SEED | TAKES_SHAPE, skv_ctl_policy_verify,
	 "decode random sequences under a policy, and check what it attends to"},
	{"pool", NULL, NULL, 0, skv_ctl_pool, "memory pools"},
	{"metrics", NULL, NULL, 0, skv_ctl_metrics, "everything in Prometheus' text format"},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
	fputs("Usage: sparsekvctl [OPTION]... COMMAND\n"
	      "Inspect and control a running sparsekvd.\n\n"
	      "Commands:\n",
	      to);
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		char line[64];

		snprintf(line, sizeof(line), "%s%s%s%s%s", c->word, c->second ? " " : "",
		         c->second ? c->second : "", c->arg ? " " : "", c->arg ? c->arg : "");
		fprintf(to, "  %-18s %s\n", line, c->help);
	}
	fputs("\nOptions:\n"
	      "  --socket PATH      the daemon's socket ($SPARSEKV_SOCKET, else " SKV_DEFAULT_SOCKET ")\n"
	      "  --json             print the daemon's answer as JSON\n"
	      "  --timeout SECONDS  how long to wait for an answer (5; a minute for load and swap)\n"
	      "  --model NAME       seq: the sequence's model, where the name alone is not enough;\n"
	      "                     policy swap: sessions of this model\n"
	      "  --uid UID          seq: whose sequence; policy swap: sessions of this user\n"
	      "  --session N        policy swap: this session\n"
	      "  --client N         policy swap: sessions of this client\n"
	      "  --all              policy swap: every session\n"
	      "  --wait SECONDS     policy swap: until each of them runs it, or refused\n"
	      "  --seed N           policy verify: the random numbers of an earlier run\n"
	      "  --shape L,H,K,D    policy verify: layers, q heads, kv heads, head_dim of the models (any)\n"
	      "  -n COUNT           top: number of tables; policy verify: number of cases (300)\n"
	      "  -d SECONDS         top: time between two tables (1)\n"
	      "  --help, --version\n\n"
	      "Exit status: 0 done, 1 refused by the daemon, 2 wrong usage, 3 no daemon or no answer.\n",
	      to);
}

__attribute__((format(printf, 1, 2))) static int misused(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fprintf(stderr, "sparsekvctl: ");
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, "; see sparsekvctl --help\n");
	return SKV_EXIT_USAGE;
}

static const struct command *find_command(const char *word, const char *second)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(commands[i].word, word) &&
		    (!commands[i].second || (second && !strcmp(commands[i].second, second))))
			return &commands[i];
	return NULL;
}

static bool parse_u64(const char *text, uint64_t *ret)
{
	char *end;
	unsigned long long x;

	errno = 0;
	x = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno)
		return false;
	*ret = x;
	return true;
}

static bool parse_u32(const char *text, uint32_t *ret)
{
	uint64_t x;

	if (!parse_u64(text, &x) || x > UINT32_MAX)
		return false;
	*ret = (uint32_t)x;
	return true;
}

static bool parse_shape(const char *text, uint32_t ret[4])
{
	char rest;

	return sscanf(text, "%u,%u,%u,%u%c", &ret[0], &ret[1], &ret[2], &ret[3], &rest) == 4 && ret[0] > 0 &&
	       ret[1] > 0 && ret[2] > 0 && ret[3] > 0;
}

static bool parse_seconds(const char *text, double *ret)
{
	char *end;
	double x = strtod(text, &end);

	if (end == text || *end || !isfinite(x) || x < 0.05 || x > 86400)
		return false;
	*ret = x;
	return true;
}

static bool take_seconds(const char *option, const char *value, double *ret)
{
	if (parse_seconds(value, ret))
		return true;
	misused("%s: got \"%s\", expected seconds from 0.05 to 86400", option, value);
	return false;
}

/* Stores the value of an option. Returns false, after printing an error, if the value is invalid. */
static bool take(int option, const char *value, struct skv_ctl_options *o, unsigned *given)
{
	uint32_t x = 0;

	switch (option) {
	case 's':
		o->socket = value;
		return true;
	case 'j':
		o->json = true;
		return true;
	case 't':
		return take_seconds("--timeout", value, &o->timeout);
	case 'm':
		*given |= TAKES_MODEL;
		o->model = value;
		return true;
	case 'w':
		*given |= TAKES_WAIT;
		return take_seconds("--wait", value, &o->wait);
	case 'a':
		*given |= TAKES_ALL;
		o->all = true;
		return true;
	case 'u':
		*given |= TAKES_UID;
		if (!parse_u32(value, &x) || x == UINT32_MAX) {
			misused("--uid: got \"%s\", expected a user's number", value);
			return false;
		}
		o->uid = x;
		return true;
	case 'e':
		*given |= TAKES_SESSION;
		if (parse_u32(value, &o->session) && o->session)
			return true;
		misused("--session: got \"%s\", expected a session's number as in `sparsekvctl top`", value);
		return false;
	case 'c':
		*given |= TAKES_CLIENT;
		if (parse_u32(value, &o->client) && o->client)
			return true;
		misused("--client: got \"%s\", expected a client's number as in `sparsekvctl status`", value);
		return false;
	case 'p':
		*given |= TAKES_SHAPE;
		if (parse_shape(value, o->shape))
			return true;
		misused("--shape: got \"%s\", expected LAYERS,HEADS,KV_HEADS,HEAD_DIM", value);
		return false;
	case 'S':
		*given |= TAKES_SEED;
		o->seeded = true;
		if (parse_u64(value, &o->seed))
			return true;
		misused("--seed: got \"%s\", expected a whole number", value);
		return false;
	case 'n':
		*given |= TAKES_COUNT;
		if (parse_u32(value, &x) && x) {
			o->count = (long)x;
			return true;
		}
		misused("-n: got \"%s\", expected a whole number from 1", value);
		return false;
	case 'd':
		*given |= TAKES_DELAY;
		return take_seconds("-d", value, &o->delay);
	default: /* getopt has printed an error */
		fprintf(stderr, "see sparsekvctl --help\n");
		return false;
	}
}

static int run(const struct command *c, const struct skv_ctl_options *o)
{
	const char *path = o->socket ? o->socket : getenv("SPARSEKV_SOCKET");
	char operators[256];
	bool slow = c->run == skv_ctl_policy_load || c->run == skv_ctl_policy_swap;
	struct skv_ctl ctl = SKV_CTL_NULL;
	double timeout = o->timeout > 0 ? o->timeout : slow ? 60 : 5;
	int r;

	path = path && *path ? path : SKV_DEFAULT_SOCKET;
	/* a user who may open the operators' socket is an operator; others use the clients' socket */
	if (skv_operators_socket(path, operators, sizeof(operators))) {
		if (access(operators, R_OK | W_OK) == 0) {
			path = operators;
		} else if (errno != ENOENT && (c->run == skv_ctl_policy_load || c->run == skv_ctl_seq_import)) {
			/* these commands send a descriptor, which the clients' socket does not take */
			fprintf(stderr, "sparsekvctl: only an operator may %s, on the operators' socket: %s: %s\n",
			        c->run == skv_ctl_seq_import ? "import a sequence" : "load a policy", operators, strerror(errno));
			return SKV_EXIT_REFUSED;
		}
	}
	if (skv_ctl_connect(&ctl, path, "sparsekvctl", (int)(timeout * 1000)) < 0) {
		fprintf(stderr, "sparsekvctl: %s\n", ctl.err);
		return SKV_EXIT_UNREACHABLE;
	}
	r = c->run(&ctl, o);
	skv_ctl_close(&ctl);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		perror("sparsekvctl: standard output");
		return SKV_EXIT_REFUSED;
	}
	return r;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"socket", required_argument, NULL, 's'},  {"json", no_argument, NULL, 'j'},
		{"timeout", required_argument, NULL, 't'}, {"model", required_argument, NULL, 'm'},
		{"uid", required_argument, NULL, 'u'},     {"session", required_argument, NULL, 'e'},
		{"client", required_argument, NULL, 'c'},
		{"wait", required_argument, NULL, 'w'},   {"all", no_argument, NULL, 'a'},
		{"seed", required_argument, NULL, 'S'},    {"shape", required_argument, NULL, 'p'},
		{"help", no_argument, NULL, 'h'},          {"version", no_argument, NULL, 'V'},
		{0},
	};
	struct skv_ctl_options o = {.uid = -1, .delay = 1};
	const struct command *c;
	unsigned given = 0;
	int option, words;

	skv_process_open_standard();
	while ((option = getopt_long(argc, argv, "n:d:", longs, NULL)) != -1) {
		if (option == 'h') {
			usage(stdout);
			return SKV_EXIT_OK;
		}
		if (option == 'V') {
			puts("sparsekvctl " PACKAGE_VERSION);
			return SKV_EXIT_OK;
		}
		if (!take(option, optarg, &o, &given))
			return SKV_EXIT_USAGE;
	}
	if (optind == argc)
		return misused("expected a command");
	c = find_command(argv[optind], argv[optind + 1]);
	if (!c)
		return misused("unknown command \"%s\"", argv[optind]);
	words = c->second ? 2 : 1;
	if (argc - optind - words != (c->arg ? 1 : 0))
		return misused(c->arg ? "expected one %s after the command"
		                      : "the command takes no argument%s",
		               c->arg ? c->arg : "");
	if (given & ~c->takes)
		return misused("an option was given that `%s` does not take",
		               c->second ? c->second : c->word);
	if (c->run == skv_ctl_policy_swap && !(given & (SCOPES | TAKES_ALL)))
		return misused("policy swap: expected which sessions: --session N, --client N, --uid UID, --model NAME, or --all");
	if (o.all && given & SCOPES)
		return misused("--all cannot be combined with --session, --client, --uid or --model");
	o.arg = argv[optind + words];
	return run(c, &o);
}
