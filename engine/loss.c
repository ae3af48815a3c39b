/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/loss.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/ops.h"

#define AT_ONCE 8u    /* policies, each a session; a client may have 16 */
#define SPEC_MAX 512u /* bytes, NUL included; the daemon takes no longer ones */

static float *dense_row(const struct eng_loss *l, size_t c, uint32_t at)
{
	return l->dense + (l->first[c] + at) * l->eval.model->config.vocab;
}

static void keep(void *arg, uint32_t policy, size_t c, uint32_t at, const float *logits)
{
	struct eng_loss *l = arg;
	uint32_t vocab = l->eval.model->config.vocab;
	float *to = dense_row(l, c, at), all = logits[0] + (float)eng_nll(logits, vocab, 0);

	(void)policy;
	for (uint32_t i = 0; i < vocab; i++)
		to[i] = logits[i] - all;
}

static void compare(void *arg, uint32_t policy, size_t c, uint32_t at, const float *logits)
{
	struct eng_loss *l = arg;
	uint32_t vocab = l->eval.model->config.vocab;
	const float *dense = dense_row(l, c, at);
	double all = logits[0] + eng_nll(logits, vocab, 0);

	for (uint32_t i = 0; i < vocab; i++)
		l->sum[policy] += exp(dense[i]) * (dense[i] - (logits[i] - all));
}

static int run(struct eng_loss *l, const char *const *specs, uint32_t n, struct eng_error *err)
{
	struct eng_result *results;
	int r;

	l->eval.policies = specs;
	l->eval.n_policies = n;
	l->eval.arg = l;
	r = eng_evaluate(&l->eval, &results, err);
	if (!r)
		free(results);
	return r;
}

int eng_loss_init(struct eng_loss *l, const struct eng_eval *eval, struct eng_error *err)
{
	static const char *const dense[] = {"full"};
	uint32_t vocab = eval->model->config.vocab;
	int r;

	*l = (struct eng_loss){.eval = *eval};
	l->eval.mode = ENG_FORCED;
	l->first = calloc(eval->cases->n, sizeof(*l->first));
	for (size_t i = 0; l->first && i < eval->cases->n; i++) {
		l->first[i] = l->rows;
		l->rows += eval->cases->list[i].n_answer;
	}
	l->dense = calloc(l->rows, vocab * sizeof(*l->dense));
	l->sum = calloc(AT_ONCE, sizeof(*l->sum));
	l->eval.looks = keep;
	if (!l->first || !l->dense || !l->sum)
		r = eng_fail(err, -ENOMEM, "no memory for predictions of %zu tokens", l->rows);
	else
		r = run(l, dense, 1, err);
	l->eval.looks = compare;
	if (r)
		eng_loss_deinit(l);
	return r;
}

void eng_loss_deinit(struct eng_loss *l)
{
	free(l->first);
	free(l->dense);
	free(l->sum);
	*l = ENG_LOSS_NULL;
}

int eng_loss_of(struct eng_loss *l, const char *const *specs, uint32_t n, double *ret, struct eng_error *err)
{
	int r = 0;

	for (uint32_t at = 0; !r && at < n; at += AT_ONCE) {
		uint32_t now = n - at < AT_ONCE ? n - at : AT_ONCE;

		memset(l->sum, 0, now * sizeof(*l->sum));
		r = run(l, specs + at, now, err);
		for (uint32_t i = 0; !r && i < now; i++)
			ret[at + i] = l->sum[i] / (double)l->rows;
	}
	return r;
}

static int spell(const char *prefix, const struct skv_layer_set *set, char spec[SPEC_MAX], struct eng_error *err)
{
	size_t at = (size_t)snprintf(spec, SPEC_MAX, "%s", prefix);
	const char *comma = "";

	for (uint32_t l = 0; l < SKV_MAX_LAYERS && at < SPEC_MAX; l++)
		if (skv_layer_in(set, l)) {
			at += (size_t)snprintf(spec + at, SPEC_MAX - at, "%s%u", comma, l);
			comma = ",";
		}
	return at < SPEC_MAX ? 0 : eng_fail(err, -EINVAL, "%.60s...: too many layers for a policy spec", spec);
}

int eng_loss_of_layers(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err)
{
	struct eng_loss *l = arg;
	char(*text)[SPEC_MAX] = calloc(n, sizeof(*text));
	const char **specs = calloc(n, sizeof(*specs));
	int r = text && specs ? 0 : eng_fail(err, -ENOMEM, "no memory for %u specs", n);

	for (uint32_t i = 0; !r && i < n; i++) {
		specs[i] = text[i];
		r = spell(l->prefix, &sets[i], text[i], err);
	}
	r = r ? r : eng_loss_of(l, specs, n, ret, err);
	free(specs);
	free(text);
	return r;
}
