/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the functions of a backend (engine/backend.h) against double precision: on the host, and on a device if there
 * is one, with rows and matrices in fp32 and in bf16. Inputs are exact in bf16, so that all compute with the same
 * numbers.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/ops.h"
#include "tests/support/engine-backends.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

/* Returns the error that rounding a result to this type may add. */
static double rounding(uint32_t dtype, double x)
{
	return dtype == SKV_BF16 ? fabs(x) / 256 : 0;
}

/* Checks y = x w' + bias (NULL: none) for x of n rows, within `off`. */
static void try_matmul(const struct at *at, const float *x, const float *w, const float *bias, uint32_t dtype,
                       uint32_t n, uint32_t in, uint32_t out, double off)
{
	void *x_ = backend_give(at, x, n * in, dtype), *w_ = backend_give(at, w, out * in, dtype);
	void *bias_ = bias ? backend_give(at, bias, out, SKV_F32) : NULL;
	void *y_ = backend_give(at, NULL, n * out, SKV_F32);
	float *y;

	at->place->ops->matmul(at->place, y_, x_, w_, bias_, dtype, n, in, out);
	y = backend_take(at, y_, n * out, SKV_F32);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t o = 0; o < out; o++) {
			double want = bias ? bias[o] : 0;

			for (uint32_t i = 0; i < in; i++)
				want += (double)x[r * in + i] * w[o * in + i];
			ck_assert_double_eq_tol(y[r * out + o], want, off);
		}
	backend_put_back(at, x_);
	backend_put_back(at, w_);
	backend_put_back(at, bias_);
	backend_put_back(at, y_);
	free(y);
}

START_TEST(matmul)
{
	static const uint32_t rows[] = {1, 2, 3, 4, 5, 16, 33, 130},
			      shapes[][2] = {{16, 16}, {48, 7}, {256, 264}, {33, 50}};
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++)
		for (size_t c = 0; c < 4 * 8; c++) {
			uint32_t in = shapes[c / 8][0], out = shapes[c / 8][1], n = rows[c % 8];
			float *x = backend_random(n * in, 1), *w = backend_random(out * in, 1);
			float *bias = backend_random(out, 4);

			try_matmul(&at[a], x, w, NULL, at[a].dtype, n, in, out, 1e-4);
			try_matmul(&at[a], x, w, bias, at[a].dtype, n, in, out, 1e-4);
			free(x);
			free(w);
			free(bias);
		}
}
END_TEST

/* fp32 products are computed in fp32: a shorter format (TF32, bf16) would exceed the tolerance. */
START_TEST(matmul_is_fp32)
{
	enum { IN = 64, OUT = 32, ROWS = 40 };
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at && at[a].dtype == SKV_F32; a++)
		for (uint32_t n = 1; n <= ROWS; n += 13) {
			float x[ROWS * IN], w[OUT * IN];

			for (unsigned i = 0; i < ROWS * IN; i++)
				x[i] = (float)(2 * rnd_unit() - 1);
			for (unsigned i = 0; i < OUT * IN; i++)
				w[i] = (float)(2 * rnd_unit() - 1);
			try_matmul(&at[a], x, w, NULL, SKV_F32, n, IN, OUT, 5e-6);
		}
}
END_TEST

/* One call of add_norm, with or without an addend and a list of rows. */
static void try_add_norm(const struct at *at, uint32_t rows, uint32_t n, bool adds, bool moves)
{
	uint32_t all = moves ? 2 * rows + 1 : rows;
	float *x = backend_random(all * n, 4), *y = backend_random(all * n, 2), *w = backend_random(n, 2), *out,
	      *sum;
	void *x_ = backend_give(at, x, all * n, SKV_F32), *y_ = backend_give(at, y, all * n, SKV_F32);
	void *w_ = backend_give(at, w, n, SKV_F32), *out_ = backend_give(at, NULL, rows * n, at->dtype), *from_;
	uint32_t from[rows];
	const double off = 4e-6 + 2e-9 * n; /* for squares summed in fp32, one after the other without vectors */

	for (uint32_t r = 0; r < rows; r++)
		from[r] = moves ? 2 * r + 1 : r;
	from_ = backend_give_bytes(at, from, sizeof(from));
	at->place->ops->add_norm(at->place, out_, at->dtype, x_, adds ? y_ : NULL, w_, 1e-5f,
	                         moves ? from_ : NULL, rows, n);
	out = backend_take(at, out_, rows * n, at->dtype);
	sum = backend_take(at, x_, all * n, SKV_F32);
	for (uint32_t r = 0; r < rows; r++) {
		const float *row = x + from[r] * n, *add = y + from[r] * n;
		double squares = 0;

		for (uint32_t i = 0; i < n; i++) {
			float e = adds ? row[i] + add[i] : row[i];

			ck_assert(sum[from[r] * n + i] == e);
			squares += (double)e * e;
		}
		for (uint32_t i = 0; i < n; i++) {
			double want = sum[from[r] * n + i] / sqrt(squares / n + 1e-5) * w[i];

			ck_assert_double_eq_tol(out[r * n + i], want,
			                        off * (1 + fabs(want)) + rounding(at->dtype, want));
		}
	}
	backend_put_back(at, x_);
	backend_put_back(at, y_);
	backend_put_back(at, w_);
	backend_put_back(at, out_);
	backend_put_back(at, from_);
	free(x);
	free(y);
	free(w);
	free(out);
	free(sum);
}

