/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rank-group.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/device-helper.h"

void rank_group_begin(struct rank_group *g, uint32_t n)
{
	*g = (struct rank_group){.n = n};
	ck_assert_uint_le(n, RANK_GROUP_MAX);
	pthread_barrier_init(&g->all, NULL, n);
	for (uint32_t i = 0; i < n; i++)
		g->member[i].group = g;
}

void rank_group_end(struct rank_group *g)
{
	pthread_barrier_destroy(&g->all);
}

/* Scores beyond a sequence's end were never written and may be NaN: then a stays. */
static float larger(float a, float b)
{
	return b > a ? b : a;
}

static int all_reduce_max(void *ctx, float *data, size_t count, void *stream)
{
	struct rank_member *own = ctx;
	struct rank_group *g = own->group;
	int answer = count > 16 ? own->fail_scores : own->fail_confirm;
	float *from, *most;

	*(count > 16 ? &own->scores : &own->confirmed) += 1;
	if (answer)
		return answer;
	if (devmem_is_device()) /* devmem_from() waits for a stream of its own only */
		ck_assert_int_eq(devmem_device()->wait(stream), 0);
	from = malloc((count + 1) * sizeof(*from));
	most = malloc((count + 1) * sizeof(*most));
	devmem_from(from, data, count * sizeof(*from));
	own->data = from;
	own->count = count;
	pthread_barrier_wait(&g->all);
	memcpy(most, from, count * sizeof(*most));
	for (uint32_t r = 0; r < g->n; r++) {
		ck_assert_msg(g->member[r].count == count, "rank %u reduces %zu numbers, another one %zu", r, g->member[r].count, count);
		for (size_t i = 0; i < count; i++)
			most[i] = larger(most[i], g->member[r].data[i]);
	}
	pthread_barrier_wait(&g->all);
	devmem_to(data, most, count * sizeof(*most));
	free(from);
	free(most);
	return 0;
}

void rank_group_join(struct rank_group *g, uint32_t rank, struct skv_model *m)
{
	m->n_heads /= g->n;
	m->n_kv_heads /= g->n;
	m->rank = rank;
	m->n_ranks = g->n;
	m->all_reduce_max = all_reduce_max;
	m->all_reduce_ctx = &g->member[rank];
}

struct work {
	void (*fn)(void *ctx, uint32_t rank);
	void *ctx;
	uint32_t rank;
};

static void *work(void *arg)
{
	const struct work *w = arg;

	w->fn(w->ctx, w->rank);
	return NULL;
}

void rank_group_run(const struct rank_group *g, void (*fn)(void *ctx, uint32_t rank), void *ctx)
{
	struct work of[RANK_GROUP_MAX];
	pthread_t thread[RANK_GROUP_MAX];

	for (uint32_t r = 0; r < g->n; r++) {
		of[r] = (struct work){fn, ctx, r};
		ck_assert_int_eq(pthread_create(&thread[r], NULL, work, &of[r]), 0);
	}
	for (uint32_t r = 0; r < g->n; r++)
		pthread_join(thread[r], NULL);
}
