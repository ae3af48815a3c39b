/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page tables in device memory: while sequences grow, compared with a session in host memory that gets the same rows;
 * and while sequences come and go, which allocates no device memory once there have been as many.
 *
 * Skipped (77) without a device, but a failure if SPARSEKV_REQUIRE_GPU=1.
 */
#include <math.h>
#include <stdlib.h>

#include "libclient/device/device.h"
#include "libclient/session.h"
#include "tests/support/client-test.h"
#include "tests/support/kernel-backend.h"
#include "tests/support/policies.h"

static struct fix daemon_;
static struct skv_client *client;

static const struct skv_model model = {
	.size = sizeof(model), .n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = SKV_BF16,
	.io_dtype = SKV_F32, .max_tokens = 1 << 17, .n_ranks = 1, .name = "gpu-tables",
	.rope = {.type = SKV_ROPE_DEFAULT, .theta = 1e4},
};

static void setup(void)
{
	fix_start_process(&daemon_, (const char *[]){"--cuda-pool-bytes=1G", "--cuda-segment-bytes=16M", NULL});
}

static void teardown(void)
{
	skv_disconnect(client);
	fix_stop(&daemon_);
}

/* Appends n rows to a sequence; on a device they are copied there and back. `rows` are q, k and v. */
static void feed_rows(struct skv_session *s, const struct skv_model *m, struct skv_seq *q, const float *rows, uint32_t n, float *out)
{
	const size_t width = (size_t)m->n_heads * m->head_dim, all = n * width;
	bool there = m->device != SKV_DEVICE_HOST;
	struct skv_step_item it = SKV_STEP_ITEM(.seq = q, .n_tokens = n, .flags = n > 1 ? SKV_STEP_PROMPT : 0);
	float *in = there ? devmem_get(all * sizeof(float)) : NULL, *to = there ? devmem_get(all * sizeof(float)) : out;

	if (there)
		devmem_to(in, rows, all * sizeof(float));
	OK(skv_step_begin(s, &it, 1, there ? devmem_stream() : NULL));
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		OK(skv_attend(s, layer, &SKV_ATTN(.q = there ? in : rows, .k = there ? in : rows, .v = there ? in : rows, .out = to)));
	OK(skv_step_end(s, NULL, NULL));
	if (there) {
		OK(devmem_device()->wait(devmem_stream()));
		devmem_from(out, to, all * sizeof(float));
		devmem_put(in);
		devmem_put(to);
	}
}

/*
 * Tables on a device have room for a sequence's length. They grow with prompts of all lengths, with single tokens and
 * after a fork; outputs are those of a session in host memory.
 */
START_TEST(tables_grow)
{
	static const char *const specs[] = {"full", POLICY_BOUNDS, POLICY_WINDOW, POLICY_QUANTIZES};
	static const uint32_t lengths[] = {1, 700, 1400, 1, 1, 3000, 1, 6000, 1, 1};
	struct skv_model m[2];
	struct skv_session *s[2];
	struct skv_seq *seq[2];
	float *rows, *out[2];
	const size_t width = (size_t)model.n_heads * model.head_dim, most = 6000;

	rows = malloc(most * width * sizeof(*rows));
	OK(skv_connect(&client, daemon_.socket));
	for (int k = 0; k < 2; k++) {
		m[k] = model;
		m[k].device = k ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
		out[k] = malloc(most * width * sizeof(float));
		OK(skv_open(client, &m[k], specs[_i], &s[k]));
		OK(skv_seq_new(s[k], NULL, 0, &seq[k]));
	}
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		uint32_t n = lengths[i];
		double worst = 0;

		for (size_t at = 0; at < n * width; at++)
			rows[at] = (float)(2 * rnd_unit() - 1);
		for (int k = 0; k < 2; k++)
			feed_rows(s[k], &m[k], seq[k], rows, n, out[k]);
		for (size_t at = 0; at < n * width; at++)
			worst = fmax(worst, fabs(out[0][at] - out[1][at]));
		ck_assert_msg(worst < 0.05, "%s, step %zu: off by %g", specs[_i], i, worst);
		if (i != 4)
			continue;
		for (int k = 0; k < 2; k++) { /* continue with a fork */
			struct skv_seq *parent = seq[k];

			OK(skv_seq_fork(parent, NULL, SKV_ALL, &seq[k]));
			OK(skv_seq_drop(parent));
		}
	}
	for (int k = 0; k < 2; k++) {
		skv_close(s[k]);
		free(out[k]);
	}
	free(rows);
}
END_TEST

