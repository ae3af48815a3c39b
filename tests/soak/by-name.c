/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/by-name.c - what operators do with sequences by name: drop, park and resume them while engines attach them
 * and daemons die. The engine that attaches a resumed sequence checks that it is unchanged.
 */
#include "tests/soak/soak.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/manager.h"

#define SOON_S 20

static const char *folder(void)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/parked", manager_folder());
	return path;
}

const char *by_name_begin(void)
{
	static char option[160];

	ck_assert_int_eq(mkdir(folder(), 0700), 0);
	snprintf(option, sizeof(option), "--parked-path=%s", folder());
	return option;
}

/*
 * Returns 0, or the errno with which the operator was refused; `before` is the name's word before the request. A
 * sequence may be busy because of earlier work: it is being read for an engine that died, or an engine had it while it
 * was being written. That passes, so the request is repeated.
 */
static int ask(uint16_t type, uint32_t name, uint64_t *ret_before)
{
	const double end = fix_now() + SOON_S;
	struct raw *r = raw_operator(manager_socket);
	int e;

	do {
		*ret_before = soak->name[name].word;
		e = raw_seq_named(r, type, soak_model.name, name_of(name));
	} while (e == EBUSY && !name_may_refuse(name, SOAK_NONE, *ret_before, -e) && fix_now() < end);
	raw_close(r);
	return e;
}

void by_name_drop(void)
{
	const uint32_t name = rnd_below(SOAK_NAMES);
	uint64_t before;
	int e;

	soak->erasing = name + 1;
	e = ask(SKV_MSG_SEQ_DROP_NAME, name, &before);
	if (e == 0) {
		name_erased(name);
		ADD(ERASED, 1);
	} else {
		ck_assert_msg(name_may_refuse(name, SOAK_NONE, before, -e), "drop %s by name: %s; word %llx", name_of(name), strerror(e),
		              (unsigned long long)before);
		ADD(ERASE_BUSY, e == EBUSY);
		ADD(ERASE_GONE, e == ENOENT);
	}
	soak->erasing = 0;
}

static uint32_t park_one(void)
{
	const uint32_t name = rnd_below(SOAK_NAMES);
	uint64_t before;
	const int e = ask(SKV_MSG_SEQ_PARK, name, &before);

	ck_assert_msg(e == 0 || e == EALREADY || name_may_refuse(name, SOAK_NONE, before, -e), "park %s: %s; word %llx", name_of(name),
	              strerror(e), (unsigned long long)before);
	if (e == 0 || e == EALREADY)
		soak->name[name].parked = true;
	switch (e) {
	case 0: ADD(PARKED, 1); break;
	case EALREADY: ADD(PARK_AGAIN, 1); break;
	case EBUSY: ADD(PARK_BUSY, 1); break;
	default: ADD(PARK_GONE, 1); break;
	}
	return name;
}

void by_name_park(void)
{
	(void)park_one();
}

/* Asks without waiting for the end. */
void by_name_park_some(void)
{
	struct raw *r = raw_operator(manager_socket);

	for (uint32_t i = 1 + rnd_below(6); i > 0; i--) {
		const uint32_t name = rnd_below(SOAK_NAMES);

		soak->name[name].parked = true;
		raw_send_named(r, SKV_MSG_SEQ_PARK, soak_model.name, name_of(name));
		ADD(PARKS_ASKED, 1);
	}
	raw_close(r);
}

/* A sequence that is not parked (any more) cannot be resumed, nor one for which too many are in memory. */
void by_name_resume(void)
{
	const uint32_t name = park_one();
	uint64_t before;
	const int e = ask(SKV_MSG_SEQ_RESUME, name, &before);

	ck_assert_msg(e == 0 || e == ENOENT || (e == EDQUOT && lives_may_be_too_many()), "resume %s: %s; word %llx", name_of(name), strerror(e),
	              (unsigned long long)before);
	if (e == 0) {
		soak->name[name].parked = false;
		ADD(RESUMED, 1);
	} else {
		ADD(RESUME_GONE, e == ENOENT);
		ADD(QUOTA_SEQS, e == EDQUOT);
	}
}

/*
 * All bytes of the file arrive; fewer if the file is removed before it is open, because an engine has attached the
 * sequence.
 */
void by_name_export(void)
{
	const uint32_t name = park_one();
	const uint64_t before = soak->name[name].word;
	struct raw *r = raw_operator(manager_socket);
	uint64_t bytes, got = 0;
	char buffer[65536];
	ssize_t n;
	int type;

	raw_send_named(r, SKV_MSG_SEQ_EXPORT, soak_model.name, name_of(name));
	type = raw_recv_answer(r, 30000);
	if (type == SKV_MSG_ERROR) {
		ck_assert_msg(strstr(raw_error_text(r), "is parked: park it first"), "export %s: %s", name_of(name), raw_error_text(r));
		ADD(EXPORT_GONE, 1);
	} else {
		ck_assert_int_eq(type, SKV_MSG_SEQ_EXPORT | SKV_REPLY);
		bytes = ((const struct skv_msg_file *)(const void *)(r->packet + sizeof(struct skv_msg_header)))->bytes;
		while ((n = read(r->fds[0], buffer, sizeof(buffer))) > 0)
			got += (uint64_t)n;
		ck_assert_msg(n == 0 && (got == bytes || (got < bytes && name_may_refuse(name, SOAK_NONE, before, -EBUSY))),
		              "export %s: %llu bytes of %llu", name_of(name), (unsigned long long)got, (unsigned long long)bytes);
		ADD(EXPORTED, got == bytes);
		ADD(EXPORT_GONE, got < bytes);
	}
	raw_close(r);
}

/* Number of files whose names contain `end`. */
static uint64_t count_files(const char *end)
{
	char path[160];
	uint64_t n = 0;
	struct dirent *entry;
	DIR *d;

	snprintf(path, sizeof(path), "%s/%u", folder(), (unsigned)getuid());
	d = opendir(path);
	while (d && (entry = readdir(d)))
		n += entry->d_name[0] != '.' && strstr(entry->d_name, end) != NULL;
	if (d)
		closedir(d);
	return n;
}

/* Jobs end and files are removed without further requests. */
const char *parks_off(const json_t *parking)
{
	static char why[160];
	const uint64_t files = count_files(".parked");
	json_int_t jobs, sequences, damaged;

	ck_assert_int_eq(json_unpack((json_t *)parking, "{s:I, s:I, s:I}", "jobs", &jobs, "sequences", &sequences, "damaged", &damaged), 0);
	ck_assert_msg(damaged == 0, "%lld parked sequences are damaged", damaged);
	snprintf(why, sizeof(why), "%lld sequences are on their way, %lld parked, in %llu files", jobs, sequences, (unsigned long long)files);
	return jobs || (uint64_t)sequences != files ? why : "";
}

void parks_check_none(void)
{
	const double end = fix_now() + 10;

	while (count_files("") && fix_now() < end)
		usleep(1000);
	ck_assert_msg(count_files("") == 0, "%llu files are left in %s", (unsigned long long)count_files(""), folder());
}