START_TEST(add_norm)
{
	static const uint32_t shapes[][2] = {{1, 1}, {3, 17}, {1, 1536}, {200, 256}};
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++)
		for (unsigned c = 0; c < 4 * 4; c++)
			try_add_norm(&at[a], shapes[c / 4][0], shapes[c / 4][1], c & 1, c & 2);
}
END_TEST

START_TEST(swiglu)
{
	static const float special[] = {0,     -0.0f,  1e-30f, -1e-30f, 20,   -20,   86.9f, -86.9f,
	                                87.1f, -87.1f, 88,     -88,     1e4f, -1e4f, 3e38f, -3e38f};
	const uint32_t n = 1000, rows = 40, n_special = sizeof(special) / sizeof(*special);
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		float *x = backend_random(rows * 2 * n, 32), *y;
		void *x_, *y_ = backend_give(&at[a], NULL, rows * n, at[a].dtype);

		memcpy(x, special, sizeof(special));
		for (uint32_t i = 0; i < n_special; i++)
			x[n + i] = 0.5f;
		x_ = backend_give(&at[a], x, rows * 2 * n, SKV_F32);
		at[a].place->ops->swiglu(at[a].place, y_, at[a].dtype, x_, rows, n);
		y = backend_take(&at[a], y_, rows * n, at[a].dtype);
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t i = 0; i < n; i++) {
				double g = x[r * 2 * n + i], want = g / (1 + exp(-g)) * x[r * 2 * n + n + i];

				ck_assert_msg(fabs(y[r * n + i] - want) <=
				                      1e-6 * fabs(want) + 1e-30 + rounding(at[a].dtype, want),
				              "silu(%g) gives %g, expected %g", g, (double)y[r * n + i],
				              want);
			}
		backend_put_back(&at[a], x_);
		backend_put_back(&at[a], y_);
		free(x);
		free(y);
	}
}
END_TEST

enum {
	HEADS = 6,
	KV_HEADS = 2,
	DIM_MOST = 80,
	ROWS = 300,
	POSITIONS = 4000
};

/* Inputs of rope_split(). */
struct rope_case {
	uint32_t dim;
	const float *q_norm, *k_norm; /* [dim], or NULL */
	const float *table;
	uint32_t position[ROWS];
	float *in; /* [ROWS][HEADS + 2 KV_HEADS][dim] */
};

/* Checks one head of one row: normed by `weight` (NULL: not) and rotated by the position; v is unchanged. */
static void check_head(const struct at *at, const struct rope_case *c, const float *to, const float *head,
                       const float *weight, uint32_t position, bool turned)
{
	double from[DIM_MOST], squares = 0;

	for (uint32_t i = 0; i < c->dim; i++)
		squares += (double)head[i] * head[i];
	for (uint32_t i = 0; i < c->dim; i++)
		from[i] = weight ? head[i] / sqrt(squares / c->dim + 1e-5) * weight[i] : head[i];
	for (uint32_t i = 0; i < c->dim / 2; i++) {
		double angle = turned ? position * pow(500000, -2.0 * i / c->dim) : 0, cosine = cos(angle),
		       sine = sin(angle);
		double a = from[i] * cosine - from[c->dim / 2 + i] * sine,
		       b = from[c->dim / 2 + i] * cosine + from[i] * sine;
		/* the angle is rounded to fp32: at 4,000 the error is up to 1.2e-4 */
		double slack = turned ? weight ? 2.4e-3 : 8e-4 : 0;

		ck_assert_double_le(fabs(to[i] - a), slack + rounding(at->dtype, a));
		ck_assert_double_le(fabs(to[c->dim / 2 + i] - b), slack + rounding(at->dtype, b));
	}
}

