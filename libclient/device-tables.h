/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device-tables.h - a device's copies of page tables. */
#ifndef SKV_CLIENT_DEVICE_TABLES_H
#define SKV_CLIENT_DEVICE_TABLES_H

#include <stdint.h>

struct skv_seq;

/* Nothing is to be done on host memory. */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* its tables were changed outside of a step */
/* Before a step that takes it to `len` tokens: the copy is as the tables are, and has room. */
int device_seq_ready(struct skv_seq *q, uint32_t len);
void device_seq_close(struct skv_seq *q);

#endif
