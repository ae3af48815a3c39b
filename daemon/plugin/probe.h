/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/probe.h - tries a policy plugin in a child process.
 *
 * The child executes a program of its own, sparsekv-probe, instead of being a bare fork: so its address space has
 * nothing of the daemon's (no maps of pools, no ring, no locks held), and the parent's exit handlers do not run in
 * it. The program links few libraries, because dynamic linking would take longer than the probe itself. It gets three
 * descriptors, and the sandbox (sandbox.h) allows it little else:
 *
 *   3  the plugin, sealed           4  the cases to try, sealed           5  the report
 *
 * The report is a memfd instead of a pipe: it needs no reader while the child runs, it cannot fill up, and it tells
 * how far the child got even if it was killed, since its first bytes are the name of the stage. Standard output and
 * error go there as well, so a failed assertion is part of the refusal.
 *
 * The plugin itself is tried first: block, defaults, plan and hooks with a made-up model. Then come the cases: models
 * and specs that it is about to be used with.
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
	 * 0, or a positive errno: ETIMEDOUT; ECANCELED: the daemon is stopping; ENOMEM: of the daemon; others: the
	 * plugin or a case failed
	 */
	int error;
	const char *text;   /* one line if error != 0 */
	const json_t *info; /* the plugin's description if error == 0 */
};
typedef void (*skv_probe_fn)(void *ctx, const struct skv_probe_result *);

/*
 * Starts a probe. `plugin_fd` is borrowed until the call returns. `done` is called exactly once, later; with
 * ECANCELED if the loop is drained first. Negative errno: no child was started.
 */
int skv_probe_start(struct skv_loop *, const char *probe, int plugin_fd, const struct skv_probe_case *cases,
                    uint32_t n_cases, uint64_t timeout_ns, skv_probe_fn done, void *ctx);

/* ---- interface of the two programs: sparsekv-probe VERSION SECONDS ---- */
#define SKV_PROBE_PLUGIN_FD 3
#define SKV_PROBE_CASES_FD 4
#define SKV_PROBE_REPORT_FD 5
#define SKV_PROBE_STAGE_BYTES 64  /* at offset 0 of the report: the stage, NUL-terminated */
#define SKV_PROBE_OUTPUT_AT 4096  /* standard output and error */
#define SKV_PROBE_ANSWER_AT 65536 /* JSON */
#define SKV_PROBE_REPORT_MAX (1u << 20)

#endif
