/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/cli.h - what sparsekv-generate and sparsekv-eval have in common: options, and getting from
 * them to a loaded model and a connection.
 */
#ifndef ENG_CLI_H
#define ENG_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include "engine/model.h"
#include "engine/private.h"

struct eng_cli {
	const char *model;  /* directory */
	const char *socket; /* NULL: $SPARSEKV_SOCKET, else the system's */
	bool private_daemon;
	bool quiet;
	bool no_graph;
	uint32_t device;   /* SKV_DEVICE_HOST or SKV_DEVICE_CUDA(i) */
	uint32_t kv_dtype; /* enum skv_dtype */
	uint32_t threads;  /* 0: all cores */
};
#define ENG_CLI_INIT ((struct eng_cli){.kv_dtype = SKV_BF16})

/* getopt_long values from here on; a program's own begin behind them. */
enum {
	ENG_OPT_MODEL = 256,
	ENG_OPT_SOCKET,
	ENG_OPT_PRIVATE,
	ENG_OPT_DEVICE,
	ENG_OPT_NO_GRAPH,
	ENG_OPT_KV_DTYPE,
	ENG_OPT_THREADS,
	ENG_OPT_QUIET,
	ENG_OPT_HELP,
	ENG_OPT_VERSION,
	ENG_OPT_OWN,
};
#define ENG_CLI_OPTIONS                                          \
	{"model", required_argument, NULL, ENG_OPT_MODEL},       \
	{"socket", required_argument, NULL, ENG_OPT_SOCKET},     \
	{"private", no_argument, NULL, ENG_OPT_PRIVATE},         \
	{"device", required_argument, NULL, ENG_OPT_DEVICE},     \
	{"no-graph", no_argument, NULL, ENG_OPT_NO_GRAPH},       \
	{"kv-dtype", required_argument, NULL, ENG_OPT_KV_DTYPE}, \
	{"threads", required_argument, NULL, ENG_OPT_THREADS},   \
	{"quiet", no_argument, NULL, ENG_OPT_QUIET},             \
	{"help", no_argument, NULL, ENG_OPT_HELP},               \
	{"version", no_argument, NULL, ENG_OPT_VERSION}

#define ENG_CLI_HELP                                                                             \
	"  --model DIR        directory with config.json and model.safetensors\n"                    \
	"  --socket PATH      the daemon's socket (default: $SPARSEKV_SOCKET, else the system's)\n"  \
	"  --private          start a daemon for this run alone; no root, no service\n"              \
	"  --device DEVICE    host (default), or cuda:N: model and KV there\n"                       \
	"  --no-graph         on a device: launch the kernels of a step one by one\n"                \
	"  --kv-dtype TYPE    pages in bf16 (default), fp16 or, on the host, fp32\n"                 \
	"  --threads N        default: all cores\n"                                                  \
	"  --quiet            nothing on stderr but errors\n"                                        \
	"  --help, --version\n"

/*
 * Take one of the options above. 1 taken, 0 not one of them, -EINVAL with a text. --help and --version
 * print and exit.
 */
int eng_cli_take(struct eng_cli *cli, int option, const char *program, const char *help,
                 struct eng_error *err);

/* A whole number of least … most. -EINVAL with a text that names the option. */
int eng_cli_count(const char *option, const char *text, uint32_t least, uint32_t most, uint32_t *ret,
                  struct eng_error *err);

/* A backend and a model in its memory, and a daemon to keep its KV. */
struct eng_host {
	struct eng_backend *backend;
	struct eng_model model;
	struct skv_client *client;
	struct eng_private *daemon; /* with --private, else NULL */
};
#define ENG_HOST_NULL ((struct eng_host){.client = NULL})

int eng_host_open(struct eng_host *ret, const struct eng_cli *cli, struct eng_error *err);
/* Have the model at cli->device instead, with the same daemon. On error it is nowhere; eng_host_close() then, too. */
int eng_host_move(struct eng_host *host, const struct eng_cli *cli, struct eng_error *err);
void eng_host_close(struct eng_host *host);

/* Print "program: text" on stderr. Returns EXIT_FAILURE, for main(). */
int eng_cli_failed(const char *program, const struct eng_error *err);

#endif
