/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/tables.h - keeps a device's copies of sequences' page tables. */
#ifndef SKV_CLIENT_DEVICE_TABLES_H
#define SKV_CLIENT_DEVICE_TABLES_H

struct skv_seq;

/* All functions of this header do nothing on host memory. */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* call when the sequence's tables have changed outside of a step */
void device_seq_close(struct skv_seq *q);

#endif
