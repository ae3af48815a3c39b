/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/policies.h - what sessions run, as the operator wants it; how often recall is measured. */
#ifndef SKV_CORE_POLICIES_H
#define SKV_CORE_POLICIES_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_core;
struct skv_core_session_view;

/* Sessions measure recall in one of `every` steps; 0: in none. */
void skv_core_set_recall(struct skv_core *, uint32_t every);

/*
 * Returns the policy to run, with the current generation. A session outside the scope of the last swap gets what it
 * had: same plugin, same spec.
 */
int skv_core_session_policy(struct skv_core *, uint32_t client, uint32_t session, struct skv_msg_policy *ret);
/* Sessions that match all of these. */
struct skv_core_scope {
	uint32_t session, client; /* 0: any */
	uint32_t uid;             /* -1: any */
	const char *model;        /* its name; "": any */
};
bool skv_core_in_scope(const struct skv_core_scope *, const struct skv_core_session_view *);
/* Sets the policy of the sessions in the scope; returns their number. */
uint32_t skv_core_swap(struct skv_core *, const struct skv_core_scope *, const char *spec, uint32_t plugin);
/*
 * The client's answer to what session_policy gave it. error 0: the session runs it. A positive errno and a text: the
 * session stays with its previous policy. Only the answer to the latest policy counts.
 */
int skv_core_policy_ack(struct skv_core *, uint32_t client, uint32_t session, uint64_t generation, int error,
                        const char *text);
uint64_t skv_core_policy_generation(const struct skv_core *);
/* A new id for a policy's file, which no daemon with this state has used before. */
uint32_t skv_core_next_plugin(struct skv_core *);
/*
 * The plugin files of the previous daemon no longer exist. `id_of` returns the new id of a spec's policy; 0: none, and
 * the session keeps the old id.
 */
void skv_core_replace_plugins(struct skv_core *, uint32_t (*id_of)(void *, const char *spec), void *);

#endif
