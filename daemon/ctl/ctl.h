/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/ctl.h - sparsekvctl: one function a command.
 *
 * A command asks the daemon, then prints the reply as JSON (--json) or as a table.
 */
#ifndef SKV_CTL_H
#define SKV_CTL_H

#include <stdbool.h>
#include "daemon/ctl/conn.h"

enum skv_ctl_exit {
	SKV_EXIT_OK = 0,
	SKV_EXIT_REFUSED = 1, /* the daemon refused, or the object does not exist */
	SKV_EXIT_USAGE = 2,
	SKV_EXIT_UNREACHABLE = 3, /* no daemon, or no reply */
};

struct skv_ctl_options {
	const char *socket;
	bool json, all;
	const char *model; /* NULL: not given */
	int64_t uid;      /* -1: not given */
	uint32_t session, client; /* 0: not given */
	long count;       /* -n, 0: not given */
	bool seeded;
	uint64_t seed;    /* policy verify, if seeded */
	uint32_t shape[4]; /* policy verify: layers, q heads, kv heads, head_dim; 0: not given */
	double delay;     /* -d, seconds */
	double timeout;   /* seconds, 0: not given */
	double wait;      /* policy swap: seconds, 0: not given */
	const char *arg;  /* NAME, FILE or SPEC */
};

typedef int (*skv_ctl_command)(struct skv_ctl *, const struct skv_ctl_options *);

int skv_ctl_status(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_pool(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_list(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_drop(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_park(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_resume(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_export(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_seq_import(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_policy_list(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_policy_load(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_policy_swap(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_policy_verify(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_top(struct skv_ctl *, const struct skv_ctl_options *);
int skv_ctl_metrics(struct skv_ctl *, const struct skv_ctl_options *);

/* Finds the named sequence that NAME, --uid and --model mean. Returns an exit status, after printing an error. */
int skv_ctl_which_seq(struct skv_ctl *, const struct skv_ctl_options *, struct skv_msg_seq_of *ret);
/* Prints ctl->err to standard error, and returns the exit status for `error`. */
int skv_ctl_complain(const struct skv_ctl *, int error);
/* Prints a value (consumed) as indented JSON. */
void skv_ctl_print_json(json_t *value);

/*
 * Sums the resident pages of a session's sequences, and the pages that their lengths would take, from the reply to
 * SEQS.
 */
void skv_ctl_sum_pages(const json_t *seqs, uint64_t session, double *ret_resident, double *ret_total);

/* Fields of an object; 0, 0.0 and "" if there is none of that type. */
static inline uint64_t skv_json_u64(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}
static inline double skv_json_num(const json_t *o, const char *key)
{
	const json_t *x = json_object_get(o, key);

	return json_is_true(x) ? 1 : json_number_value(x);
}
static inline const char *skv_json_str(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

#endif
