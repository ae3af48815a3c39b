/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ctl/act.c - the commands of sparsekvctl that change state: seq drop, policy load, policy swap. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/ctl/ctl.h"

/*
 * Finds the sequence that the argument and the options name. If several models have a sequence of this name, prints an
 * error that asks for --model.
 */
static int find_seq(struct skv_ctl *ctl, const struct skv_ctl_options *o, struct skv_msg_seq_of *ret)
{
	uint32_t uid = o->uid >= 0 ? (uint32_t)o->uid : (uint32_t)getuid();
	json_t *answer, *row;
	unsigned found = 0;
	size_t i;
	int r;

	ret->uid = uid;
	skv_wire_string(ret->name, sizeof(ret->name), o->arg);
	if (o->model) {
		skv_wire_string(ret->model, sizeof(ret->model), o->model);
		return 0;
	}
	r = skv_ctl_query(ctl, SKV_QUERY_SEQS, &answer);
	if (r < 0)
		return r;
	json_array_foreach(json_object_get(answer, "sequences"), i, row) {
		const char *model = skv_json_str(row, "model");

		if (skv_json_u64(row, "uid") != uid || strcmp(skv_json_str(row, "name"), o->arg) != 0 ||
		    (found && !strcmp(model, ret->model)))
			continue; /* the sequences of the ranks of one model count as one sequence */
		skv_wire_string(ret->model, sizeof(ret->model), model);
		found++;
	}
	json_decref(answer);
	if (found == 1)
		return 0;
	if (found)
		snprintf(ctl->err, sizeof(ctl->err),
		         "user %u has sequences %s of %u models: say which with --model", uid, o->arg, found);
	else
		snprintf(ctl->err, sizeof(ctl->err), "user %u has no sequence %s", uid, o->arg);
	return -ENOENT;
}

static int bad_name(const char *got, const char *what, const char *besides)
{
	fprintf(stderr, "sparsekvctl: got \"%s\", expected %s: 1 to %u printable characters but space%s\n", got, what,
	        SKV_NAME_MAX - 1, besides);
	return SKV_EXIT_USAGE;
}

int skv_ctl_which_seq(struct skv_ctl *ctl, const struct skv_ctl_options *o, struct skv_msg_seq_of *ret)
{
	int r;

	*ret = (struct skv_msg_seq_of){0};
	if (!skv_name_valid(o->arg) && !skv_prefix_name_valid(o->arg))
		return bad_name(o->arg, "a name", ", '/'");
	if (o->model && !skv_model_name_valid(o->model))
		return bad_name(o->model, "a model's name", "");
	r = find_seq(ctl, o, ret);
	return r < 0 ? skv_ctl_complain(ctl, r) : SKV_EXIT_OK;
}

int skv_ctl_seq_drop(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	struct skv_msg_seq_of m;
	json_t *answer;
	int r = skv_ctl_which_seq(ctl, o, &m);

	if (r != SKV_EXIT_OK)
		return r;
	r = skv_ctl_ask(ctl, SKV_MSG_SEQ_DROP_NAME, &m, sizeof(m), -1, &answer);
	if (r < 0)
		return skv_ctl_complain(ctl, r);
	if (o->json) {
		skv_ctl_print_json(answer);
		return SKV_EXIT_OK;
	}
	printf("dropped %s of model %s, user %u\n", m.name, m.model, m.uid);
	json_decref(answer);
	return SKV_EXIT_OK;
}

int skv_ctl_policy_load(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	SKV_FD_CLEANUP int fd = open(o->arg, O_RDONLY | O_CLOEXEC), sealed = -1;
	const char *slash = strrchr(o->arg, '/'), *why;
	struct skv_msg_name m = {0};
	json_t *answer, *policy;
	uint64_t old;
	int r;

	if (fd < 0) {
		fprintf(stderr, "sparsekvctl: %s: %s\n", o->arg, strerror(errno));
		return SKV_EXIT_REFUSED;
	}
	sealed = skv_memfd_copy_sealed("sparsekv-policy", fd, SKV_PLUGIN_BYTES_MAX);
	if (sealed < 0) {
		fprintf(stderr, "sparsekvctl: %s: %s\n", o->arg,
		        sealed == -EINVAL ? "expected a regular file of 1 byte to 16 MiB" : strerror(-sealed));
		return SKV_EXIT_REFUSED;
	}
	skv_wire_string(m.name, sizeof(m.name), slash ? slash + 1 : o->arg);
	r = skv_ctl_ask(ctl, SKV_MSG_POLICY_LOAD, &m, sizeof(m), sealed, &answer);
	if (r < 0) {
		fprintf(stderr, "sparsekvctl: policy file %s is refused\n", o->arg);
		return skv_ctl_complain(ctl, r);
	}
	if (o->json) {
		skv_ctl_print_json(answer);
		return SKV_EXIT_OK;
	}
	policy = json_object_get(answer, "policy");
	old = skv_json_u64(answer, "sessions_on_replaced");
	why = json_string_value(json_object_get(policy, "not_rehearsed"));
	printf("loaded %s %s: new sessions get it\n", skv_json_str(policy, "name"),
	       skv_json_str(policy, "version"));
	if (old)
		printf("%llu sessions go on with what it replaces, until `sparsekvctl policy swap`\n",
		       (unsigned long long)old);
	if (why)
		printf("its hooks could not be rehearsed with defaults alone: %s\n", why);
	json_decref(answer);
	return SKV_EXIT_OK;
}

