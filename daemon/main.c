/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/main.c - the program sparsekvd: reads the command line, and runs a daemon (server/server.h), a keeper or a
 * guardian (restart/).
 */
#include <config.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/process.h"
#include "daemon/restart/guardian.h"
#include "daemon/restart/keeper.h"
#include "daemon/server/server.h"
#include "daemon/sys/log.h"

static void usage(FILE *to)
{
	fputs("Usage: sparsekvd [OPTION]...\n"
	      "The daemon that owns the memory of KV caches.\n\n"
	      "  --config=FILE     read settings from FILE instead of " SKV_CONFIG_FILE "\n"
	      "  --keeper          where there is no systemd: be the process that starts the daemon, keeps what it\n"
	      "                    stores, and starts the next one when it ends\n"
	      "  --private=DIRECTORY\n"
	      "                    the first option: run a daemon while standard input is open, then remove DIRECTORY,\n"
	      "                    which has its socket and its log\n"
	      "  --check-config    read the settings, say what is wrong with them, and exit\n"
	      "  --help-config     print a configuration file with every setting and its default\n"
	      "  --help            print this text\n"
	      "  --version         print the version\n\n"
	      "Each setting of the configuration file is an option too, and goes before the file.\n"
	      "With their defaults:\n",
	      to);
	skv_config_help(to);
}

#define MAPPED_BYTES (1 << 20) /* malloc() makes a mapping of its own for an allocation of this size or more */
#define NO_MEMORY "sparsekvd: out of memory\n"

static int complain(const char *fmt, const char *what)
{
	fprintf(stderr, "sparsekvd: ");
	fprintf(stderr, fmt, what);
	fprintf(stderr, "; see sparsekvd --help\n");
	return EXIT_FAILURE;
}

/* Joins an option and its value, "--key" and "VALUE", to "--key=VALUE". Returns -1 if there is no memory. */
static int join(const char *key, const char *value, char **ret)
{
	return asprintf(ret, "%s=%s", key, value) < 0 ? -1 : 0;
}

struct command_line {
	const char *config;
	char **options; /* settings as strings "--key=value", owned; the array ends with NULL */
	int n_options;
	bool check_only, keeper;
};

static int add_setting(struct command_line *line, const char *arg, size_t len, const char *value)
{
	char key[64];

	snprintf(key, sizeof(key), "%.*s", (int)len, arg);
	if (join(key, value, &line->options[line->n_options]) < 0)
		return -1;
	line->n_options++;
	return 0;
}

/*
 * Parses the command line. Returns 0 if the program goes on, 1 if all is done (--help and the like), -1 after printing
 * an error.
 */
static int parse(int argc, char **argv, struct command_line *ret)
{
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i], *value = strchr(arg, '=');
		size_t len = value ? (size_t)(value - arg) : strlen(arg);
		bool is_config = len == 8 && !strncmp(arg, "--config", len);

		if (!strcmp(arg, "--help")) {
			usage(stdout);
			return 1;
		} else if (!strcmp(arg, "--version")) {
			puts("sparsekvd " PACKAGE_VERSION);
			return 1;
		} else if (!strcmp(arg, "--help-config")) {
			skv_config_help_file(stdout);
			return 1;
		} else if (!strcmp(arg, "--check-config")) {
			ret->check_only = true;
			continue;
		} else if (!strcmp(arg, "--keeper")) {
			ret->keeper = true;
			continue;
		}
		if (strncmp(arg, "--", 2) != 0 || (!is_config && !skv_config_known(arg + 2, len - 2))) {
			complain("unknown option \"%s\"", arg);
			return -1;
		}
		if (!value && i + 1 == argc) {
			complain("%s needs a value", arg);
			return -1;
		}
		value = value ? value + 1 : argv[++i];
		if (is_config) {
			ret->config = value;
			continue;
		}
		if (add_setting(ret, arg, len, value) < 0) {
			fprintf(stderr, NO_MEMORY);
			return -1;
		}
	}
	return 0;
}

/*
 * Asks the scheduler for a time slice of 0.1 ms instead of 3 ms. The daemon needs about ten microseconds for a request,
 * and a process with a short slice runs sooner after a wakeup. Kernels before 6.12 have no slices per process and
 * ignore the value.
 */
static void ask_for_short_slices(void)
{
	/* struct sched_attr of the kernel, declared here because the kernel's header conflicts with <sched.h> */
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = {.size = sizeof(attr), .policy = SCHED_OTHER, .nice = getpriority(PRIO_PROCESS, 0), .runtime = 100000};

	(void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

static int check(const struct command_line *line)
{
	const struct skv_config_sources from = {.file = line->config, .options = line->options};
	struct skv_config config;
	char err[SKV_CONFIG_ERR];

	if (skv_config_load(&from, &config, err) == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "sparsekvd: %s\n", err);
	return EXIT_FAILURE;
}

static int run(const struct skv_server_options *options)
{
	struct skv_server *server;
	int r = skv_server_new(options, &server);

	if (r < 0)
		return r;
	r = skv_server_run(server);
	skv_server_free(server);
	return r;
}

static int serve(const struct command_line *line)
{
	const struct skv_server_options options = {
		.config = {.file = line->config, .options = line->options},
		.program = "/proc/self/exe",
		.service = true,
	};
	int r;

	skv_process_conceal();
	skv_process_serve();
	ask_for_short_slices();
	r = line->keeper ? skv_run_keeper(&options.config) : run(&options);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct command_line line = {0};
	int r;

	skv_process_open_standard();
	if (argc > 1 && !strncmp(argv[1], "--private=", strlen("--private=")))
		return skv_run_guardian(argv[1] + strlen("--private="), argv + 1);
	/*
	 * The daemon allocates marks for all pages of a pool with calloc(). In a fresh mapping, only marks that are
	 * written cost memory. By default glibc stops making fresh mappings after the first such block is freed:
	 * calloc() would then take memory from the heap and zero it, megabytes in each of thousands of calls.
	 */
	(void)mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
	line.options = calloc((size_t)argc + 1, sizeof(*line.options));
	if (!line.options) {
		fprintf(stderr, NO_MEMORY);
		return EXIT_FAILURE;
	}
	r = parse(argc, argv, &line);
	r = r < 0 ? EXIT_FAILURE : r > 0 ? EXIT_SUCCESS : line.check_only ? check(&line) : serve(&line);
	for (int i = 0; i < line.n_options; i++)
		free(line.options[i]);
	free(line.options);
	return r;
}
