/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/quiet.c - checks, while no engine does anything, that everything adds up.
 *
 * Pages on lease are, for each client, its stock and the pages of sequences that it holds; pages of sequences are those
 * of the detached ones. The service manager stores what the state refers to, and nothing else. The memory that the
 * daemon reports is what its descriptors hold. And neither the daemon nor the engines that are never killed have more
 * descriptors or memory than earlier quiet points explain.
 */
#include "tests/soak/soak.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/manager.h"
#include "tests/support/restart-engine.h"

#define SOON_S 10 /* time for requests without a reply to complete */
#define MORE_FDS 8
#define MORE_KIB 8192
#define WARM 2 /* quiet points before the memory of processes is compared */

static json_t *seqs, *sessions, *status, *pools;

static int64_t figure(const json_t *row, const char *field)
{
	const json_t *value = json_object_get(row, field);

	ck_assert_msg(json_is_integer(value), "there is no %s", field);
	return json_integer_value(value);
}

static int64_t sum(const json_t *rows, const char *field)
{
	json_t *row;
	int64_t all = 0;
	size_t i;

	json_array_foreach(rows, i, row)
		all += figure(row, field);
	return all;
}

/* Private pages of sequences that this client holds; client 0: of detached ones. */
static int64_t pages_of(int64_t client)
{
	json_t *row, *n;
	const char *kind;
	int64_t all = 0;
	size_t i;

	json_array_foreach(seqs, i, row) {
		if (figure(row, "client") != client)
			continue;
		all -= figure(row, "pages_shared");
		json_object_foreach(json_object_get(row, "pages"), kind, n)
			all += json_integer_value(n);
	}
	return all;
}

static int64_t stock_of(int64_t pid)
{
	for (uint32_t i = 0; i < disturb_engines(); i++)
		if (disturb_engine(i) == pid)
			return (int64_t)soak->engine[i].stock;
	return 0;
}

/* Returns what does not add up; or "". */
static const char *pages_off(void)
{
	static char why[200];
	json_t *row, *pool = json_array_get(pools, 0);
	size_t i;

	why[0] = 0;
	json_array_foreach(json_object_get(status, "clients"), i, row) {
		const int64_t lease = figure(row, "lease_pages"), stock = stock_of(figure(row, "pid"));
		const int64_t used = pages_of(figure(row, "client"));

		if (lease != stock + used)
			snprintf(why, sizeof(why), "process %d has %d pages on lease, %d in stock and %d in sequences",
			         (int)figure(row, "pid"), (int)lease,
			         (int)stock, (int)used);
	}
	if (pool && figure(pool, "lease") != sum(json_object_get(status, "clients"), "lease_pages"))
		snprintf(why, sizeof(why), "the pool has %d pages on lease", (int)figure(pool, "lease"));
	if (pool && figure(pool, "seq") != pages_of(0))
		snprintf(why, sizeof(why), "%d pages are of sequences, and detached ones have %d",
		         (int)figure(pool, "seq"), (int)pages_of(0));
	if (pool && figure(pool, "shared") > sum(seqs, "pages_shared"))
		snprintf(why, sizeof(why), "%d pages are shared, and sequences share %d", (int)figure(pool, "shared"),
		         (int)sum(seqs, "pages_shared"));
	if (pool && figure(pool, "pages") != figure(pool, "free") + figure(pool, "lease") + figure(pool, "seq") +
	    figure(pool, "shared"))
		snprintf(why, sizeof(why), "the pool does not add up");
	return why;
}

/* Without parked sequences. */
static json_t *rows(struct raw *r, enum skv_query what, const char *list)
{
	json_t *answer = raw_query(r, what), *found = json_incref(json_object_get(answer, list));

	json_decref(answer);
	for (size_t i = json_array_size(found); i > 0; i--)
		if (json_object_get(json_array_get(found, i - 1), "parked_bytes"))
			json_array_remove(found, i - 1);
	return found;
}

static void look(struct raw *r)
{
	json_decref(seqs);
	json_decref(sessions);
	json_decref(status);
	json_decref(pools);
	seqs = rows(r, SKV_QUERY_SEQS, "sequences");
	sessions = rows(r, SKV_QUERY_SESSIONS, "sessions");
	pools = rows(r, SKV_QUERY_POOLS, "pools");
	status = raw_query(r, SKV_QUERY_STATUS);
}

/* ---- memory and descriptors ------------------------------------------------------------------ */

/* Memory of a process without shared memory. */
static long anonymous_kib(pid_t pid)
{
	char path[64], line[128];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (kib < 0 && fgets(line, sizeof(line), f))
		(void)sscanf(line, "RssAnon: %ld", &kib);
	fclose(f);
	ck_assert_int_ge(kib, 0);
	return kib;
}

