/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/probe.h - tries a policy plugin in a child process.
 *
 * The child executes a program of its own, sparsekv-probe, instead of being a mere fork of the daemon. So the child's
 * address space has nothing of the daemon (no mapped pools, no ring, no held locks), and the daemon's exit handlers do
 * not run in the child. The program links few libraries, because loading more would take longer than the probe itself.
 * The child gets three descriptors, and the sandbox (sandbox.h) allows it little else:
 *
 *   3  the plugin, sealed           4  the cases to try, sealed           5  the report
 *
 * The report is a memfd instead of a pipe. A memfd needs no reader while the child runs, and it cannot fill up. Its
 * first bytes are the name of the stage that the child has begun, so it tells how far the child got even if the child
 * was killed. Standard output and error of the child go to the report as well, so the text of a failed assertion
 * becomes part of the error.
 *
 * First the probe checks the plugin's struct skv_policy and the defaults of its parameters, and runs the plan and all
 * hooks with a made-up model. Then it runs them in the cases: models and specs with which the plugin is about to be
 * used.
 */
#ifndef SKV_PROBE_H
#define SKV_PROBE_H

#include <jansson.h>
#include <sparsekv/policy.h>
#include "common/wire.h"
#include "daemon/loop/loop.h"

struct skv_probe_case {
	struct skv_model model;
	char spec[SKV_SPEC_MAX];
};

struct skv_probe_result {
	/*
	 * 0, or a positive errno. ETIMEDOUT: the probe took too long. ECANCELED: the daemon is stopping. ENOMEM: the
	 * daemon is out of memory. Another errno: the plugin failed, in itself or in a case
	 */
	int error;
	const char *text;   /* if error != 0: an error text of one line */
	const json_t *info; /* if error == 0: description of the policy in JSON, which probe-main.c writes */
};
typedef void (*skv_probe_fn)(void *ctx, const struct skv_probe_result *);

/*
 * Starts a probe. `plugin_fd` is borrowed until the call returns. After the function has returned 0, `done` is called
 * exactly once, with ECANCELED if the loop is drained before the probe ends. A negative errno means that no child was
 * started.
 */
int skv_probe_start(struct skv_loop *, const char *probe, int plugin_fd, const struct skv_probe_case *cases,
                    uint32_t n_cases, uint64_t timeout_ns, skv_probe_fn done, void *ctx);

/* ---- interface between the daemon and sparsekv-probe VERSION SECONDS ---- */
#define SKV_PROBE_PLUGIN_FD 3
#define SKV_PROBE_CASES_FD 4
#define SKV_PROBE_REPORT_FD 5
#define SKV_PROBE_STAGE_BYTES 64  /* the name of the stage, NUL-terminated, at the beginning of the report */
#define SKV_PROBE_OUTPUT_AT 4096  /* offset in the report of the child's standard output and error */
#define SKV_PROBE_ANSWER_AT 65536 /* offset in the report of the answer, in JSON */
#define SKV_PROBE_REPORT_MAX (1u << 20)

#endif