/* Result of a swap: numbers of sessions that run the new policy, have refused it, or have not adopted it yet. */
struct outcome {
	unsigned done, refused, pending;
	char why[SKV_TEXT_MAX]; /* reason of the first session that refused the policy */
};

static int look(struct skv_ctl *ctl, const json_t *swapped, struct outcome *ret)
{
	uint64_t generation = skv_json_u64(swapped, "generation"), plugin = skv_json_u64(swapped, "plugin");
	json_t *answer, *row;
	size_t i;
	int r = skv_ctl_query(ctl, SKV_QUERY_SESSIONS, &answer);

	if (r < 0)
		return r;
	memset(ret, 0, sizeof(*ret));
	json_array_foreach(json_object_get(answer, "sessions"), i, row) {
		const char *error = skv_json_str(row, "error");

		if (skv_json_u64(row, "generation") != generation)
			continue; /* the session was opened after the swap, or the swap did not select it */
		if (skv_json_u64(row, "running_generation") < generation)
			ret->pending++;
		else if (skv_json_u64(row, "plugin") == plugin && !*error)
			ret->done++;
		else if (!ret->refused++)
			snprintf(ret->why, sizeof(ret->why), "session %llu: %s",
			         (unsigned long long)skv_json_u64(row, "session"), error);
	}
	json_decref(answer);
	return 0;
}

/*
 * Waits until every session has adopted or refused the new policy, but at most for `seconds`. Returns an exit status.
 */
static int wait_for_sessions(struct skv_ctl *ctl, const json_t *swapped, double seconds)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	struct timespec now, begin;
	struct outcome o;
	double waited;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		int r = look(ctl, swapped, &o);

		if (r < 0)
			return skv_ctl_complain(ctl, r);
		if (o.pending)
			nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		waited = (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9;
	} while (o.pending && waited < seconds);
	if (o.refused)
		fprintf(stderr, "sparsekvctl: %u sessions refused the policy and keep their old one; %s\n",
		        o.refused, o.why);
	if (o.pending)
		fprintf(stderr, "sparsekvctl: %u sessions made no step in %.1f s and have not switched yet\n",
		        o.pending, waited);
	return o.refused || o.pending ? SKV_EXIT_REFUSED : SKV_EXIT_OK;
}

int skv_ctl_policy_swap(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	struct skv_msg_policy_swap m = {.all = o->all, .session = o->session, .client = o->client,
	                                .uid = o->uid >= 0 ? (uint32_t)o->uid : UINT32_MAX};
	json_t *answer;
	int r;

	if (o->model && !skv_model_name_valid(o->model))
		return bad_name(o->model, "a model's name", "");
	skv_wire_string(m.model, sizeof(m.model), o->model);
	skv_wire_string(m.spec, sizeof(m.spec), o->arg);
	if (strcmp(m.spec, o->arg) != 0) {
		fprintf(stderr,
		        "sparsekvctl: got \"%s\", expected a spec of at most %u printable characters\n",
		        m.spec, SKV_SPEC_MAX - 1);
		return SKV_EXIT_USAGE;
	}
	r = skv_ctl_ask(ctl, SKV_MSG_POLICY_SWAP, &m, sizeof(m), -1, &answer);
	if (r < 0)
		return skv_ctl_complain(ctl, r);
	if (o->json)
		skv_ctl_print_json(json_incref(answer));
	else
		printf("%llu sessions will switch to %s, each at its next step\n",
		       (unsigned long long)skv_json_u64(answer, "sessions"), m.spec);
	fflush(stdout);
	r = o->wait > 0 ? wait_for_sessions(ctl, answer, o->wait) : SKV_EXIT_OK;
	json_decref(answer);
	return r;
}
