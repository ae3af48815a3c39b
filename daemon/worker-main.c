/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker-main.c - sparsekv-worker VERSION disk | cuda DEVICE: the daemon's worker processes.
 *
 * A program of its own, so that the daemon links neither the store's client nor TLS. The daemon starts it with a socket as descriptor 3.
 * Jobs are structs of the daemon's version: another version's worker, installed while the daemon runs, refuses to start.
 */
#include <config.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/process.h"
#include "daemon/disk/job.h"
#include "daemon/mem/cuda.h"

int main(int argc, char **argv)
{
	skv_process_open_standard();
	if (argc < 3) {
		fprintf(stderr, "sparsekv-worker: this program is run by sparsekvd: sparsekv-worker VERSION disk | cuda DEVICE\n");
		return EXIT_FAILURE;
	}
	if (strcmp(argv[1], PACKAGE_VERSION)) {
		fprintf(stderr, "sparsekv-worker: its version is " PACKAGE_VERSION ", and that of the daemon is %s: restart the daemon\n", argv[1]);
		return EXIT_FAILURE;
	}
	if (argc == 3 && !strcmp(argv[2], "disk"))
		return skv_disk_worker_main();
	if (argc == 4 && !strcmp(argv[2], "cuda"))
		return skv_cuda_worker_main((unsigned)strtoul(argv[3], NULL, 10));
	fprintf(stderr, "sparsekv-worker: got \"%s\", expected \"disk\", or \"cuda\" and the number of a device\n", argv[2]);
	return EXIT_FAILURE;
}
