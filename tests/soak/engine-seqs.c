/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/engine-seqs.c - an engine's sequences: makes, forks, truncates, attaches, detaches and drops them. A life
 * records what has happened to a sequence, and a name says which process may do what with a named one.
 */
#include "tests/soak/engine.h"

#include <errno.h>
#include <stdio.h>

struct mine *any(bool held)
{
	const uint32_t first = rnd_below(HELD);

	for (uint32_t i = 0; i < HELD; i++)
		if ((mine[(first + i) % HELD].seq != NULL) == held)
			return &mine[(first + i) % HELD];
	return NULL;
}

uint32_t any_session(void)
{
	return sessions[1] ? rnd_below(SESSIONS) : 0;
}

uint32_t life_number(const struct life *l)
{
	return (uint32_t)(l - soak->life);
}

const char *told(const struct mine *m)
{
	static char text[32];

	snprintf(text, sizeof(text), "%s/%u", m->name == SOAK_NONE ? "-" : name_of(m->name), life_number(m->life));
	return text;
}

static void check_ids(const struct mine *m)
{
	const struct life_now now = life_now(m->life);
	uint32_t len;
	const int32_t *ids = skv_seq_tokens(m->seq, &len);

	ck_assert_msg(len == now.len && ids[len] == now.next, "%s has %u tokens, expected %u; next %d, expected %d",
	              told(m), len, now.len, ids[len],
	              now.next);
	for (uint32_t i = 0; i < len; i++)
		ck_assert_msg(ids[i] == refmodel_token(life_content(m->life->keys[i], i)),
		              "%s: token %u of %u is %d, expected %d", told(m), i, len,
		              ids[i], refmodel_token(life_content(m->life->keys[i], i)));
}

static void hold(struct mine *m, struct skv_seq *q, struct life *l, uint32_t name, uint32_t session)
{
	*m = (struct mine){.seq = q, .life = l, .name = name, .session = session};
	check_ids(m);
}

uint32_t reserve_name(void)
{
	const uint32_t first = rnd_below(SOAK_NAMES);

	for (uint32_t i = 0; i < SOAK_NAMES; i++) {
		const uint32_t name = (first + i) % SOAK_NAMES;
		const uint64_t word = soak->name[name].word;

		if (soak->erasing == name + 1)
			continue;
		if (name_state(word) == NAME_ABSENT && name_change(name, word, NAME_MAKING, me))
			return name;
	}
	return SOAK_NONE;
}

/* Only this process changes the name now. */
void say_name(uint32_t name, enum name_state state)
{
	if (name != SOAK_NONE)
		ck_assert_msg(name_change(name, soak->name[name].word, state, state == NAME_ABSENT ? 0 : me),
		              "%s is somebody else's", name_of(name));
}

/* The sequence no longer exists. */
static void end_life(uint32_t name, struct life *l)
{
	if (name != SOAK_NONE)
		soak->name[name].life = SOAK_NONE;
	life_over(l);
	say_name(name, NAME_ABSENT);
}

/* ---- sequences ------------------------------------------------------------------------------- */

