/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/engine.c - a process that uses the client library in random order; the table of actions is at the end.
 *
 * None of its calls may fail except with required refusals, which are checked where they can occur.
 */
#include "tests/soak/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/manager.h"
#include "tests/support/mute-proxy.h"

uint32_t me;
struct engine *self;
struct skv_session *sessions[SESSIONS];
struct mine mine[HELD];
static struct skv_client *client;

/* ---- recorded actions --------------------------------------------------------------------------- */

static double began;

void engine_say(const char *format, ...)
{
	char *to = self->said[self->n_said % SOAK_SAID];
	va_list ap;
	int n;

	n = snprintf(to, sizeof(self->said[0]), "%.3f ", fix_now());
	va_start(ap, format);
	vsnprintf(to + n, sizeof(self->said[0]) - (size_t)n, format, ap);
	va_end(ap);
	self->n_said++;
	began = fix_now();
	self->since = began;
}

/* The call that was recorded has returned. */
int called(int e)
{
	times_add(&soak->call, fix_now() - began);
	ADD(CALLS, 1);
	began = fix_now();
	return e;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Plans what the sequence does in a step; false: nothing. */
static bool plan(struct soak_item *it, const struct mine *m)
{
	const struct life_now now = life_now(m->life);
	struct event v = {.key = (uint32_t)rnd64(), .next_spec = self->target};
	const uint32_t kind = rnd_below(20);

	if (life_is_full(m->life))
		return false;
	v.what = now.remaining || now.len == 0 || kind == 0 ? SOAK_PROMPT : SOAK_DECODE;
	v.rows = 1;
	if (now.remaining) {
		v.rows = (uint16_t)(1 + rnd_below(now.remaining));
		v.remaining = (uint16_t)(now.remaining - v.rows);
	} else if (v.what == SOAK_PROMPT) {
		const uint32_t room = m->life->most - now.len, most = now.len ? 30 : 110;
		const uint32_t n = 1 + rnd_below(room < most ? room : most);

		v.rows = (uint16_t)(rnd_below(3) ? n : 1 + rnd_below(n));
		v.remaining = (uint16_t)(n - v.rows);
	} else if (kind < 3 && !soak->one_row[spec_of(m->seq)]) {
		v.rows = (uint16_t)(2 + rnd_below(3));
	}
	v.accepted = v.what == SOAK_PROMPT || v.rows == 1 ? v.rows : (uint16_t)rnd_below(v.rows + 1u);
	*it = (struct soak_item){.seq = m->seq, .life = m->life};
	memcpy(&it->event, &v, sizeof(v));
	return true;
}

int engine_step(uint32_t session, struct soak_item *items, uint32_t n)
{
	const int e = called(soak_step(sessions[session], items, n));

	for (uint32_t i = 0; i < HELD; i++) /* a swap applies to all sequences of the session */
		if (mine[i].seq && mine[i].session == session)
			life_runs(mine[i].life, spec_of(mine[i].seq));
	return e;
}

static void act_step(void)
{
	const uint32_t session = any_session(), most = 1 + rnd_below(3), first = rnd_below(HELD);
	struct soak_item items[3];
	bool several = false;
	uint32_t n = 0;
	int e;

	for (uint32_t i = 0; i < HELD && n < most; i++) {
		const struct mine *m = &mine[(first + i) % HELD];

		if (m->seq && m->session == session && plan(&items[n], m))
			several |= items[n++].event.what == SOAK_DECODE && items[n - 1].event.rows > 1;
	}
	if (n == 0)
		return;
	engine_say("step of %u, the first one life %u: %u rows at %u", n, life_number(items[0].life),
	           items[0].event.rows, life_now(items[0].life).len);
	e = engine_step(session, items, n);
	if (e == -ENOTSUP && several) { /* another policy came with the begin */
		bool one_row = false;

		for (uint32_t i = 0; i < n; i++)
			one_row |= items[i].event.rows > 1 && soak->one_row[spec_of(items[i].seq)];
		ck_assert_msg(one_row, "%s", skv_last_error());
		ADD(ONE_ROW, 1);
		return;
	}
	OK(e);
	ck_assert_msg(!*skv_policy_error(sessions[session]), "a swap was refused: %s", skv_policy_error(sessions[session]));
}

/* ---- sessions, policies ---------------------------------------------------------------------- */

/* Closing the session detaches its sequences; anonymous ones are dropped. */
static void close_session(uint32_t session)
{
	struct mine left[HELD];
	uint32_t n = 0;

	for (uint32_t i = 0; i < HELD; i++)
		if (mine[i].seq && mine[i].session == session) {
			left[n++] = mine[i];
			mine[i].seq = NULL;
			if (mine[i].name != SOAK_NONE)
				say_name(mine[i].name, NAME_LEAVING);
		}
	engine_say("close session %u with %u sequences", session, n);
	skv_close(sessions[session]);
	(void)called(0);
	sessions[session] = NULL;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t word = left[i].name == SOAK_NONE ? 0 : soak->name[left[i].name].word;

		if (left[i].name == SOAK_NONE)
			life_over(left[i].life);
		else if (name_state(word) == NAME_LEAVING && name_holder(word) == me)
			(void)name_change(left[i].name, word, NAME_LEFT, 0);
	}
}

