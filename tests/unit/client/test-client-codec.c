/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs in libclient that are malformed, missing, or removed later are refused; running sequences are not affected. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client-fixture.h"
#include "tests/support/codec-file.h"
#include "tests/support/policies.h"
#include "tests/support/reference-codec.h"

#define TOKENS 600u

static struct refmodel w;
static char codec[80]; /* path of a codec's file */

static void setup(void)
{
	client_begin(NULL);
	refmodel_model(&w.model, "codec", SKV_F32, TOKENS);
	refmodel_packable(&w.model);
	snprintf(codec, sizeof(codec), "%.60s/codec", daemon_.dir);
}

static void decode(struct refmodel_seq *q, uint32_t n)
{
	while (n-- > 0)
		refmodel_feed(&w, q, 1, 1, false);
}

#define PACKS POLICY_LATENT "?budget=600&layers=1,3&dense=1&bits=8&scale_block=32&residual=16&block=16&" REFMODEL_CODES

/* Overwrites the n bytes before the last `cut` ones, which are cut off. */
static void spoil(long cut, const void *last, size_t n)
{
	FILE *f = fopen(codec, "r+");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fseek(f, -(long)(n + (size_t)cut), SEEK_END), 0);
	ck_assert_uint_eq(fwrite(last, 1, n, f), n);
	if (cut)
		ck_assert_int_eq(ftruncate(fileno(f), ftell(f)), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void make_bad(int which)
{
	static const uint32_t nan = 0x7fc00000;
	struct skv_model other = w.model;

	other.head_dim *= 2;
	refmodel_codec(which == 3 ? &other : &w.model, 1, codec);
	if (which == 0)
		ck_assert_int_eq(unlink(codec), 0);
	else if (which == 1)
		spoil(5, "", 0);
	else if (which == 2)
		spoil(0, &nan, sizeof(nan));
	else if (which == 4)
		w.model.rope.type = SKV_ROPE_UNKNOWN;
}

/* Refused with the file and the reason wherever it is named; a running sequence goes on with the same results. */
START_TEST(no_good)
{
	static const struct {
		int error;
		const char *says;
	} bad[] = {{ENOENT, "No such file"}, {EBADMSG, "but the data has"}, {EBADMSG, "not finite"}, {EBADMSG, "layers."},
	           {EINVAL, "has not said how its model turns"}};
	struct skv_session *none;
	struct refmodel_seq q;
	struct skv_seq *seq;
	char spec[256];

	make_bad(_i);
	snprintf(spec, sizeof(spec), PACKS "&file=%s", codec);
	OK(skv_open(client, &w.model, "full", &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	refmodel_seq_init(&w, &q, seq, TOKENS);
	refmodel_feed(&w, &q, 1, 100, true);
	FAILS(skv_open(client, &w.model, spec, &none), bad[_i].error, bad[_i].says);
	ck_assert(_i == 4 || strstr(skv_last_error(), codec));
	FAILS(skv_seq_policy(q.seq, spec), bad[_i].error, bad[_i].says);
	decode(&q, 3);
	ck_assert_int_eq(raw_policy_swap(op, spec), 0);
	for (uint32_t i = 0; i < 100 && !*skv_policy_error(w.session); i++)
		decode(&q, 1);
	ck_assert_msg(strstr(skv_policy_error(w.session), bad[_i].says), "%s", skv_policy_error(w.session));
	RUNS_SPEC(skv_policy_spec(w.session), "full");
	decode(&q, 10);
	if (_i < 4) { /* once the file is as it should be, it is accepted */
		refmodel_codec(&w.model, 0, codec);
		OK(skv_seq_policy(q.seq, spec));
		w.tolerance = 3e-2; /* for 8 bits */
		decode(&q, 20);
	}
	refmodel_seq_deinit(&q);
}
END_TEST

/* n more tokens, in a prompt or one by one; `out` gets the output of the last one. */
static void go_on(struct skv_seq *seq, uint32_t n, bool prompt, float *out)
{
	uint32_t len = skv_seq_len(seq);
	uint64_t content[TOKENS];

	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(1, len + i);
	if (prompt)
		OK(refmodel_run(&w, seq, content, n, true, NULL, NULL));
	for (uint32_t i = 0; !prompt && i < n; i++)
		OK(refmodel_run(&w, seq, content + i, 1, false, out, NULL));
}

/* The codec's file of a compressed sequence is gone, or another: what needs the file fails, and nothing is lost. */
START_TEST(gone)
{
	const size_t size = (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
	float *is = calloc(size, sizeof(*is)), *expected = calloc(size, sizeof(*expected));
	struct skv_session *packs, *rows;
	struct skv_seq *kept, *twin;
	uint64_t content = 1;
	char spec[256];

	refmodel_codec(&w.model, 1, codec);
	snprintf(spec, sizeof(spec), PACKS "&file=%s", codec);
	OK(skv_open(client, &w.model, spec, &packs));
	OK(skv_open(client, &w.model, "full", &rows));
	w.session = packs;
	OK(skv_seq_new(packs, "kept", 0, &kept));
	go_on(kept, 120, true, NULL);
	go_on(kept, 40, false, is);
	OK(skv_seq_fork(kept, NULL, SKV_ALL, &twin));
	OK(skv_seq_detach(kept));
	w.session = rows;
	for (int other = 0; other < 2; other++) {
		if (other)
			refmodel_codec(&w.model, 2, codec);
		else
			ck_assert_int_eq(unlink(codec), 0);
		OK(skv_seq_attach(rows, "kept", &kept));
		for (int i = 0; i < 2; i++)
			FAILS(refmodel_decode(&w, &kept, &content, 1, NULL), other ? ENOTSUP : ENOENT, codec);
		ck_assert_uint_eq(skv_seq_len(kept), 160);
		OK(skv_seq_detach(kept));
	}
	/* a session that read it in time goes on, and so does any when the file is back */
	w.session = packs;
	go_on(twin, 20, false, expected);
	refmodel_codec(&w.model, 1, codec);
	OK(skv_open(client, &w.model, spec, &w.session));
	OK(skv_seq_attach(w.session, "kept", &kept));
	go_on(kept, 20, false, is);
	ck_assert_mem_eq(is, expected, size * sizeof(float));
	free(is);
	free(expected);
}
END_TEST

/*
 * The codec's file gets another content, and the sequence the same policy once more, in other words: its codes must not
 * be decoded with the new codec.
 */
START_TEST(rewritten)
{
	struct skv_seq *seq;
	char spec[1024];
	int e;

	refmodel_codec(&w.model, 1, codec);
	snprintf(spec, sizeof(spec), PACKS "&file=%s", codec);
	OK(skv_open(client, &w.model, spec, &w.session));
	snprintf(spec, sizeof(spec), "%s", skv_policy_spec(w.session)); /* with all parameters */
	OK(skv_seq_new(w.session, NULL, 0, &seq));
	go_on(seq, 120, true, NULL);
	go_on(seq, 40, false, NULL);
	refmodel_codec(&w.model, 2, codec);
	e = skv_seq_policy(seq, spec);
	if (e == 0)
		e = skv_step_begin(w.session, &SKV_STEP_ITEM(.seq = seq, .n_tokens = 1, .tokens = (int32_t[]){1}), 1, NULL);
	FAILS(e, ENOTSUP, codec);
}
END_TEST

/* A codec without references that changes only the size of K, which it may norm again. */
static void norming(float size, bool norms)
{
	struct codec_file f = {.about = "{\"sparsekv_codec\":\"1\",\"stride\":\"0\",\"near\":\"0\"}"};
	const uint32_t dim = w.model.head_dim, d = 2 * w.model.n_kv_heads * dim;
	float *down = calloc(d * d, sizeof(*down)), *out = calloc(d * d, sizeof(*out)), norm[SKV_MAX_HEAD_DIM];

	for (uint32_t i = 0; i < d; i++) {
		down[i * d + i] = 1;
		out[i * d + i] = i < d / 2 ? size : 1;
	}
	for (uint32_t i = 0; i < dim; i++)
		norm[i] = i == 3 ? 0 : 0.5f + (float)i / (float)dim;
	for (uint32_t layer = 0; layer < w.model.n_layers; layer++) {
		codec_file_add(&f, layer, "down", d, d, down);
		codec_file_add(&f, layer, "out", d, d, out);
		if (norms)
			codec_file_add(&f, layer, "k_norm", dim, 0, norm);
	}
	codec_file_write(&f, codec);
	free(down);
	free(out);
}

/* If the model norms K, the size that the codec gives them does not matter. */
START_TEST(norms)
{
	static const struct {
		float size;
		bool norms;
	} how[] = {{1, true}, {4, true}, {1, false}, {4, false}};
	const size_t size = (size_t)w.model.n_layers * w.model.n_heads * w.model.head_dim;
	float *is = calloc(4 * size, sizeof(*is));
	char spec[256];

	snprintf(spec, sizeof(spec), POLICY_LOW_RANK "?residual=16&block=16&file=%s", codec);
	for (int i = 0; i < 4; i++) {
		struct skv_seq *seq;

		norming(how[i].size, how[i].norms);
		OK(skv_open(client, &w.model, spec, &w.session));
		OK(skv_seq_new(w.session, NULL, 0, &seq));
		go_on(seq, 120, true, NULL);
		go_on(seq, 3, false, is + i * size);
		OK(skv_seq_drop(seq));
		skv_close(w.session);
	}
	ck_assert_mem_eq(is, is + size, size * sizeof(float));
	ck_assert_mem_ne(is, is + 2 * size, size * sizeof(float));
	ck_assert_mem_ne(is + 2 * size, is + 3 * size, size * sizeof(float));
	free(is);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-codec");
	TCase *t = add_case(s, "codec", 60, setup, client_end, gone, rewritten, norms, NULL);

	tcase_add_loop_test(t, no_good, 0, 5);
	return run_suite(s);
}
