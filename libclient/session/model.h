/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/model.h - copies and checks the model that the engine gave to skv_open. */
#ifndef SKV_CLIENT_SESSION_MODEL_H
#define SKV_CLIENT_SESSION_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <sparsekv/types.h>

/* Copy `from`, its layers and their sinks to `to`; model_free() frees the copy. -EINVAL with a text, or -ENOMEM. */
int model_copy(struct skv_model *to, const struct skv_model *from);
void model_free(struct skv_model *m);

#endif
