/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/policy-verify.c - the command policy verify: as a client of the daemon, decodes random sequences under a loaded
 * policy, and compares what the policy attends to with the oracle (tests/oracle/).
 */
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "daemon/ctl/ctl.h"
#include "tests/oracle/verify.h"

#define CASES 300 /* number of random cases, if the option -n is not given */

static uint64_t some_seed(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_nsec * 10; /* the oracle begins with short sequences if the seed's last digit is 0 */
}

static void print_table(const struct verify *v)
{
	printf("%s: %u cases on %u models, seed %llu; in %u cases a layer left something out\n", v->spec, v->done,
	       v->rounds, (unsigned long long)v->seed, v->sparse);
	printf("  units       %s: %llu lists, %llu of them equal up to rounding\n",
	       v->known ? "those that the oracle finds, and its evictions"
	                : "ascending, within the budget, the newest token among them (not known to the oracle)",
	       (unsigned long long)v->lists, (unsigned long long)v->unsure);
	printf("  output      attention over exactly these, within %.1e%s\n", v->worst,
	       v->unchecked ? "; not checked where some of them are compressed" : "");
	printf("  counters    of the tokens in them\n");
	printf("  repetition  the same units and output alone and in other batches\n");
	printf("  adoption    of sequences of full and streaming, and by them: %u models\n", v->adopted);
	puts(*v->bad ? "failed" : "passed");
}

static void print_json(const struct verify *v)
{
	skv_ctl_print_json(json_pack("{ss sb sI sI sI sI sI sI sI sf sb ss sI}", "spec", v->spec, "passed", !*v->bad,
	                             "cases", (json_int_t)v->done, "models", (json_int_t)v->rounds, "adopted",
	                             (json_int_t)v->adopted, "sparse", (json_int_t)v->sparse, "lists",
	                             (json_int_t)v->lists, "unsure", (json_int_t)v->unsure, "seed", (json_int_t)v->seed,
	                             "worst", v->worst, "oracle", (int)v->known, "failed", v->bad, "failed_seed",
	                             (json_int_t)(*v->bad ? v->bad_seed : 0)));
}

int skv_ctl_policy_verify(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	struct verify v = {.spec = o->arg, .seed = o->seeded ? o->seed : some_seed(), .backend = &verify_on_host};
	struct skv_model shape = {.n_layers = o->shape[0], .n_heads = o->shape[1], .n_kv_heads = o->shape[2],
	                          .head_dim = o->shape[3]};
	char model[SKV_NAME_MAX];
	int e;

	v.shape = shape.n_layers > 0 ? &shape : NULL;
	v.cases = o->count > 0 ? (uint32_t)o->count : CASES;
	v.model = model;
	snprintf(model, sizeof(model), "verify-%d", (int)getpid());
	e = skv_connect(&v.client, o->socket);
	if (e < 0) {
		snprintf(ctl->err, sizeof(ctl->err), "%s", skv_last_error());
		return skv_ctl_complain(ctl, e);
	}
	verify_policy(&v);
	skv_disconnect(v.client);
	if (o->json)
		print_json(&v);
	else
		print_table(&v);
	fflush(stdout);
	if (!*v.bad)
		return SKV_EXIT_OK;
	fprintf(stderr, "sparsekvctl: policy %s failed the verification: %s\n", v.spec, v.bad);
	fprintf(stderr, "sparsekvctl: repeat the case that failed with --seed %llu\n", (unsigned long long)v.bad_seed);
	return SKV_EXIT_REFUSED;
}
