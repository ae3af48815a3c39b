/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/attend.h - one layer of a step: append, then attend as planned. */
#ifndef SKV_CLIENT_STEP_ATTEND_H
#define SKV_CLIENT_STEP_ATTEND_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

/* Append and attend as planned; with `decoded` only rows of prompts. The arguments must be checked. */
int attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool decoded);

#endif
