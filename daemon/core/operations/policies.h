/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/policies.h - policies of sessions, which operators can swap; how often recall is measured. */
#ifndef SKV_CORE_POLICIES_H
#define SKV_CORE_POLICIES_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_core;
struct skv_core_session_view;

/* Makes all sessions measure recall in one of `every` steps; 0: sessions do not measure recall. */
void skv_core_set_recall(struct skv_core *, uint32_t every);

/*
 * Returns the policy that the session has to run, with the current policy generation. A session outside the scope of
 * the last swap gets the plugin and the spec that it had before the swap.
 */
int skv_core_session_policy(struct skv_core *, uint32_t client, uint32_t session, struct skv_msg_policy *ret);
/* The sessions that match all of these fields. */
struct skv_core_scope {
	uint32_t session, client; /* ids; 0: any session, any client */
	uint32_t uid;             /* UID of the session's user; -1: any user */
	const char *model;        /* name of the session's model; "": any model */
};
bool skv_core_in_scope(const struct skv_core_scope *, const struct skv_core_session_view *);
/* Sets the policy of the sessions in the scope; returns the number of these sessions. */
uint32_t skv_core_swap(struct skv_core *, const struct skv_core_scope *, const char *spec, uint32_t plugin);
/*
 * The client's answer to the policy that skv_core_session_policy() gave it. error 0: the session runs the policy. A
 * positive errno, with a text: the session stays with its previous policy. Only the answer to the policy that was given
 * last counts.
 */
int skv_core_policy_ack(struct skv_core *, uint32_t client, uint32_t session, uint64_t generation, int error,
                        const char *text);
uint64_t skv_core_policy_generation(const struct skv_core *);
/* Returns a new id for a policy's file, which no daemon with this state has used before. */
uint32_t skv_core_next_plugin(struct skv_core *);
/*
 * Replaces the plugin ids of all sessions after a restart, because the plugin files of the previous daemon no longer
 * exist. `id_of` returns the new id of the policy of a spec; 0: there is none, and the session keeps the old id.
 */
void skv_core_replace_plugins(struct skv_core *, uint32_t (*id_of)(void *, const char *spec), void *);

#endif