static void try_rope(const struct at *at, const struct rope_case *c)
{
	const size_t nq = (size_t)ROWS * HEADS * c->dim, nkv = (size_t)ROWS * KV_HEADS * c->dim;
	const uint32_t width = (HEADS + 2 * KV_HEADS) * c->dim, d = c->dim;
	void *q_ = backend_give(at, NULL, nq, at->dtype), *k_ = backend_give(at, NULL, nkv, at->dtype);
	void *v_ = backend_give(at, NULL, nkv, at->dtype);
	void *in_ = backend_give(at, c->in, (size_t)ROWS * width, SKV_F32);
	void *table_ = backend_give(at, c->table, (size_t)POSITIONS * d, SKV_F32);
	void *position_ = backend_give_bytes(at, c->position, sizeof(c->position));
	void *q_norm_ = c->q_norm ? backend_give(at, c->q_norm, d, SKV_F32) : NULL;
	void *k_norm_ = c->k_norm ? backend_give(at, c->k_norm, d, SKV_F32) : NULL;
	const struct eng_heads heads = {
		.n_heads = HEADS,
		.n_kv_heads = KV_HEADS,
		.head_dim = d,
		.q_norm = q_norm_,
		.k_norm = k_norm_,
		.eps = 1e-5f,
	};
	float *q, *k, *v;

	at->place->ops->rope_split(at->place, q_, k_, v_, at->dtype, in_, &heads, table_, position_, ROWS);
	q = backend_take(at, q_, nq, at->dtype);
	k = backend_take(at, k_, nkv, at->dtype);
	v = backend_take(at, v_, nkv, at->dtype);
	for (uint32_t row = 0; row < ROWS; row++) {
		const float *from = c->in + row * width;

		for (uint32_t h = 0; h < HEADS; h++)
			check_head(at, c, q + (row * HEADS + h) * d, from + h * d, c->q_norm, c->position[row], true);
		for (uint32_t h = 0; h < KV_HEADS; h++) {
			check_head(at, c, k + (row * KV_HEADS + h) * d, from + (HEADS + h) * d, c->k_norm,
			           c->position[row], true);
			check_head(at, c, v + (row * KV_HEADS + h) * d, from + (HEADS + KV_HEADS + h) * d, NULL, 0,
			           false);
		}
	}
	backend_put_back(at, q_);
	backend_put_back(at, k_);
	backend_put_back(at, v_);
	backend_put_back(at, in_);
	backend_put_back(at, table_);
	backend_put_back(at, position_);
	backend_put_back(at, q_norm_);
	backend_put_back(at, k_norm_);
	free(q);
	free(k);
	free(v);
}

/* Head dimensions below, at and above a device's warp of 32 threads, and no multiple of it; with and without norms. */
START_TEST(rope)
{
	static const uint32_t dims[] = {16, 32, 64, DIM_MOST};
	const struct skv_rope r = {.type = SKV_ROPE_DEFAULT, .theta = 500000};
	struct rope_case c = {.dim = dims[_i]};
	float *table = eng_rope_table(&r, c.dim, POSITIONS);
	float *q_norm = backend_random(c.dim, 2), *k_norm = backend_random(c.dim, 2);
	struct at at[3];
	unsigned n_at = places_all(at);

	c.in = backend_random((size_t)ROWS * (HEADS + 2 * KV_HEADS) * c.dim, 2);
	c.table = table;
	for (uint32_t i = 0; i < ROWS; i++)
		c.position[i] = i ? rnd_below(POSITIONS) : POSITIONS - 1;
	for (unsigned a = 0; a < n_at; a++) {
		c.q_norm = c.k_norm = NULL;
		try_rope(&at[a], &c);
		c.q_norm = q_norm;
		c.k_norm = k_norm;
		try_rope(&at[a], &c);
	}
	free(table);
	free(q_norm);
	free(k_norm);
	free(c.in);
}
END_TEST

/* A matrix of random weights is the same on every backend, and embed() takes its rows. */
START_TEST(fill_and_embed)
{
	enum { N = 100, VOCAB = 70, TAKEN = 9 };
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		void *w_ = backend_give(&at[a], NULL, N * VOCAB, at[a].dtype),
		     *x_ = backend_give(&at[a], NULL, N * TAKEN, SKV_F32);
		int32_t id[TAKEN] = {0, VOCAB - 1};
		void *id_;
		float *x;

		for (unsigned i = 2; i < TAKEN; i++)
			id[i] = (int32_t)rnd_below(VOCAB);
		id_ = backend_give_bytes(&at[a], id, sizeof(id));
		at[a].place->ops->fill(at[a].place, w_, N * VOCAB, at[a].dtype, 0.25f, 7);
		at[a].place->ops->embed(at[a].place, x_, w_, at[a].dtype, id_, TAKEN, N);
		x = backend_take(&at[a], x_, N * TAKEN, SKV_F32);
		for (unsigned r = 0; r < TAKEN; r++)
			for (unsigned i = 0; i < N; i++)
				ck_assert(x[r * N + i] ==
				          0.25f * eng_random_weight(7, (uint64_t)id[r] * N + i));
		backend_put_back(&at[a], w_);
		backend_put_back(&at[a], x_);
		backend_put_back(&at[a], id_);
		free(x);
	}
}
END_TEST

