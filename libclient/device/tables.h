/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/tables.h - keeps a device's copies of sequences' page tables. */
#ifndef SKV_CLIENT_DEVICE_TABLES_H
#define SKV_CLIENT_DEVICE_TABLES_H

#include <stdint.h>

struct skv_seq;

/* All functions of this header do nothing on host memory. */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* call when the sequence's tables have changed outside of a step */
/* Before a step: n_tokens of the sequence's prompt follow it. The copy of its tables gets room for them at once. */
void device_expect(struct skv_seq *q, uint32_t n_tokens);
/* q->mem becomes NULL if the device had it: the memory is then freed by device_free_closed(). */
void device_seq_close(struct skv_seq *q);

#endif
