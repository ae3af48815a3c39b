/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/model.h - the model of a session: what skv_open was given, copied and checked. */
#ifndef SKV_CLIENT_MODEL_H
#define SKV_CLIENT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <sparsekv/types.h>

/* Copies `from` with its layers and their sinks into `to`; model_free() takes the copy. -EINVAL with a text, -ENOMEM. */
int model_copy(struct skv_model *to, const struct skv_model *from);
void model_free(struct skv_model *m);

/* What a layer's softmax has, in the model's own words: 0 and NULL where it has none. The scale is resolved. */
float model_scale(const struct skv_model *m, uint32_t layer);
float model_softcap(const struct skv_model *m, uint32_t layer);
const float *model_sinks(const struct skv_model *m, uint32_t layer); /* [n_heads], host memory */

#endif