/* ---- sequences that come and go -------------------------------------------------------------- */

#define SEQS 6u

/*
 * The backend. It counts calls that allocate or free device memory, wait for a stream or an event, or unregister
 * memory, which waits for all of the device's work.
 */
static struct skv_backend counting;
static uint32_t allocs, frees, waits, event_waits, unregistered;

static int count_alloc(size_t bytes, void **ret)
{
	allocs++;
	return devmem_device()->alloc(bytes, ret);
}

static int count_free(void *p)
{
	frees++;
	return devmem_device()->free(p);
}

static int count_wait(void *stream)
{
	waits++;
	return devmem_device()->wait(stream);
}

static int count_event_wait(void *event)
{
	event_waits++;
	return devmem_device()->event_wait(event);
}

static int count_unregister(void *p)
{
	unregistered++;
	return devmem_device()->unregister_host(p);
}

static void count(struct skv_session *s)
{
	counting = *s->device->backend;
	counting.alloc = count_alloc;
	counting.free = count_free;
	counting.wait = count_wait;
	counting.event_wait = count_event_wait;
	counting.unregister_host = count_unregister;
	s->device->backend = &counting;
}

/*
 * Makes sequences of several lengths at the same time and appends a few tokens to each, with the same rows in both
 * sessions.
 */
static void come_and_go(struct skv_session *const s[2], const struct skv_model *m, float *rows, float *const out[2])
{
	static const uint32_t lengths[SEQS] = {1, 40, 500, 900, 1, 1300};
	const size_t width = (size_t)model.n_heads * model.head_dim;
	struct skv_seq *seq[2][SEQS];
	double worst = 0;

	for (uint32_t i = 0; i < 2 * SEQS; i++)
		OK(skv_seq_new(s[i % 2], NULL, 0, &seq[i % 2][i / 2]));
	for (uint32_t i = 0; i < 3 * SEQS; i++) {
		const uint32_t n = i < SEQS ? lengths[i] : 1;

		for (size_t at = 0; at < n * width; at++)
			rows[at] = (float)(2 * rnd_unit() - 1);
		for (int k = 0; k < 2; k++)
			feed_rows(s[k], &m[k], seq[k][i % SEQS], rows, n, out[k]);
		for (size_t at = 0; at < n * width; at++)
			worst = fmax(worst, fabs(out[0][at] - out[1][at]));
	}
	ck_assert_msg(worst < 0.05, "off by %g", worst);
	for (uint32_t i = 0; i < 2 * SEQS; i++)
		OK(skv_seq_drop(seq[i % 2][i / 2]));
}

/* Reused blocks of tables show nothing of their earlier contents. */
START_TEST(blocks_again)
{
	static const char *const specs[] = {"full", POLICY_BOUNDS "?budget=8"};
	const size_t most = 1300 * (size_t)model.n_heads * model.head_dim;
	float *rows = malloc(3 * most * sizeof(*rows)), *const out[2] = {rows + most, rows + 2 * most};
	struct skv_model m[2] = {model, model};
	struct skv_session *s[2];

	OK(skv_connect(&client, daemon_.socket));
	m[1].device = SKV_DEVICE_CUDA(0);
	for (int k = 0; k < 2; k++)
		OK(skv_open(client, &m[k], specs[_i], &s[k]));
	count(s[1]);
	come_and_go(s, m, rows, out);
	come_and_go(s, m, rows, out);
	allocs = frees = waits = 0;
	for (uint32_t i = 0; i < 4; i++)
		come_and_go(s, m, rows, out);
	ck_assert_uint_eq(allocs, 0);
	ck_assert_uint_eq(frees, 0);
	ck_assert_uint_eq(waits, 0);
	skv_close(s[0]);
	skv_close(s[1]);
	free(rows);
}
END_TEST

