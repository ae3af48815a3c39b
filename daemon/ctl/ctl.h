/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/ctl.h - the commands of sparsekvctl, one function for each.
 *
 * A command sends a request to the daemon, then prints the reply as JSON (--json) or as a table.
 */
#ifndef SKV_CTL_H
#define SKV_CTL_H

#include <stdbool.h>
#include "daemon/ctl/conn.h"

enum skv_ctl_exit {
	SKV_EXIT_OK = 0,
	SKV_EXIT_REFUSED = 1, /* the daemon refused, or the object does not exist */
	SKV_EXIT_USAGE = 2,
	SKV_EXIT_UNREACHABLE = 3, /* no daemon listens on the socket, or it did not reply */
};

struct skv_ctl_options {
	const char *socket;
	bool json, all;
	const char *model; /* option --model; NULL: not given */
	int64_t uid;      /* option --uid; -1: not given */
	uint32_t session, client; /* options --session, --client; 0: not given */
	long count;       /* option -n; 0: not given */
	bool seeded;
	uint64_t seed;    /* seed of `policy verify`, if `seeded` */
	uint32_t shape[4]; /* shape for `policy verify`: layers, q heads, kv heads, head_dim; 0: not given */
	double delay;     /* option -d, in seconds */
	double timeout;   /* seconds to wait for a reply; 0: not given */
	double wait;      /* seconds that `policy swap` waits for sessions; 0: not given */
	const char *arg;  /* argument of the command: a NAME, FILE or SPEC */
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

/*
 * Finds the sequence that the argument NAME and the options --uid and --model name. Prints an error if there is none,
 * or more than one. Returns an exit status.
 */
int skv_ctl_which_seq(struct skv_ctl *, const struct skv_ctl_options *, struct skv_msg_seq_of *ret);
/* Prints ctl->err to standard error, and returns the exit status for `error`. */
int skv_ctl_complain(const struct skv_ctl *, int error);
/* Prints a value (consumed) as indented JSON. */
void skv_ctl_print_json(json_t *value);

/*
 * Sums over the sequences of a session, from the reply to SKV_QUERY_SEQS: the pages that are in memory, and the pages
 * that the sequences would have at their lengths if no page had been evicted.
 */
void skv_ctl_sum_pages(const json_t *seqs, uint64_t session, double *ret_resident, double *ret_total);

/*
 * Return a field of a JSON object as a number or string; 0, 0.0 or "" if the object has no field of this name and type.
 */
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
