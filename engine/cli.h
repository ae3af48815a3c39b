/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/cli.h - code that the engine's programs share: command-line options, loading a model, and connecting to a
 * daemon.
 */
#ifndef ENG_CLI_H
#define ENG_CLI_H

#include <stdbool.h>
#include "engine/model.h"
#include "engine/options.h"
#include "engine/private-daemon.h"
#include "engine/ranks.h"

struct eng_cli {
	const char *model;  /* directory of the model */
	/* path of the daemon's socket; NULL: $SPARSEKV_SOCKET if set, otherwise the system daemon's socket */
	const char *socket;
	bool private_daemon;
	bool quiet;
	bool no_graph;
	uint32_t device;   /* SKV_DEVICE_HOST or SKV_DEVICE_CUDA(i) */
	uint32_t kv_dtype; /* enum skv_dtype */
	uint32_t threads;  /* number of threads; 0: all cores */
	uint32_t ranks;    /* number of tensor-parallel ranks; 0 or 1: this process has all heads */
};
#define ENG_CLI_INIT ((struct eng_cli){.kv_dtype = SKV_BF16})

/* Rows of an option table (options.h) that fill a struct eng_cli. */
#define ENG_CLI_OPTIONS(cli)                                                                                \
	ENG_TEXT("model", "DIR", &(cli)->model, "directory with config.json and model.safetensors"),        \
	ENG_TEXT("socket", "PATH", &(cli)->socket,                                                          \
	         "the daemon's socket (default: $SPARSEKV_SOCKET, else the system's)"),                     \
	ENG_FLAG("private", &(cli)->private_daemon, "start a daemon for this run alone; no root, no service"), \
	ENG_DEVICE(&(cli)->device, "host (default), or cuda:N: model and KV there"),                        \
	ENG_FLAG("no-graph", &(cli)->no_graph, "on a device: launch the kernels of a step one by one"),     \
	ENG_NAME("kv-dtype", "TYPE", &(cli)->kv_dtype, eng_cli_dtypes,                                      \
	         "pages in bf16 (default), fp16, fp8 or, on the host, fp32"),                                      \
	ENG_COUNT("threads", &(cli)->threads, 1, 1024, "default: all cores"),                               \
	ENG_FLAG("quiet", &(cli)->quiet, "nothing on stderr but errors")

/* The option --ranks, for programs that can run a model on several ranks. */
#define ENG_CLI_RANKS(cli)                                                                                  \
	ENG_COUNT("ranks", &(cli)->ranks, 1, ENG_RANKS_MAX,                                                 \
	          "tensor-parallel ranks, a process each, on devices from --device's on (default 1)")

extern const char *const eng_cli_dtypes[]; /* indexed by enum skv_dtype */

/* A backend with a model in its memory, and a connection to a daemon for the KV cache. */
struct eng_host {
	struct eng_backend *backend;
	struct eng_model model;
	struct skv_client *client;
	struct eng_private *daemon; /* private daemon, if started with --private; otherwise NULL */
	struct eng_ranks *ranks;    /* NULL: there is only one rank */
};
#define ENG_HOST_NULL ((struct eng_host){.client = NULL})

/*
 * Opens the backend, loads the model and connects to the daemon. With ranks, returns in the process of every rank;
 * after an error, only in that of the first rank.
 */
int eng_host_open(struct eng_host *ret, const struct eng_cli *cli, struct eng_error *err);
/*
 * Moves the model to cli->device and keeps the connection to the daemon. After an error the model may be on no device;
 * eng_host_close() must be called then, too.
 */
int eng_host_move(struct eng_host *host, const struct eng_cli *cli, struct eng_error *err);
/* Closes everything in `host`. The program must then call eng_ranks_end() with the value that host->ranks had. */
void eng_host_close(struct eng_host *host);

/* Prints "program: text" on stderr. Returns EXIT_FAILURE, for main(). */
int eng_cli_failed(const char *program, const struct eng_error *err);

#endif
