/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/model.h - the model of a session: what skv_open was given, copied and checked. */
#ifndef SKV_CLIENT_MODEL_H
#define SKV_CLIENT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <sparsekv/types.h>

/*
 * Copy `from`, with its layers and their sinks, to `to`; model_free() frees the copy. -EINVAL with a text, or -ENOMEM.
 */
int model_copy(struct skv_model *to, const struct skv_model *from);
void model_free(struct skv_model *m);

/* Attributes of a layer's softmax; 0 and NULL where it has none. The scale is resolved (never 0). */
float model_scale(const struct skv_model *m, uint32_t layer);
float model_softcap(const struct skv_model *m, uint32_t layer);
const float *model_sinks(const struct skv_model *m, uint32_t layer); /* [n_heads], host memory */

#endif