static void open_session(uint32_t session)
{
	const uint32_t spec = rnd_below(soak->n_specs);

	if (session == 0)
		self->target = (uint8_t)spec;
	engine_say("open session %u with %.40s", session, soak->spec[spec]);
	CALLED(skv_open(client, &soak_model, soak->spec[session ? self->target : spec], &sessions[session]));
	ADD(SESSIONS, 1);
}

static void act_session(void)
{
	const uint32_t session = rnd_below(SESSIONS);

	if (sessions[session])
		close_session(session);
	if (session == 0 || rnd_below(2))
		open_session(session);
}

/* Opens more sessions than a client may have. */
static void act_sessions(void)
{
	const uint32_t have = 1 + (sessions[1] != NULL);
	struct skv_session *s[SOAK_SESSIONS + 1];
	uint32_t n = 0;
	int e;

	engine_say("sessions, as many as it may have");
	while ((e = called(skv_open(client, &soak_model, soak->spec[self->target], &s[n]))) == 0 && n < SOAK_SESSIONS)
		n++;
	ck_assert_msg(e == -EDQUOT && n + have == SOAK_SESSIONS, "%d %s, with %u sessions", e, skv_last_error(), n + have);
	ADD(QUOTA_SESSIONS, 1);
	while (n > 0)
		skv_close(s[--n]);
}

static void act_policy(void)
{
	struct mine *m = any(true);
	const char *spec = rnd_below(3) ? soak->spec[rnd_below(soak->n_specs)] : NULL;

	if (!m)
		return;
	engine_say("policy of %s: %.40s", told(m), spec ? spec : "the session's");
	CALLED(skv_seq_policy(m->seq, spec));
	life_runs(m->life, spec_of(m->seq));
	ADD(OWN_POLICIES, 1);
}

static void act_room(void)
{
	struct skv_room room = {.size = sizeof(room)};

	engine_say("room");
	CALLED(skv_session_room(sessions[0], &room));
}

/* ---- the table ---------------------------------------------------------------------------------- */

/* What engines do, and how often. */
static const struct action {
	uint32_t weight;
	void (*act)(void);
} actions[] = {
	{400, act_step},
	{70, act_new},
	{90, act_fork},
	{60, act_truncate},
	{70, act_detach},
	{120, act_attach},
	{70, act_drop},
	{12, act_prompt},
	{10, act_seal},
	{10, act_taken},
	{10, act_session},
	{2, act_sessions},
	{20, act_policy},
	{5, act_room},
};

static void act(void)
{
	const struct action *a = actions;
	uint32_t all = 0, at;

	for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
		all += actions[i].weight;
	for (at = rnd_below(all); at >= a->weight; a++)
		at -= a->weight;
	a->act();
}

/* The session's statistics are those of the last step. */
static uint64_t count_stock(void)
{
	struct skv_room room = {.size = sizeof(room)}; /* so an earlier request for pages is answered first */
	struct skv_stats stats = {.size = sizeof(stats)};
	uint64_t n = 0;

	for (uint32_t i = 0; i < SESSIONS; i++)
		if (sessions[i]) {
			engine_say("room");
			CALLED(skv_session_room(sessions[i], &room));
			OK(skv_session_stats(sessions[i], &stats));
			n += stats.stock_pages;
		}
	return n;
}

static void rest(void)
{
	self->stock = count_stock();
	self->idle = true;
	while (soak->quiet && !soak->stop) {
		usleep(1000);
		self->since = fix_now();
	}
	self->idle = false;
}

static void say_failed(void)
{
	int32_t none = 0;

	(void)atomic_compare_exchange_strong(&soak->failed, &none, (int32_t)(self - soak->engine) + 1);
}

static void begin(int number, uint32_t process)
{
	char path[96];

	child_before_failure = say_failed;
	self = &soak->engine[number];
	me = process;
	self->process = process;
	rnd_begin(process);
	engine_say("process %u begins", process);
	mute_proxy_start(manager_socket, &soak->mute, path);
	CALLED(skv_connect(&client, path));
	skv_set_timeout(client, 20000);
	OK(skv_set_threads(client, 1));
	open_session(0);
}

static _Noreturn void end(void)
{
	for (uint32_t i = 0; i < SESSIONS; i++)
		if (sessions[i])
			close_session(i);
	skv_disconnect(client);
	_exit(0);
}

void engine_run(int number, uint32_t process)
{
	uint32_t pace_us;

	begin(number, process);
	pace_us = rnd_below(4) ? 1 + rnd_below(4000) : 1;
	while (!soak->stop) {
		if (soak->quiet)
			rest();
		act();
		usleep(rnd_below(pace_us));
	}
	end();
}

void engine_sweep(uint32_t process)
{
	begin(0, process);
	for (uint32_t name = 0; name < SOAK_NAMES; name++) {
		attach(name);
		for (uint32_t i = 0; i < HELD; i++)
			if (mine[i].seq)
				drop(&mine[i]);
		ck_assert_msg(name_state(soak->name[name].word) == NAME_ABSENT, "%s: word %llx", name_of(name),
		              (unsigned long long)soak->name[name].word);
	}
	end();
}
