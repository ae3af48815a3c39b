/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/place.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture.h"

static const struct skv_backend *device;
static void *stream;

bool place_is_device(void)
{
	const char *on = getenv("SKV_TEST_DEVICE");

	return on && !strcmp(on, "1");
}

static void ok(int r)
{
	ck_assert_msg(r == 0, "%s", device->error());
}

const struct skv_backend *place_device(void)
{
	char why[512];
	void *was;

	if (!device) {
		setenv("SPARSEKV_CUDA_MODULE", fix_built("kernels/cuda/libsparsekv-cuda.so"), 0);
		device = skv_backend_cuda(why, sizeof(why));
		ck_assert_msg(device != NULL, "%s", why);
		ok(device->enter(0, &was));
		ok(device->stream_new(&stream));
	}
	return device;
}

void *place_stream(void)
{
	if (place_is_device())
		place_device();
	return stream;
}

void *place_get(size_t bytes)
{
	void *p;

	if (!place_is_device())
		return calloc(1, bytes);
	ok(place_device()->alloc(bytes, &p));
	return p;
}

void place_put(void *p)
{
	if (!place_is_device())
		free(p);
	else
		ok(place_device()->free(p));
}

void place_to(void *dst, const void *src, size_t bytes)
{
	if (!place_is_device()) {
		memcpy(dst, src, bytes);
		return;
	}
	ok(place_device()->copy(dst, src, bytes, stream));
	ok(device->wait(stream));
}

void place_from(void *dst, const void *src, size_t bytes)
{
	place_to(dst, src, bytes);
}

struct place_rows place_rows_new(const struct skv_model *m, uint32_t n)
{
	struct place_rows r = {.q_bytes = (size_t)n * m->n_heads * m->head_dim * sizeof(float),
	                       .kv_bytes = (size_t)n * m->n_kv_heads * m->head_dim * sizeof(float)};

	r.q = calloc(1, r.q_bytes);
	r.k = calloc(1, r.kv_bytes);
	r.v = calloc(1, r.kv_bytes);
	r.out = calloc(1, r.q_bytes);
	r.placed = (struct skv_attn){.q = place_get(r.q_bytes),
	                             .k = place_get(r.kv_bytes),
	                             .v = place_get(r.kv_bytes),
	                             .out = place_get(r.q_bytes)};
	return r;
}

void place_rows_free(struct place_rows *r)
{
	free(r->q);
	free(r->k);
	free(r->v);
	free(r->out);
	place_put((void *)r->placed.q);
	place_put((void *)r->placed.k);
	place_put((void *)r->placed.v);
	place_put(r->placed.out);
}

int place_attend(struct skv_session *s, uint32_t layer, struct place_rows *r, bool in_place)
{
	struct skv_attn a = r->placed;
	int e;

	if (in_place)
		a.out = (void *)a.q;
	place_to((void *)a.q, r->q, r->q_bytes);
	place_to((void *)a.k, r->k, r->kv_bytes);
	place_to((void *)a.v, r->v, r->kv_bytes);
	e = skv_attend(s, layer, &a);
	if (e == 0)
		place_from(r->out, a.out, r->q_bytes);
	return e;
}

int place_append(struct skv_session *s, uint32_t layer, struct place_rows *r)
{
	const struct skv_attn a = {.k = r->placed.k, .v = r->placed.v};

	place_to((void *)a.k, r->k, r->kv_bytes);
	place_to((void *)a.v, r->v, r->kv_bytes);
	return skv_attend(s, layer, &a);
}

const int32_t *place_ids(int32_t *placed, const int32_t *ids, uint32_t n)
{
	place_to(placed, ids, n * sizeof(*ids));
	return placed;
}
