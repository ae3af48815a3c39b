/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/zero-weights.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "formats/safetensors.h"
#include "libclient/compress/compressed-lengths.h"
#include "libclient/compress/compressor.h"
#include "libclient/policy.h"
#include "libclient/session.h"

static const struct {
	const char *policy;
	uint32_t part; /* default size of a code: the number of K and V elements divided by `part` */
	const char *stride, *near;
} made[] = {{"deltakv", 4, "10", "4"}, {"palu", 2, "0", "0"}};
#define N_MADE (sizeof made / sizeof *made)

/* ---- compressors ----------------------------------------------------------------------------- */

static void die(const char *why)
{
	fprintf(stderr, "sparsekv-bench: %s\n", why);
	exit(1);
}

static char folder[SKV_PROFILE_PATH]; /* path of the folder; "": there is none */

static void path_of(size_t which, char to[SKV_PROFILE_PATH + 32])
{
	snprintf(to, SKV_PROFILE_PATH + 32, "%s/%s.safetensors", folder, made[which].policy);
}

static void make(const struct skv_model *m, size_t which, uint32_t width)
{
	const struct skv_about about[] = {
		{"sparsekv_codec", "1"}, {"stride", made[which].stride}, {"near", made[which].near}};
	const uint32_t d = 2 * m->n_kv_heads * m->head_dim;
	struct skv_new_tensor *t = calloc(2 * m->n_layers, sizeof *t);
	char path[SKV_PROFILE_PATH + 32], err[256];
	float *zeros;

	width = width ? width : d / made[which].part;
	zeros = calloc((size_t)d * width, sizeof *zeros);
	if (!t || !zeros)
		die("out of memory");
	for (uint32_t l = 0; l < m->n_layers; l++) {
		t[2 * l] = (struct skv_new_tensor){.rows = width, .cols = d, .data = zeros};
		t[2 * l + 1] = (struct skv_new_tensor){.rows = d, .cols = width, .data = zeros};
		snprintf(t[2 * l].name, sizeof t->name, "layers.%u.down", l);
		snprintf(t[2 * l + 1].name, sizeof t->name, "layers.%u.out", l);
	}
	path_of(which, path);
	if (skv_safetensors_write(path, t, 2 * m->n_layers, about, sizeof about / sizeof *about, err, sizeof err) < 0)
		die(err);
	free(zeros);
	free(t);
}

void geometry_end(void)
{
	char path[SKV_PROFILE_PATH + 32];

	for (size_t i = 0; folder[0] && i < N_MADE; i++) {
		path_of(i, path);
		unlink(path);
	}
	if (folder[0])
		rmdir(folder);
	folder[0] = '\0';
}

void geometry_begin(struct skv_model *m, uint32_t width)
{
	static bool once;
	const char *tmp = getenv("TMPDIR");

	if (!once)
		atexit(geometry_end); /* failures end the program by exit() */
	once = true;
	snprintf(folder, sizeof folder, "%s/sparsekv-bench-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(folder)) {
		folder[0] = '\0';
		die("no folder for compressors can be made in $TMPDIR");
	}
	for (size_t i = 0; i < N_MADE; i++)
		make(m, i, width);
	snprintf(m->files, sizeof m->files, "%s", folder);
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* Adds the pages of a layer that compresses its tokens, and subtracts the K and V pages that compression frees. */
static void add_compressed(const struct skv_session *s, uint32_t layer, uint32_t tokens, uint64_t pages[SKV_PAGE_KINDS])
{
	const struct skv_codec *c = &s->policy->compressor->layer[layer].code;
	const uint32_t coded = compress_end(&s->policy->plan[layer].compress, tokens);
	struct skv_shape shape = s->shape;

	shape.codec = c;
	if (coded == 0)
		return;
	pages[SKV_PAGES_KV] -= (coded - c->first) / SKV_PAGE_TOKENS;
	pages[SKV_PAGES_CODES] += records_pages(compress_records(&shape, SKV_PAGES_CODES, coded));
	pages[SKV_PAGES_REFS] += records_pages(compress_records(&shape, SKV_PAGES_REFS, coded));
}

bool geometry_pages(const struct skv_session *s, uint32_t tokens, uint64_t pages[SKV_PAGE_KINDS])
{
	memset(pages, 0, SKV_PAGE_KINDS * sizeof *pages);
	for (uint32_t layer = 0; layer < s->model.n_layers; layer++) {
		const struct skv_plan *plan = &s->policy->plan[layer];

		if (plan->evict.granularity || plan_has_state(plan) || plan->attend == SKV_ATTEND_WINDOW)
			return false;
		pages[SKV_PAGES_KV] += skv_pages_of(tokens);
		if (plan->compress.kind)
			add_compressed(s, layer, tokens, pages);
	}
	return true;
}