START_TEST(choose)
{
	static const uint32_t vocabs[] = {1, 31, 264, 1024, 5000};
	enum { N = 6 };
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++)
		for (size_t c = 0; c < sizeof(vocabs) / sizeof(*vocabs); c++) {
			/* few distinct values, so that many are equal; a row of -inf, and a row of NaN */
			uint32_t n = vocabs[c], position[N], was[N];
			float *x = backend_random(N * n, 1);
			int32_t id[N];
			void *x_, *id_ = backend_give_bytes(&at[a], NULL, sizeof(id)), *position_;

			for (uint32_t i = 0; i < n; i++) {
				x[4 * n + i] = -INFINITY;
				x[5 * n + i] = NAN;
			}
			for (unsigned r = 0; r < N; r++)
				was[r] = rnd_below(1000);
			x_ = backend_give(&at[a], x, N * n, SKV_F32);
			position_ = backend_give_bytes(&at[a], was, sizeof(was));
			at[a].place->ops->choose(at[a].place, id_, position_, x_, N, n);
			backend_take_bytes(&at[a], id, id_, sizeof(id));
			backend_take_bytes(&at[a], position, position_, sizeof(position));
			for (unsigned r = 0; r < N; r++) {
				ck_assert_int_eq(id[r], (int32_t)eng_argmax(x + r * n, n));
				ck_assert_uint_eq(position[r], was[r] + 1);
			}
			backend_put_back(&at[a], x_);
			backend_put_back(&at[a], id_);
			backend_put_back(&at[a], position_);
			free(x);
		}
}
END_TEST

/* A copy larger than a device's staging buffers. Copies are done in order. */
START_TEST(copies)
{
	const size_t n = 3000001;
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		float *x = backend_random(n, 1), *back;
		void *x_ = backend_give(&at[a], x, n, SKV_F32);

		backend_ok(at[a].place, at[a].place->ops->put(at[a].place, x_, x + 1, 40));
		back = backend_take(&at[a], x_, n, SKV_F32);
		ck_assert_mem_eq(back, x + 1, 40);
		ck_assert_mem_eq(back + 10, x + 10, (n - 10) * sizeof(*x));
		backend_put_back(&at[a], x_);
		free(x);
		free(back);
	}
}
END_TEST

/* A recording runs only when it is launched, with the data in memory at that time. */
START_TEST(recordings)
{
	struct at at[3];
	unsigned n_at = places_all(at);

	for (unsigned a = 0; a < n_at; a++) {
		struct eng_backend *p = at[a].place;
		uint32_t position = 5;
		int32_t id;
		void *recording, *x_, *id_, *position_;

		if (!p->ops->record)
			continue;
		x_ = backend_give(&at[a], (const float[]){1, 3, 2}, 3, SKV_F32);
		id_ = backend_give_bytes(&at[a], (const int32_t[]){-1}, sizeof(id));
		position_ = backend_give_bytes(&at[a], &position, sizeof(position));
		backend_ok(p, p->ops->record(p));
		p->ops->choose(p, id_, position_, x_, 1, 3);
		backend_ok(p, p->ops->recorded(p, &recording));
		backend_take_bytes(&at[a], &id, id_, sizeof(id));
		ck_assert_int_eq(id, -1);
		backend_ok(p, p->ops->launch(p, recording));
		backend_ok(p, p->ops->put(p, x_, (const float[]){9}, sizeof(float)));
		backend_take_bytes(&at[a], &id, id_, sizeof(id));
		ck_assert_int_eq(id, 1);
		backend_ok(p, p->ops->launch(p, recording));
		backend_take_bytes(&at[a], &id, id_, sizeof(id));
		backend_take_bytes(&at[a], &position, position_, sizeof(position));
		ck_assert_int_eq(id, 0);
		ck_assert_uint_eq(position, 7);
		p->ops->forget(p, recording);
		backend_put_back(&at[a], x_);
		backend_put_back(&at[a], id_);
		backend_put_back(&at[a], position_);
	}
}
END_TEST

START_TEST(no_such_device)
{
	struct eng_backend *device = backend_device(), *place;

	if (device) {
		ck_assert_int_eq(device->ops->open(200, &place), -ENODEV);
		ck_assert_ptr_nonnull(strstr(device->ops->error(), "no such device"));
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("engine: places");
	TCase *t;

	if (!places_begin("test-engine-backend"))
		return EXIT_FAILURE;
	t = add_case(s, "operations", 60, NULL, NULL, matmul, matmul_is_fp32, add_norm, swiglu, fill_and_embed, choose,
	             copies, recordings, no_such_device, NULL);
	tcase_add_loop_test(t, rope, 0, 4);
	return run_suite(s);
}
