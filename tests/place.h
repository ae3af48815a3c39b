/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/place.h - where the rows of a step lie: in host memory, or with SKV_TEST_DEVICE=1 on the first CUDA device.
 * So a test of the client library is a test of both.
 */
#ifndef SKV_TEST_PLACE_H
#define SKV_TEST_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include <sparsekv/client.h>

#include "kernels/device.h"

bool place_is_device(void);
/* The device, entered, loaded when first asked for: CUDA does not survive a fork. */
const struct skv_backend *place_device(void);
void *place_stream(void); /* to work on; NULL in host memory */

void *place_get(size_t bytes);
void place_put(void *);
void place_to(void *dst, const void *src, size_t bytes);   /* from host memory; done on return */
void place_from(void *dst, const void *src, size_t bytes); /* to host memory */

/* Rows of a layer as the test makes and reads them, and where the library gets them. */
struct place_rows {
	size_t q_bytes, kv_bytes;
	float *q, *k, *v, *out;
	struct skv_attn placed;
};
struct place_rows place_rows_new(const struct skv_model *m, uint32_t n);
void place_rows_free(struct place_rows *);
/* skv_attend of K and V alone. */
int place_append(struct skv_session *s, uint32_t layer, struct place_rows *r);
/* And of all rows; then r->out is what came out. `in_place`: out is q. */
int place_attend(struct skv_session *s, uint32_t layer, struct place_rows *r, bool in_place);

/* n ids for skv_step_end, in `placed`, which place_get() gave. */
const int32_t *place_ids(int32_t *placed, const int32_t *ids, uint32_t n);

#endif