/* Maximum at the first quiet points; later there may be a little more. */
struct level {
	long fds, kib;
};

static void compare(struct level *was, long fds, long kib, const char *who)
{
	if (soak->count[COUNT_QUIET] <= WARM) {
		was->fds = fds > was->fds ? fds : was->fds;
		was->kib = kib > was->kib ? kib : was->kib;
		return;
	}
	ck_assert_msg(fds <= was->fds + MORE_FDS, "%s: %ld descriptors that nothing explains, had %ld", who, fds,
	              was->fds);
	if (!slowed()) /* by a tool that delays the reuse of freed memory */
		ck_assert_msg(kib <= was->kib + MORE_KIB, "%s: %ld KiB of memory, had %ld", who, kib, was->kib);
}

static long explained(int64_t client)
{
	json_t *row;
	long n = 0;
	size_t i;

	json_array_foreach(seqs, i, row)
		n += figure(row, "client") == client;
	json_array_foreach(sessions, i, row)
		n += 2 * (figure(row, "client") == client);
	return n;
}

static void check_levels(struct raw *r)
{
	static struct level of_daemon, of_engine[SOAK_LASTING];
	const long fds = (long)fix_settled_fds(manager_daemon());
	const long workers = (long)fix_signal_children(manager_daemon(), NULL, 0); /* of each a pidfd and a socket */
	char who[32];

	compare(&of_daemon, fds - 2 * workers - (long)sum(json_object_get(status, "accounts"), "fds"),
	        anonymous_kib(manager_daemon()), "the daemon");
	for (uint32_t i = 0; i < SOAK_LASTING; i++) {
		uint32_t client;

		ck_assert_uint_eq(raw_clients_of(r, disturb_engine(i), &client), 1);
		snprintf(who, sizeof(who), "engine %u", i);
		compare(&of_engine[i], (long)fix_count_fds(disturb_engine(i)) - explained(client),
		        anonymous_kib(disturb_engine(i)), who);
	}
	raw_expect_held(r, manager_daemon());
}

/* ---- */

void quiet_check_log(void)
{
	static size_t at;
	char *log = manager_log_since(&at);

	restart_engine_check_log(log);
	ck_assert_msg(!strstr(log, "malformed"), "somebody sent something malformed");
	free(log);
}

/* Ends lives that no name refers to any more. */
static void check_lives(void)
{
	bool named[SOAK_LIVES] = {false};

	for (uint32_t i = 0; i < SOAK_NAMES; i++)
		if (soak->name[i].life != SOAK_NONE)
			named[soak->name[i].life] = true;
	for (uint32_t i = 0; i < SOAK_LIVES; i++)
		if (life_state(&soak->life[i]) == SOAK_LIVE && life_owner(&soak->life[i]) == 0 && !named[i])
			life_over(&soak->life[i]); /* an engine died between writing two words */
}

/* Number of descriptors that the service manager stores for a daemon of this state. */
static unsigned kept_for(const json_t *of_status)
{
	const json_t *totals = json_object_get(of_status, "totals");

	return (unsigned)(figure(totals, "clients") + figure(totals, "sessions") + figure(totals, "sequences") +
	                  (int64_t)json_array_size(pools));
}

static void wait_until_idle(void)
{
	const double end = fix_now() + 60;

	for (uint32_t i = 0; i < disturb_engines(); i++)
		while (!soak->engine[i].idle) {
			disturb_check();
			if (fix_now() > end)
				soak->failed = (int32_t)i + 1;
			ck_assert_msg(fix_now() < end, "engine %u does not come to rest", i);
			usleep(1000);
		}
}

void quiet_point(void)
{
	const double end = fix_now() + SOON_S;
	const json_t *parking;
	struct raw *r;

	soak->quiet = true;
	wait_until_idle();
	r = raw_operator(manager_socket);
	do {
		look(r);
		parking = json_array_get(json_object_get(status, "parking"), 0);
	} while ((*pages_off() || *parks_off(parking) || *prefixes_off(status) || manager_kept() != kept_for(status)) &&
	         fix_now() < end);
	ck_assert_msg(!*pages_off(), "%s", pages_off());
	ck_assert_msg(!*parks_off(parking), "%s", parks_off(parking));
	ck_assert_msg(!*prefixes_off(status), "%s", prefixes_off(status));
	prefixes_look(status);
	manager_expect_kept(kept_for(status));
	ADD(QUIET, 1);
	check_levels(r);
	raw_close(r);
	check_lives();
	quiet_check_log();
	soak->quiet = false;
}
