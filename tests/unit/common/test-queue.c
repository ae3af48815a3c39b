/* SPDX-License-Identifier: Apache-2.0 */
/* A queue that users share: the order of turns, against a list of all entries that is searched from the beginning. */
#include <check.h>

#include "common/queue.h"
#include "tests/support/suite.h"

#define USERS 5u
#define ENTRIES 40u

static struct skv_queue queue;
static struct skv_queued entries[ENTRIES];

static struct skv_queued *put(uint32_t i, uint32_t user)
{
	skv_queue_put(&queue, &entries[i], user);
	return &entries[i];
}

START_TEST(users_take_turns)
{
	struct skv_queued *a1 = put(0, 1000), *a2 = put(1, 1000), *a3 = put(2, 1000), *b1 = put(3, 1001), *c1 = put(4, 1002), *b2 = put(5, 1001);
	struct skv_queued *expected[] = {a1, b1, c1, a2, b2, a3, NULL};

	for (unsigned i = 0; i < sizeof(expected) / sizeof(*expected); i++)
		ck_assert_ptr_eq(skv_queue_take(&queue), expected[i]);
}
END_TEST

/* A user whose entries come one by one waits for one entry of each other user, like a user whose entries wait. */
START_TEST(one_by_one)
{
	for (uint32_t i = 0; i < ENTRIES / 2; i++)
		(void)put(i, 1000);
	for (uint32_t i = ENTRIES / 2; i < ENTRIES; i++) {
		struct skv_queued *mine = put(i, 1001);

		ck_assert_uint_eq(skv_queue_take(&queue)->user, 1000);
		ck_assert_ptr_eq(skv_queue_take(&queue), mine);
	}
	ck_assert_ptr_null(skv_queue_take(&queue));
}
END_TEST

START_TEST(first_of_all)
{
	struct skv_queued *a1 = put(0, 1000), *b1 = put(1, 1001), *b2 = put(2, 1001), *c1 = put(3, 1002);

	ck_assert_ptr_eq(skv_queue_take(&queue), a1);
	ck_assert_ptr_eq(skv_queue_take(&queue), b1);
	skv_queue_put_first(&queue, b1, 1001);
	skv_queue_put_first(&queue, a1, 1000);
	ck_assert_ptr_eq(skv_queue_take(&queue), a1);
	ck_assert_ptr_eq(skv_queue_take(&queue), b1);
	ck_assert_ptr_eq(skv_queue_take(&queue), c1);
	ck_assert_ptr_eq(skv_queue_take(&queue), b2);
	ck_assert_ptr_null(skv_queue_take(&queue));
}
END_TEST

/* ---- at random ------------------------------------------------------------------------------- */

/* The expected queue: users in the order of their turns, and entries in the order in which they were put in. */
static struct {
	uint32_t users[USERS], n_users;
	struct skv_queued *order[ENTRIES];
	uint32_t n;
} model;

static void forget_user(uint32_t user)
{
	uint32_t i = 0;

	while (model.users[i] != user)
		i++;
	for (model.n_users--; i < model.n_users; i++)
		model.users[i] = model.users[i + 1];
}

static struct skv_queued *first_of(uint32_t user)
{
	for (uint32_t i = 0; i < model.n; i++)
		if (model.order[i]->user == user)
			return model.order[i];
	return NULL;
}

static void forget(const struct skv_queued *e)
{
	uint32_t i = 0;

	while (model.order[i] != e)
		i++;
	for (model.n--; i < model.n; i++)
		model.order[i] = model.order[i + 1];
}

static void put_somewhere(struct skv_queued *e)
{
	const uint32_t user = rnd_below(USERS);

	if (!first_of(user))
		model.users[model.n_users++] = user;
	skv_queue_put(&queue, e, user);
	model.order[model.n++] = e;
}

static void take(void)
{
	struct skv_queued *expected = model.n ? first_of(model.users[0]) : NULL;

	ck_assert_ptr_eq(skv_queue_take(&queue), expected);
	if (!expected)
		return;
	ck_assert_ptr_null(expected->in);
	forget(expected);
	forget_user(expected->user);
	if (first_of(expected->user))
		model.users[model.n_users++] = expected->user;
}

static void remove_any(struct skv_queued *e)
{
	const bool waited = e->in;

	skv_queue_remove(e);
	ck_assert_ptr_null(e->in);
	if (!waited)
		return;
	forget(e);
	if (!first_of(e->user))
		forget_user(e->user);
}

static uint32_t length(void)
{
	uint32_t n = 0;

	SKV_QUEUE_EACH(e, &queue) {
		ck_assert_ptr_eq(e->in, &queue);
		n++;
	}
	return n;
}

START_TEST(at_random)
{
	for (unsigned i = 0; i < 100000; i++) {
		struct skv_queued *e = &entries[rnd_below(ENTRIES)];

		if (rnd_below(3) == 0)
			take();
		else if (!e->in)
			put_somewhere(e);
		else if (rnd_below(3) == 0)
			remove_any(e);
		ck_assert_uint_eq(length(), model.n);
	}
	while (model.n)
		take();
	take();
}
END_TEST

/* A round: entries that are put in meanwhile have no turn in it. */
START_TEST(rounds)
{
	struct skv_queue round = {0};
	struct skv_queued *a1 = put(0, 1000), *a2 = put(1, 1000), *b1 = put(2, 1001);

	skv_queue_move(&round, &queue);
	ck_assert_ptr_null(queue.first);
	ck_assert_ptr_eq(skv_queue_take(&round), a1);
	skv_queue_put(&queue, a1, 1000);
	skv_queue_remove(a2);
	ck_assert_ptr_eq(skv_queue_take(&round), b1);
	ck_assert_ptr_null(skv_queue_take(&round));
	ck_assert_ptr_eq(skv_queue_take(&queue), a1);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-queue");

	add_case(s, "turns", 10, NULL, NULL, users_take_turns, one_by_one, first_of_all, rounds, NULL);
	add_case(s, "random", 30, NULL, NULL, at_random, NULL);
	return run_suite(s);
}
