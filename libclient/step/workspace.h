/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/workspace.h - the number of threads of a step's host kernels. */
#ifndef SKV_CLIENT_STEP_WORKSPACE_H
#define SKV_CLIENT_STEP_WORKSPACE_H

struct skv_session;

/* Take the number of threads that skv_set_threads() has set, before anything of a step or of maintenance is laid out. */
void step_threads(struct skv_session *s);

#endif
