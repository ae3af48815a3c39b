/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/life.c - records of sequences.
 *
 * If the record does not say which step is committed, the sequence itself does: the step that was in progress has
 * happened or not.
 */
#include "tests/soak/soak.h"

#include <stdatomic.h>
#include <string.h>

/* Takes a life in this state, which becomes LIVE. */
static struct life *take(enum soak_life state, uint32_t owner)
{
	const uint32_t first = rnd_below(SOAK_LIVES);

	for (uint32_t i = 0; i < SOAK_LIVES; i++) {
		struct life *l = &soak->life[(first + i) % SOAK_LIVES];
		uint32_t was = state;

		if (atomic_compare_exchange_strong(&l->state, &was, SOAK_LIVE | owner << 8)) {
			l->n = 0;
			l->most = SOAK_TOKENS;
			l->asked = 0;
			return l;
		}
	}
	return NULL;
}

struct life *life_new(uint32_t owner)
{
	struct life *l = take(SOAK_FREE, owner);

	if (!l && (l = take(SOAK_OVER, owner)))
		ADD(NOT_COMPARED, 1);
	return l;
}

void life_copy(struct life *to, const struct life *from)
{
	memcpy(to->keys, from->keys, sizeof(to->keys));
	memcpy(to->event, from->event, from->n * sizeof(to->event[0]));
	to->n = from->n;
	to->most = from->most;
}

void life_over(struct life *l)
{
	if (l->n && l->event[l->n - 1].stage < SOAK_DONE)
		l->n--;
	l->state = l->n ? SOAK_OVER : SOAK_FREE;
}

void life_named(struct life *l)
{
	l->state = SOAK_LIVE;
}

struct event *life_add(struct life *l, struct event e)
{
	const struct life_now now = life_now(l);
	struct event *to = &l->event[l->n];

	ck_assert_uint_lt(l->n, SOAK_EVENTS);
	e.before = (uint16_t)now.len;
	if (e.what <= SOAK_DECODE) {
		e.after = (uint16_t)(now.len + e.accepted);
		for (uint32_t i = 0; i < e.rows; i++)
			l->keys[now.len + i] = e.key;
		e.next = e.accepted ? refmodel_token(life_content(e.key, now.len + e.accepted - 1) + 1) : now.next;
	}
	memcpy(to, &e, sizeof(e));
	l->n++;
	return to;
}

uint32_t lives_count(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < SOAK_LIVES; i++)
		n += life_state(&soak->life[i]) == SOAK_LIVE;
	return n;
}

bool lives_may_be_too_many(void)
{
	/* each engine may be about to make one, and lend the daemon another one for a prompt */
	return lives_count() + 2 * SOAK_ENGINES > soak->most_sequences;
}

void life_runs(struct life *l, uint8_t spec)
{
	if (l->n > 0 && l->event[l->n - 1].spec != spec && !life_is_full(l))
		/* no token changes */
		(void)life_add(l, (struct event){.what = SOAK_POLICY, .stage = SOAK_GIVEN_UP, .spec = spec});
}

struct life_now life_now(const struct life *l)
{
	for (uint32_t i = l->n; i > 0; i--) {
		const struct event *e = &l->event[i - 1];

		if (e->stage == SOAK_DONE)
			return (struct life_now){e->after, e->what == SOAK_PROMPT ? e->remaining : 0, e->next};
	}
	return (struct life_now){0, 0, -1};
}

static bool settle_step(struct event *e, uint32_t len)
{
	if (len == e->after && e->after != e->before) {
		if (e->stage != SOAK_ENDING)
			return false; /* its commit was not requested */
		e->stage = SOAK_DONE;
		return true;
	}
	e->stage = e->stage == SOAK_BEGINNING ? SOAK_UNSURE : SOAK_GIVEN_UP;
	return len == e->before;
}

bool life_settle(struct life *l, uint32_t len, int32_t next)
{
	struct event *e = l->n ? &l->event[l->n - 1] : NULL;
	const int32_t was = life_now(l).next;

	if (l->asked && (!e || e->given)) /* not all that it was given may be there */
		return prefixes_given(l, len) && next == -1;
	if (!e || e->stage >= SOAK_DONE)
		return len == life_now(l).len && next == was;
	if (e->what <= SOAK_DECODE)
		return settle_step(e, len) && next == life_now(l).next;
	if (len == e->after && next == e->next) {
		e->stage = SOAK_DONE;
		return true;
	}
	l->n--; /* a truncation that has not happened; a fork exists or does not */
	return e->what == SOAK_TRUNCATE && len == e->before && next == was;
}
