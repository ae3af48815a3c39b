/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/probe.h - trying a policy plugin in a child process.
 *
 * The child runs a program of its own, sparsekv-probe, and is not a bare fork: its address space has
 * nothing of the daemon's (no maps of pools, no ring, no locks held), and the parent's exit handlers do
 * not run in it. The program links few libraries, because the dynamic linker would take longer than the
 * rest. It gets three descriptors, and reaches little else (sandbox.h):
 *
 *   3  the plugin, sealed           4  the cases to try, sealed           5  the report
 *
 * The report is a memfd, not a pipe: it needs no reader while the child runs, it cannot fill up, and
 * it says how far the child got even if it is killed: its first bytes are the name of the stage.
 * Standard output and error go into it as well, so a failed assertion is part of the refusal.
 *
 * Case 0 is the plugin itself: block, defaults, plan and hooks with a made-up model. Further cases
 * are models and specs that it is about to be used with.
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
	int error; /* 0; EBADMSG: the plugin; EINVAL: a case; ETIMEDOUT; ECANCELED */
	const char *text;   /* one line when error != 0 */
	const json_t *info; /* what the plugin says of itself when error == 0 */
};
typedef void (*skv_probe_fn)(void *ctx, const struct skv_probe_result *);

/*
 * Start a probe: `plugin_fd` is borrowed until the call returns. `done` is called exactly once, later,
 * and with ECANCELED when the loop is drained first. Negative errno when there is no child.
 */
int skv_probe_start(struct skv_loop *, const char *probe, int plugin_fd, const struct skv_probe_case *cases,
                    uint32_t n_cases, uint64_t timeout_ns, skv_probe_fn done, void *ctx);

/*
 * The path of sparsekv-probe: in the folder of `program`, the daemon's own, where it was built; else where it
 * is installed. Allocated; NULL: no memory.
 */
char *skv_probe_find(const char *program);

/* ---- between the two: sparsekv-probe VERSION SECONDS ---- */
#define SKV_PROBE_PLUGIN_FD 3
#define SKV_PROBE_CASES_FD 4
#define SKV_PROBE_REPORT_FD 5
#define SKV_PROBE_STAGE_BYTES 64  /* at offset 0 of the report: the stage, NUL-terminated */
#define SKV_PROBE_OUTPUT_AT 4096  /* standard output and error */
#define SKV_PROBE_ANSWER_AT 65536 /* JSON */
#define SKV_PROBE_REPORT_MAX (1u << 20)

#endif