/* A prompt in chunks gets room for all of its tables with the first chunk: later chunks need not wait for earlier ones. */
START_TEST(prompt_in_chunks)
{
	const uint32_t n = 2048, chunks = DEVICE_STEPS; /* a later one would wait for the first */
	const size_t all = (size_t)n * model.n_heads * model.head_dim;
	struct skv_model m = model;
	struct skv_session *s;
	struct skv_seq *seq;
	float *in;

	OK(skv_connect(&client, daemon_.socket));
	m.device = SKV_DEVICE_CUDA(0);
	OK(skv_open(client, &m, "full", &s));
	in = devmem_get(2 * all * sizeof(float));
	OK(skv_seq_new(s, NULL, 0, &seq));
	for (uint32_t i = 0; i < chunks; i++) {
		const struct skv_step_item it = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = SKV_STEP_PROMPT,
		                                              .n_prompt_remaining = (chunks - 1 - i) * n);

		OK(skv_step_begin(s, &it, 1, devmem_stream()));
		for (uint32_t layer = 0; layer < m.n_layers; layer++)
			OK(skv_attend(s, layer, &SKV_ATTN(.q = in, .k = in, .v = in, .out = in + all)));
		OK(skv_step_end(s, NULL, NULL));
		if (i == 0)
			count(s);
	}
	ck_assert_uint_eq(allocs + waits + event_waits, 0);
	OK(skv_seq_drop(seq));
	devmem_put(in);
	skv_close(s);
}
END_TEST

/* The end of a sequence waits for this sequence's steps on the device, and not for those of others. */
START_TEST(ends_beside)
{
	const size_t width = (size_t)model.n_heads * model.head_dim;
	float rows[40 * 2 * 64] = {1}, out[40 * 2 * 64], *in;
	struct skv_model m = model;
	struct skv_session *s;
	struct skv_seq *seq[3];

	OK(skv_connect(&client, daemon_.socket));
	m.device = SKV_DEVICE_CUDA(0);
	OK(skv_open(client, &m, "full", &s));
	in = devmem_get(2 * width * sizeof(float));
	for (uint32_t i = 0; i < 3; i++) {
		OK(skv_seq_new(s, NULL, 0, &seq[i]));
		feed_rows(s, &m, seq[i], rows, 40, out);
	}
	count(s);
	for (uint32_t i = 0; i < 2; i++) {
		OK(skv_step_begin(s, &SKV_STEP_ITEM(.seq = seq[0], .n_tokens = 1), 1, devmem_stream()));
		for (uint32_t layer = 0; layer < m.n_layers; layer++)
			OK(skv_attend(s, layer, &SKV_ATTN(.q = in, .k = in, .v = in, .out = in + width)));
		OK(skv_step_end(s, NULL, NULL));
		event_waits = waits = 0;
		OK(i == 0 ? skv_seq_drop(seq[1]) : skv_seq_detach(seq[2]));
		ck_assert_uint_eq(event_waits + waits + unregistered, 0);
	}
	OK(skv_seq_drop(seq[0]));
	ck_assert_uint_ge(event_waits, 1);
	ck_assert_uint_eq(unregistered, 6); /* of each sequence its header and its token ids */
	devmem_put(in);
	skv_close(s);
}
END_TEST

int main(void)
{
	enum case_device there = case_begin("gpu-tables");
	Suite *s = begin_suite("gpu-tables");
	TCase *t;

	if (there != CASE_HAS_DEVICE)
		return there == CASE_LACKS_DEVICE ? EXIT_FAILURE : 77;
	setenv("SKV_TEST_DEVICE", "1", 1);
	t = add_case(s, "tables", 120, setup, teardown, NULL);
	tcase_add_loop_test(t, tables_grow, 0, 4);
	tcase_add_loop_test(t, blocks_again, 0, 2);
	tcase_add_test(t, prompt_in_chunks);
	tcase_add_test(t, ends_beside);
	return run_suite(s);
}
