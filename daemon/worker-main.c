/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker-main.c - sparsekv-worker VERSION disk | cuda DEVICE: the program of the daemon's worker processes.
 *
 * Workers are a program of their own, so that sparsekvd links neither the client of the prefix store nor TLS. The
 * daemon starts a worker with a socket as descriptor 3. A job is sent as a struct, whose layout depends on the version.
 * If another version is installed while the daemon runs, the worker program of that version refuses to start.
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
