/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layout.h - a step as the kernels see it. */
#ifndef SKV_CLIENT_LAYOUT_H
#define SKV_CLIENT_LAYOUT_H

#include <stdint.h>

struct pages;
struct skv_session;
struct skv_step_item;

/* Lay the items out for the kernels, those that decode first. Marks the sequences, adds up pages. */
int layout_step(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret);
/* What kernels are told that lengths up to this one do not exceed. */
uint32_t layout_bound(const struct skv_session *s, uint32_t len);

#endif
