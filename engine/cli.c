/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cli.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

const char *const eng_cli_dtypes[] = {[SKV_F32] = "fp32", [SKV_F16] = "fp16", [SKV_BF16] = "bf16", [SKV_FP8] = "fp8", NULL};

static int check(const struct eng_cli *cli, struct eng_error *err)
{
	if (!cli->model)
		return eng_fail(err, -EINVAL, "--model is missing: the directory of a model expected");
	if (cli->socket && cli->private_daemon)
		return eng_fail(err, -EINVAL, "--socket and --private exclude each other");
	if (cli->device != SKV_DEVICE_HOST && cli->kv_dtype == SKV_F32)
		return eng_fail(err, -EINVAL, "--kv-dtype fp32: bf16, fp16 or fp8 expected with --device cuda:%u",
		                cli->device - SKV_DEVICE_CUDA(0));
	return 0;
}

static int load(struct eng_host *host, const struct eng_cli *cli, struct eng_error *err)
{
	/* If pages are bf16 or fp8, bf16 is precise enough for matrices and rows, and faster than fp32. */
	uint32_t dtype = cli->kv_dtype == SKV_BF16 || cli->kv_dtype == SKV_FP8 ? SKV_BF16 : SKV_F32;
	int r = eng_backend_open(&host->backend, cli->device, err);

	return r ? r : eng_model_load(&host->model, cli->model, host->backend, dtype, err);
}

static void unload(struct eng_host *host)
{
	eng_model_deinit(&host->model);
	eng_backend_close(host->backend);
	host->backend = NULL;
}

/*
 * Connects this rank to the daemon. Each rank has its own connection; the first rank keeps the one to a private daemon
 * that it has already.
 */
static int connect_rank(struct eng_host *host, const struct eng_cli *cli, struct eng_error *err)
{
	const char *socket = host->daemon ? eng_private_socket(host->daemon) : cli->socket;
	int r;

	if (eng_ranks_number(host->ranks) > 0) {
		skv_disconnect(host->client); /* a copy of the first rank's connection, from fork() */
		host->client = NULL;
	}
	r = host->client ? 0 : skv_connect(&host->client, socket);
	if (r < 0)
		return eng_fail(err, r, "%s", skv_last_error());
	if (eng_ranks_number(host->ranks) > 0)
		host->daemon = NULL; /* the first rank owns the private daemon */
	return 0;
}

/* Starts the ranks before opening the device, because ranks are forks and CUDA does not survive fork(). */
int eng_host_open(struct eng_host *ret, const struct eng_cli *cli, struct eng_error *err)
{
	struct eng_host host = ENG_HOST_NULL;
	struct eng_cli own = *cli;
	struct eng_ranks *ranks;
	int r = check(cli, err);

	if (r)
		return r;
	if (cli->private_daemon)
		r = eng_private_start(0, NULL, &host.daemon, &host.client, err);
	if (!r && cli->ranks > 1)
		r = eng_ranks_start(&host.ranks, cli->ranks, err);
	if (!r && cli->device != SKV_DEVICE_HOST)
		own.device += eng_ranks_number(host.ranks);
	r = r ? r : connect_rank(&host, cli, err);
	r = r ? r : load(&host, &own, err);
	r = r ? r : eng_ranks_open(host.ranks, host.backend, err);
	if (r) {
		ranks = host.ranks;
		eng_host_close(&host);
		return eng_ranks_end(ranks, r, err);
	}
	if (cli->threads) {
		omp_set_num_threads((int)cli->threads);
		skv_set_threads(host.client, cli->threads);
	}
	*ret = host;
	return 0;
}

int eng_host_move(struct eng_host *host, const struct eng_cli *cli, struct eng_error *err)
{
	int r = check(cli, err);

	if (r || host->backend->device == cli->device)
		return r;
	unload(host);
	return load(host, cli, err);
}

void eng_host_close(struct eng_host *host)
{
	eng_ranks_close(host->ranks);
	skv_disconnect(host->client);
	eng_private_stop(host->daemon);
	unload(host);
	*host = ENG_HOST_NULL;
}

int eng_cli_failed(const char *program, const struct eng_error *err)
{
	fprintf(stderr, "%s: %s\n", program, err->text);
	return EXIT_FAILURE;
}