bool make(struct mine *m, struct mine *parent, uint32_t n, uint32_t name, uint32_t prompt)
{
	struct life *l = life_new(me);
	const uint32_t session = parent ? parent->session : any_session();
	const bool too_many = lives_may_be_too_many();
	struct skv_seq *q;
	int e;

	ck_assert_ptr_nonnull(l);
	if (parent) {
		const struct life_now now = life_now(parent->life);

		life_copy(l, parent->life);
		(void)life_add(l, (struct event){.what = SOAK_FORK, .stage = SOAK_BEGINNING, .after = (uint16_t)n,
		                                 .next = n == now.len ? now.next : -1,
		                                 .spec = spec_of(parent->seq)});
	}
	if (prompt != SOAK_NONE)
		prefixes_ask(l, prompt, n);
	if (name != SOAK_NONE) {
		soak->name[name].life = life_number(l);
		life_named(l);
	}
	engine_say("%s %s%s: life %u, %u tokens", parent ? "fork" : "new", name == SOAK_NONE ? "-" : name_of(name),
	           parent ? " of another" : "",
	           life_number(l), n);
	e = parent ? skv_seq_fork(parent->seq, name == SOAK_NONE ? NULL : name_of(name),
	                          n == skv_seq_len(parent->seq) && rnd_below(2) ? SKV_ALL : n, &q)
	           : prompt != SOAK_NONE ? prefixes_new_from(sessions[session], name == SOAK_NONE ? NULL : name_of(name), l, &q)
	                                 : skv_seq_new(sessions[session], name == SOAK_NONE ? NULL : name_of(name), 0, &q);
	if (called(e) == 0) {
		if (parent)
			l->event[l->n - 1].stage = SOAK_DONE;
		say_name(name, NAME_HELD);
		if (prompt != SOAK_NONE)
			prefixes_begun(l, q);
		hold(m, q, l, name, session);
		return true;
	}
	l->n = 0;
	end_life(name, l);
	if (e == -ESTALE && parent) {
		(void)life_add(parent->life, (struct event){.what = SOAK_FORK, .stage = SOAK_REFUSED, .after = (uint16_t)n,
		                                            .spec = spec_of(parent->seq)});
		ADD(STALE, 1);
		return false;
	}
	/* the call may have waited for a store while other engines made sequences */
	ck_assert_msg(e == -EDQUOT && (too_many || lives_may_be_too_many()), "%d %s, with %u sequences", e, skv_last_error(), lives_count());
	ADD(QUOTA_SEQS, 1);
	return false;
}

void act_new(void)
{
	struct mine *m = any(false);

	if (m)
		(void)make(m, NULL, 0, rnd_below(2) ? reserve_name() : SOAK_NONE, SOAK_NONE);
}

void act_fork(void)
{
	struct mine *m = any(false), *parent = any(true);
	struct life_now now;

	if (!m || !parent || life_is_full(parent->life))
		return;
	now = life_now(parent->life);
	if (now.remaining || now.len == 0)
		return;
	ADD(FORKS, make(m, parent, rnd_below(2) ? now.len : 1 + rnd_below(now.len),
	                rnd_below(2) ? reserve_name() : SOAK_NONE, SOAK_NONE));
}

void act_truncate(void)
{
	struct mine *m = any(true);
	struct life_now now;
	struct event *v;
	uint32_t n;
	int e;

	if (!m || life_is_full(m->life))
		return;
	now = life_now(m->life);
	n = rnd_below(8) == 0 ? 0 : now.len - rnd_below(1 + (rnd_below(2) && now.len > 20 ? 20 : now.len));
	if (now.remaining)
		return;
	v = life_add(m->life, (struct event){.what = SOAK_TRUNCATE, .stage = SOAK_BEGINNING, .after = (uint16_t)n,
	                                     .next = (int32_t)rnd_below(1000),
	                                     .spec = spec_of(m->seq)});
	engine_say("truncate %s to %u", told(m), n);
	e = called(skv_seq_truncate(m->seq, n, v->next));
	ck_assert_msg(e == 0 || e == -ESTALE, "truncate to %u: %d %s", n, e, skv_last_error());
	v->stage = e == 0 ? SOAK_DONE : SOAK_REFUSED;
	if (e == 0)
		ADD(TRUNCATIONS, 1);
	else
		ADD(STALE, 1);
	check_ids(m);
}

static void detach(struct mine *m)
{
	struct skv_seq *q = m->seq;
	uint64_t word;

	engine_say("detach %s", told(m));
	m->seq = NULL;
	say_name(m->name, NAME_LEAVING);
	word = soak->name[m->name].word;
	CALLED(skv_seq_detach(q));
	(void)name_change(m->name, word, NAME_LEFT, 0); /* fails if another process has it already */
}

