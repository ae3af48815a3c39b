/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/attend.h - one layer of a step: append, attend as planned. */
#ifndef SKV_CLIENT_ATTEND_H
#define SKV_CLIENT_ATTEND_H

#include <stdbool.h>
#include <stdint.h>

#include <sparsekv/client.h>

/* The step is laid out: record its layers on a device, if it is time to. */
void attend_begin(struct skv_session *s);
/* Append and attend, as planned; where those that decode have, rows of prompts alone. The arguments have been checked. */
int attend_layer(struct skv_session *s, uint32_t layer, const struct skv_attn *a, bool decoded);

#endif
