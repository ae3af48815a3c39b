/* SPDX-License-Identifier: Apache-2.0 */
/* bench/main.c - the program sparsekv-bench: runs the subcommand that its first argument names. */
#include "config.h"
#include "bench/bench.h"
#include "engine/env.h"
#include <string.h>

static const struct {
	const char *name, *summary;
	int (*run)(int argc, char **argv);
} commands[] = {
	{"attention", "the attention kernels against a streaming read of the same memory", bench_attention},
	{"batch", "what begin and end of a step cost as batches grow", bench_batch},
	{"codes", "KV compression, and attention to compressed tokens, decompressed first or fused", bench_codes},
	{"correction", "what sparse prefill loses where rows are alike, and what a correction gives back", bench_correction},
	{"ipc", "what the daemon and the client library cost the host", bench_ipc},
	{"step", "whole steps as Kascade and DELTA do them, against dense ones", bench_step},
	{"memory", "what a long decode keeps in memory under each policy", bench_memory},
	{"park", "sequences on their way to disk and back", bench_park},
	{"policies", "decode steps under each policy", bench_policies},
	{"prefill", "prefill methods, a layer at a time", bench_prefill},
	{"prefixes", "a trace of scale against daemons that share sealed prefixes", bench_prefixes},
	{"ranks", "decode steps on tensor-parallel ranks", bench_ranks},
	{"scale", "prefixes in hosts' memory and a store that they share, simulated", bench_scale},
	{"traffic", "steps while requests come and go", bench_traffic},
	{"plot", "a chart of what the others wrote as CSV", bench_plot},
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static void usage(FILE *f)
{
	fprintf(f, "usage: sparsekv-bench COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-12s %s\n", commands[i].name, commands[i].summary);
	fprintf(f, "\nsparsekv-bench COMMAND --help lists a command's options.\n");
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	eng_env_init(argv);
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(name, commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
		usage(stdout);
		return 0;
	}
	if (!strcmp(name, "--version")) {
		printf("sparsekv-bench %s\n", PACKAGE_VERSION);
		return 0;
	}
	if (*name)
		fprintf(stderr, "sparsekv-bench: there is no command '%s'\n\n", name);
	usage(stderr);
	return 2;
}
