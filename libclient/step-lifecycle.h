/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step-lifecycle.h - a step's end. */
#ifndef SKV_CLIENT_STEP_LIFECYCLE_H
#define SKV_CLIENT_STEP_LIFECYCLE_H

struct skv_session;

void step_free(struct skv_session *s);

#endif
