/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of layers of Gemma 2, gpt-oss and Mistral through the client library, compared with the eager attention of
 * transformers (layer-forms.py), and that each attribute of these layers is needed for the result. In host memory, or
 * with SKV_TEST_DEVICE=1 on a device, where K and V are fp16.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client-fixture.h"
#include "tests/support/layer-forms.h"

#define N_FORMS (sizeof(forms) / sizeof(*forms))
#define PROMPT 40u /* tokens; the rest is decoded */
#define TOLERANCE (devmem_is_device() ? 2e-2f : 1e-5f)

static struct skv_model model;

static void setup(void)
{
	client_begin(NULL);
	skv_model_init(&model, sizeof(model));
	model.n_layers = 2;
	model.n_heads = FORMS_HEADS;
	model.n_kv_heads = FORMS_KV_HEADS;
	model.head_dim = FORMS_DIM;
	model.max_tokens = FORMS_TOKENS;
	model.kv_dtype = devmem_is_device() ? SKV_F16 : SKV_F32;
	model.device = devmem_is_device() ? SKV_DEVICE_CUDA(0) : SKV_DEVICE_HOST;
}

/* number() of layer-forms.py. */
static float forms_number(const uint32_t *part, uint32_t n)
{
	uint32_t x = 0x9e3779b9;

	for (uint32_t i = 0; i < n; i++) {
		x = (x ^ part[i]) * 2654435761u;
		x ^= x >> 15;
		x *= 2246822519u;
		x ^= x >> 13;
	}
	return (float)(x >> 8) / 0x1p23f - 1;
}

enum { Q, K, V };

static void fill(uint32_t form, uint32_t layer, uint32_t what, uint32_t first, uint32_t n, uint32_t heads, float *to)
{
	for (uint32_t t = first; t < first + n; t++)
		for (uint32_t h = 0; h < heads; h++)
			for (uint32_t d = 0; d < FORMS_DIM; d++)
				*to++ = (what == Q ? 4 : 1) * forms_number((uint32_t[]){form, layer, what, t, h, d}, 6);
}

/* The largest difference of rows [first, first + n) of a layer from the output of transformers. */
static float difference(uint32_t form, uint32_t layer, uint32_t first, uint32_t n, const float *out)
{
	const uint32_t width = FORMS_HEADS * FORMS_DIM;
	float most = 0;

	for (uint32_t r = 0; r < sizeof(forms_rows) / sizeof(*forms_rows); r++)
		for (uint32_t d = 0; d < width && forms_rows[r] >= first && forms_rows[r] < first + n; d++)
			most = fmaxf(most, fabsf(out[(forms_rows[r] - first) * width + d] - forms[form].out[layer][r][d]));
	return most;
}

static float step(struct skv_session *s, struct skv_seq *seq, uint32_t form, uint32_t first, uint32_t n)
{
	const uint32_t flags = n > 1 ? SKV_STEP_PROMPT : 0;
	struct devmem_rows r = devmem_rows_new(&model, n);
	float most = 0;

	OK(skv_step_begin(s, &SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = flags), 1, devmem_stream()));
	for (uint32_t layer = 0; layer < 2; layer++) {
		fill(form, layer, Q, first, n, FORMS_HEADS, r.q);
		fill(form, layer, K, first, n, FORMS_KV_HEADS, r.k);
		fill(form, layer, V, first, n, FORMS_KV_HEADS, r.v);
		OK(devmem_attend(s, layer, &r, layer == 0));
		most = fmaxf(most, difference(form, layer, first, n, r.out));
	}
	OK(skv_step_end(s, NULL, NULL));
	devmem_rows_free(&r);
	return most;
}

/* The layers of a form, from which the test then leaves out attributes. */
static void layers_of(uint32_t form, struct skv_model_layer layer[2], float sinks[2][FORMS_HEADS])
{
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t h = 0; h < FORMS_HEADS; h++)
			sinks[i][h] = 3 * forms_number((uint32_t[]){form, i, 3, h}, 4);
		layer[i] = SKV_MODEL_LAYER(.window = forms[form].window[i], .scale = forms[form].scale,
		                           .softcap = forms[form].softcap, .sinks = forms[form].sinks ? sinks[i] : NULL);
	}
}

static float run(uint32_t form, const struct skv_model_layer *layers)
{
	struct skv_session *s;
	struct skv_seq *seq;
	float most;

	strcpy(model.name, forms[form].name);
	model.layers = layers;
	OK(skv_open(client, &model, "full", &s));
	OK(skv_seq_new(s, NULL, 0, &seq));
	most = step(s, seq, form, 0, PROMPT);
	for (uint32_t t = PROMPT; t < FORMS_TOKENS; t++)
		most = fmaxf(most, step(s, seq, form, t, 1));
	skv_close(s);
	return most;
}

START_TEST(as_transformers)
{
	struct skv_model_layer layer[2];
	float sinks[2][FORMS_HEADS], most;

	layers_of((uint32_t)_i, layer, sinks);
	most = run((uint32_t)_i, layer);
	ck_assert_msg(most <= TOLERANCE, "%s: differs by %g", forms[_i].name, (double)most);
}
END_TEST

static void needed(uint32_t form, const char *what, const struct skv_model_layer *without)
{
	const float most = run(form, without);

	ck_assert_msg(most > 4e-2f, "%s without %s differs by %g alone", forms[form].name, what, (double)most);
}

START_TEST(all_of_it_is_needed)
{
	struct skv_model_layer whole[2], less[2];
	float sinks[2][FORMS_HEADS];

	for (uint32_t form = 0; form < N_FORMS; form++)
		for (uint32_t i = 0; i < 2; i++) {
			layers_of(form, whole, sinks);
			memcpy(less, whole, sizeof(less));
			less[i].window = 0;
			if (whole[i].window)
				needed(form, "a window", less);
			less[i] = whole[i];
			less[i].softcap = 0;
			if (whole[i].softcap > 0)
				needed(form, "its softcap", less);
			less[i] = whole[i];
			less[i].sinks = NULL;
			if (whole[i].sinks)
				needed(form, "sinks", less);
			less[i] = whole[i];
			less[i].scale = 0;
			if (form == 0) /* the others have 1/sqrt(head_dim) */
				needed(form, "its scale", less);
		}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-forms");
	TCase *t = add_case(s, "forms", 60, setup, client_end, all_of_it_is_needed, NULL);

	tcase_add_loop_test(t, as_transformers, 0, N_FORMS);
	return run_suite(s);
}
