/* SPDX-License-Identifier: Apache-2.0 */
/* Files of parked sequences that somebody removed, and that grow old while the clock of the day is set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/folder.h"
#include "tests/support/parked-chats.h"

static struct fix f;
static char *folder, clock_file[96]; /* by how many seconds the daemon's clock of the day is wrong */
static struct skv_client *client;

static void begin(const char *ttl)
{
	static char parked[96];
	const char *options[] = {parked, ttl, NULL};

	chats_first_prompt = 100;
	folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	snprintf(clock_file, sizeof(clock_file), "%s.clock", folder);
	fx_text(clock_file, "0");
	setenv("SKV_CLOCK", clock_file, 1);
	setenv("LD_PRELOAD", fix_built("tests/support/.libs/fake-clock.so"), 1);
	fix_start_process(&f, options);
	unsetenv("LD_PRELOAD");
	chats_models();
	OK(skv_connect(&client, f.socket));
	skv_set_timeout(client, 3000);
	chats_open(client);
}

static void end(void)
{
	char command[200];

	skv_disconnect(client);
	fix_stop(&f);
	snprintf(command, sizeof(command), "rm -rf '%s' '%s'", folder, clock_file);
	ck_assert_int_eq(system(command), 0);
}

/* 0, or the errno of PARK, RESUME or DROP_NAME. */
static int ask(uint16_t type, const char *name)
{
	struct raw *r = raw_hello(f.socket);
	const int error = raw_seq_named(r, type, world[0].model.name, name);

	raw_close(r);
	return error;
}

static json_int_t expired(void)
{
	struct raw *r = raw_operator(f.socket);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	json_int_t n = json_integer_value(json_object_get(json_array_get(json_object_get(status, "parking"), 0), "expired"));

	json_decref(status);
	raw_close(r);
	return n;
}

/* The file of a parked sequence; to be freed. */
static char *file_of(const char *name)
{
	char command[300], path[512] = "";
	FILE *p;

	snprintf(command, sizeof(command), "ls %s/%u/*-%s.parked", folder, (unsigned)getuid(), name);
	p = popen(command, "re");
	ck_assert(p && fgets(path, sizeof(path), p));
	pclose(p);
	path[strcspn(path, "\n")] = 0;
	return strdup(path);
}

/* One that somebody removed is no sequence that never was: -ENOENT would have it made anew. */
START_TEST(file_is_gone)
{
	struct skv_seq *q;
	char *file, away[520];

	begin(NULL);
	chats_make(2);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	file = file_of("chat-0");
	snprintf(away, sizeof(away), "%s.away", file);
	ck_assert_int_eq(rename(file, away), 0);
	FAILS(skv_seq_attach(world[0].session, "chat-0", &q), EBADMSG, "is gone: somebody removed it");
	FAILS(skv_seq_new(world[0].session, "chat-0", 0, &q), EEXIST, "which is parked");
	ck_assert_int_eq(rename(away, file), 0); /* a disk that was not mounted */
	free(file);
	chat_talk(&chats[0], 1);
	chat_check(&chats[0]);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-1"), 0);
	file = file_of("chat-1");
	ck_assert_int_eq(unlink(file), 0);
	free(file);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_DROP_NAME, "chat-1"), 0);
	OK(skv_seq_new(world[0].session, "chat-1", 0, &q));
	end();
}
END_TEST

/* Does the sequence's age drop it within these seconds? */
static bool grows_old(double seconds)
{
	for (double until = fix_now() + seconds; fix_now() < until; fix_sleep_ms(50))
		if (expired())
			return true;
	return false;
}

/*
 * The clock of the day is set, back and forth, or was wrong while a sequence was parked: what was parked a moment ago stays. It goes when
 * its time is over, by a clock that nobody sets.
 */
START_TEST(clock_is_set)
{
	static const char year_back[] = "-31536000", year_on[] = "31536000";

	begin("--sequence-ttl=6");
	chats_make(1);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	fx_text(clock_file, year_back);
	ck_assert(!grows_old(1.5));
	fx_text(clock_file, year_on);
	ck_assert(!grows_old(1.5));
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), 0);
	fx_text(clock_file, year_back); /* it is parked by a clock that is slow, and then set */
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	fx_text(clock_file, "0");
	ck_assert(!grows_old(1.5));
	ck_assert(grows_old(20));
	end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-parked-files");

	add_case(s, "files", 120, NULL, NULL, file_is_gone, clock_is_set, NULL);
	return run_suite(s);
}
