/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/scratch.h - scratch memory of a session's steps. It grows when a step begins, and nowhere else. */
#ifndef SKV_CLIENT_SCRATCH_H
#define SKV_CLIENT_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

struct skv_session;

#define SCRATCH_ROUND 1024u /* tokens; rounded, so that scratch does not grow at each page */

/* Ensure at least `need` bytes of the session's memory. If it grows, the contents are lost. */
int scratch_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
/* Workspace of the kernels for the step, which is laid out. */
int scratch_prepare(struct skv_session *s);
/* Bytes of workspace that decoding one of its policy batches needs. */
size_t scratch_of_batch(const struct skv_session *s, uint32_t batch);

#endif
