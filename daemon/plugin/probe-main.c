/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/probe-main.c - sparsekv-probe, the program that tries a plugin. See probe.h.
 *
 * The plugin may make the program die anywhere, so the program writes the name of each stage to the report before the
 * stage begins. It ends with _exit(2), so that destructors and exit handlers of the plugin do not run, because failures
 * in them could not be reported.
 */
#include <config.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/process.h"
#include "common/spec.h"
#include "daemon/plugin/probe.h"
#include "daemon/plugin/sandbox.h"
#include "daemon/sys/json.h"

/* A model of a common shape, with which policies are rehearsed before any engine has connected. */
static const struct skv_model made_up = {
	.size = sizeof(made_up),
	.n_layers = 32,
	.n_heads = 32,
	.n_kv_heads = 8,
	.head_dim = 128,
	.kv_dtype = SKV_BF16,
	.max_tokens = 32768,
	.n_ranks = 1,
	.name = "probe",
};

static void stage(const char *what)
{
	char text[SKV_PROBE_STAGE_BYTES] = "";

	snprintf(text, sizeof(text), "%s", what);
	(void)!pwrite(SKV_PROBE_REPORT_FD, text, sizeof(text), 0);
}

static int answer(json_t *value)
{
	char *text = skv_json_text(value, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0;

	return len && pwrite(SKV_PROBE_REPORT_FD, text, len, SKV_PROBE_ANSWER_AT) == (ssize_t)len ? 0 : 1;
}

static int refuse(int error, const char *text)
{
	return answer(json_pack("{s:s, s:i}", "error", text, "errno", error));
}

#define WORD(table, i) ((i) < sizeof(table) / sizeof(*(table)) ? (table)[i] : "?")

/*
 * Describes a parameter in JSON. The `def` field of a choice is the list of its words; the first word is the default.
 */
static json_t *describe_param(const struct skv_param *q)
{
	static const char *const types[] = {"?", "budget", "uint", "float", "bool", "layers", "choice", "profile"};
	bool choice = q->type == SKV_PARAM_CHOICE;
	json_t *def = !q->def ? NULL : json_stringn(q->def, choice ? strcspn(q->def, ",") : strlen(q->def));

	return json_pack("{s:s, s:s, s:o?, s:s, s:s*}", "name", q->name, "type", WORD(types, q->type), "default", def,
	                 "help", q->help, "choices", choice ? q->def : NULL);
}

static json_t *describe(const struct skv_policy *p, const char *not_rehearsed, const char *lacks)
{
	static const char *const actions[] = {"none", "visibility", "evict", "compress"};
	static const char *const granularities[] = {"token", "page"};
	static const char *const evidences[] = {"none", "position", "keys", "query", "weights"};
	static const char *const scopes[] = {"request", "step", "layer"};
	static const char *const sharings[] = {"all-heads", "kv-head", "q-head"};
	json_t *params = json_array();

	for (uint32_t i = 0; i < p->n_params; i++)
		json_array_append_new(params, describe_param(&p->params[i]));
	return json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:s?, s:s, s:o}", "name",
	                 p->name, "version", p->version, "summary", p->summary, "abi", (int)p->abi, "action",
	                 WORD(actions, p->action), "granularity", WORD(granularities, p->granularity),
	                 "evidence", WORD(evidences, p->evidence), "scope", WORD(scopes, p->scope), "sharing",
	                 WORD(sharings, p->sharing), "state_bytes", (int)p->seq_state_bytes, "state_version",
	                 (int)p->state_version, "not_rehearsed", not_rehearsed, "sandbox_lacks", lacks, "params",
	                 params);
}

static int try_cases(const struct skv_policy *p, char *text, size_t len)
{
	const struct skv_probe_case *cases;
	struct stat st;
	void *map;
	int r = 0;

	if (fstat(SKV_PROBE_CASES_FD, &st) < 0)
		return -errno;
	if (!st.st_size)
		return 0;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, SKV_PROBE_CASES_FD, 0);
	if (map == MAP_FAILED)
		return -errno;
	cases = map;
	for (size_t i = 0; r == 0 && i < (size_t)st.st_size / sizeof(*cases); i++) {
		char why[SKV_TEXT_MAX] = "";

		stage("its hooks, with a session's model");
		r = skv_policy_rehearse(p, cases[i].spec, &cases[i].model, why, sizeof(why));
		if (r < 0)
			snprintf(text, len, "with model %s: %.400s", cases[i].model.name, why);
	}
	munmap(map, (size_t)st.st_size);
	return r;
}

static int probe(const char *version, unsigned seconds)
{
	char text[SKV_TEXT_MAX] = "", not_rehearsed[SKV_TEXT_MAX] = "", lacks[128];
	const struct skv_policy *p;
	void *handle;
	int r;

	stage("the sandbox, before it was loaded");
	if (strcmp(version, PACKAGE_VERSION) != 0) {
		snprintf(text, sizeof(text), "sparsekv-probe is version " PACKAGE_VERSION ", and the daemon %.64s: restart the daemon", version);
		return refuse(ENOEXEC, text);
	}
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	r = skv_sandbox_enter(seconds, SKV_PROBE_REPORT_MAX, lacks, sizeof(lacks));
	if (r < 0) {
		snprintf(text, sizeof(text), "the sandbox of the probe cannot be set up: %s", strerror(-r));
		return refuse(-r, text);
	}

	stage("its constructor or sparsekv_policy()");
	r = skv_policy_dlopen(SKV_PROBE_PLUGIN_FD, &p, &handle, text, sizeof(text));
	if (r < 0)
		return refuse(-r, text);
	stage("its hooks, with defaults and a made-up model");
	r = skv_policy_rehearse(p, NULL, &made_up, text, sizeof(text));
	/* the policy has a parameter without a default, and is rehearsed when a spec gives its value */
	if (r == -EINVAL)
		snprintf(not_rehearsed, sizeof(not_rehearsed), "%s", text);
	else if (r < 0)
		return refuse(-r, text);
	r = try_cases(p, text, sizeof(text));
	if (r < 0)
		return refuse(-r, text);
	stage("the report");
	return answer(describe(p, *not_rehearsed ? not_rehearsed : NULL, lacks));
}

int main(int argc, char **argv)
{
	if (argc != 3 || fcntl(SKV_PROBE_REPORT_FD, F_GETFD) < 0) {
		fputs("sparsekv-probe: sparsekvd runs this program to try a policy file; it has no use of its own\n", stderr);
		return EXIT_FAILURE;
	}
	skv_process_conceal(); /* the cases have names of users' models */
	(void)setpriority(PRIO_PROCESS, 0, 0); /* gives up the priority of the daemon, which may have been raised */
	_exit(probe(argv[1], (unsigned)strtoul(argv[2], NULL, 10)));
}