void drop(struct mine *m)
{
	struct skv_seq *q = m->seq;

	engine_say("drop %s", told(m));
	m->seq = NULL;
	say_name(m->name, NAME_DROPPING);
	CALLED(skv_seq_drop(q));
	end_life(m->name, m->life);
}

void act_detach(void)
{
	struct mine *m = any(true);

	if (m && m->name != SOAK_NONE)
		detach(m);
}

/* Prefers full ones. */
void act_drop(void)
{
	struct mine *m = any(true);

	for (uint32_t i = 0; i < HELD; i++)
		if (mine[i].seq && life_is_full(mine[i].life))
			m = &mine[i];
	if (m)
		drop(m);
}

/* Takes over a sequence that another process left, or one that was killed. */
static void took_over(struct mine *m, struct skv_seq *q, uint32_t name, uint32_t session)
{
	const uint32_t life = soak->name[name].life, number = (uint32_t)(self - soak->engine);
	uint32_t len;
	const int32_t *ids = skv_seq_tokens(q, &len);
	struct life *l = &soak->life[life];

	ck_assert_msg(life != SOAK_NONE && life_state(l) == SOAK_LIVE, "%s can be attached, and nobody made it",
	              name_of(name));
	ck_assert_msg(life_settle(l, len, ids[len]),
	              "%s (life %u): %u tokens and next %d, after %u events, with %u tokens and next %d", name_of(name),
	              life, len, ids[len], l->n, life_now(l).len, life_now(l).next);
	life_runs(l, spec_of(q));
	hold(m, q, l, name, session);
	ADD(HAND_OVERS, soak->name[name].engine != number);
	ADD(FROM_DISK, soak->name[name].parked);
	soak->name[name].parked = false;
	soak->name[name].engine = number;
}

void attach(uint32_t name)
{
	struct mine *m = any(false);
	const uint32_t session = any_session();
	uint64_t before = soak->name[name].word;
	struct skv_seq *q;
	int e;

	if (!m)
		return;
	engine_say("attach %s: word %llx", name_of(name), (unsigned long long)before);
	self->trying = name + 1;
	e = called(skv_seq_attach(sessions[session], name_of(name), &q));
	if (e == 0) {
		ck_assert_msg(name_take(name, me), "attached %s: word %llx, now %llx", name_of(name),
		              (unsigned long long)before,
		              (unsigned long long)soak->name[name].word);
		self->trying = 0;
		took_over(m, q, name, session);
		return;
	}
	/* a parked sequence needs room in memory */
	ck_assert_msg(name_may_refuse(name, (uint32_t)(self - soak->engine), before, e) || (e == -EDQUOT && lives_may_be_too_many()),
	              "attach %s: %d %s; word %llx", name_of(name), e, skv_last_error(), (unsigned long long)before);
	if (e == -EDQUOT) {
		ADD(QUOTA_SEQS, 1);
	} else if (e == -ENOENT) {
		name_is_absent(name, before);
		ADD(NAME_GONE, 1);
	} else {
		ADD(NAME_BUSY, 1);
	}
	self->trying = 0;
}

void act_attach(void)
{
	attach(rnd_below(SOAK_NAMES));
}

/* A name that the engine holds itself cannot be given to another sequence. */
void act_taken(void)
{
	struct mine *m = any(true), *parent = any(true);
	struct skv_seq *q;
	int e;

	if (!m || m->name == SOAK_NONE)
		return;
	engine_say("name %s again", told(m));
	if (rnd_below(2))
		e = skv_seq_new(sessions[0], name_of(m->name), 0, &q);
	else
		e = skv_seq_fork(parent->seq, name_of(m->name), SKV_ALL, &q);
	ck_assert_msg(called(e) == -EEXIST || (e == -EDQUOT && lives_may_be_too_many()), "%d %s", e, skv_last_error());
	ADD(NAME_TAKEN, 1);
}
