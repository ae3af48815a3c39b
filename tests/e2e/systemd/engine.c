/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine NAME TOKENS - generate until the sequence of that name has so many tokens, from where it is. When the connection fails, connect anew
 * and attach. Prints a hash of the last step's outputs, which depend on all K and V before, and how often it connected.
 */
#include <errno.h>
#include <sparsekv/client.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 4u
#define HEADS 4u
#define KV_HEADS 2u
#define DIM 64u

/* Numbers of -1 to 1 that follow from what they are for. */
static void fill(float *x, size_t n, uint64_t of)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t h = (of * 1000003 + i) * 0x9e3779b97f4a7c15u;

		h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
		x[i] = (float)(int32_t)(h >> 32) / 2147483648.0f;
	}
}

/* The step at this length. 0, or a negative errno. */
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

/* One connection, as long as it lasts. True: it is done. */
static int generate(const char *name, uint32_t tokens, uint32_t *ret_len, uint64_t *ret_hash)
{
	struct skv_model m = SKV_MODEL_INIT;
	struct skv_session *s;
	struct skv_client *c;
	struct skv_seq *q;
	int e;

	m.n_layers = LAYERS;
	m.n_heads = HEADS;
	m.n_kv_heads = KV_HEADS;
	m.head_dim = DIM;
	m.kv_dtype = SKV_F32;
	m.max_tokens = 65536;
	snprintf(m.name, sizeof(m.name), "engine");
	if (skv_connect(&c, NULL) < 0)
		return 0;
	e = skv_open(c, &m, "full", &s);
	if (e == 0)
		e = skv_seq_attach(s, name, &q);
	if (e == -ENOENT && *ret_len == 0)
		e = skv_seq_new(s, name, 0, &q);
	if (e == -ENOENT) {
		fprintf(stderr, "after %u tokens the sequence is not there\n", *ret_len);
		exit(1);
	}
	if (e == 0 && skv_seq_len(q) < *ret_len) {
		fprintf(stderr, "%u tokens, %u were committed\n", skv_seq_len(q), *ret_len);
		exit(1);
	}
	for (uint32_t len = e == 0 ? skv_seq_len(q) : 0; e == 0 && len < tokens; len++) {
		e = step(s, q, len, ret_hash);
		if (e == 0)
			*ret_len = len + 1;
		usleep(1000);
	}
	skv_disconnect(c);
	return e == 0;
}

int main(int argc, char **argv)
{
	uint32_t tokens = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0, len = 0, connections = 1;
	uint64_t hash = 0;

	if (tokens == 0) {
		fprintf(stderr, "usage: engine NAME TOKENS\n");
		return 1;
	}
	while (!generate(argv[1], tokens, &len, &hash)) {
		connections++;
		usleep(5000);
	}
	printf("%016llx after %u tokens, %u connections\n", (unsigned long long)hash, tokens, connections);
	return 0;
}
