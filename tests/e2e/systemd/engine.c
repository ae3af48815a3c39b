/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine NAME TOKENS - generates until the sequence of that name has so many tokens, continuing from its current
 * length. No call may fail, whatever happens to the daemon meanwhile. Prints a hash of the last step's outputs, which
 * depend on all K and V before, and the longest step.
 */
#include <errno.h>
#include <sparsekv/client.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAYERS 4u
#define HEADS 4u
#define KV_HEADS 2u
#define DIM 64u

/* Numbers from -1 to 1, determined by `of`. */
static void fill(float *x, size_t n, uint64_t of)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t h = (of * 1000003 + i) * 0x9e3779b97f4a7c15u;

		h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
		x[i] = (float)(int32_t)(h >> 32) / 2147483648.0f;
	}
}

/* Runs the step at this length. Returns 0 or a negative errno. */
static int step(struct skv_session *s, struct skv_seq *q, uint32_t len, uint64_t *ret_hash)
{
	float query[HEADS * DIM], k[KV_HEADS * DIM], v[KV_HEADS * DIM], out[HEADS * DIM];
	struct skv_step_item item = SKV_STEP_ITEM(.seq = q, .n_tokens = 1);
	uint64_t hash = 0xcbf29ce484222325u;
	int e = skv_step_begin(s, &item, 1, NULL);

	for (uint32_t layer = 0; e == 0 && layer < LAYERS; layer++) {
		const uint64_t of = (uint64_t)len * LAYERS + layer;

		fill(query, HEADS * DIM, 3 * of);
		fill(k, KV_HEADS * DIM, 3 * of + 1);
		fill(v, KV_HEADS * DIM, 3 * of + 2);
		e = skv_attend(s, layer, &SKV_ATTN(.q = query, .k = k, .v = v, .out = out));
		for (size_t i = 0; i < sizeof(out); i++)
			hash = (hash ^ ((const uint8_t *)out)[i]) * 0x100000001b3u;
	}
	*ret_hash = hash;
	return e < 0 ? e : skv_step_end(s, NULL, NULL);
}

static void fail_of(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, skv_last_error());
	exit(1);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static struct skv_seq *open_seq(const char *name, struct skv_client **c, struct skv_session **s)
{
	struct skv_model m = SKV_MODEL_INIT;
	struct skv_seq *q;
	int e;

	m.n_layers = LAYERS;
	m.n_heads = HEADS;
	m.n_kv_heads = KV_HEADS;
	m.head_dim = DIM;
	m.kv_dtype = SKV_F32;
	m.max_tokens = 65536;
	snprintf(m.name, sizeof(m.name), "engine");
	if (skv_connect(c, NULL) < 0)
		fail_of("skv_connect");
	if (skv_open(*c, &m, "full", s) < 0)
		fail_of("skv_open");
	e = skv_seq_attach(*s, name, &q);
	if (e == -ENOENT)
		e = skv_seq_new(*s, name, 0, &q);
	if (e < 0)
		fail_of("skv_seq_new");
	return q;
}

int main(int argc, char **argv)
{
	const uint32_t tokens = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
	struct skv_session *s;
	struct skv_client *c;
	struct skv_seq *q;
	uint64_t hash = 0;
	double longest = 0;

	if (tokens == 0) {
		fprintf(stderr, "usage: engine NAME TOKENS\n");
		return 1;
	}
	q = open_seq(argv[1], &c, &s);
	for (uint32_t len = skv_seq_len(q); len < tokens; len++) {
		const double begin = now();

		if (step(s, q, len, &hash) < 0)
			fail_of("a step");
		if (now() - begin > longest)
			longest = now() - begin;
		usleep(4000);
	}
	skv_disconnect(c);
	printf("%016llx after %u tokens, the longest step took %.1f ms\n", (unsigned long long)hash, tokens, longest * 1e3);
	return 0;
}
