/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences are parked and resumed: a chat that is parked between any two of its steps has the outputs of one that
 * never was, bit for bit, under policies of each form, also after a reboot. Under memory pressure the least recently
 * used are parked, and no call fails. A sequence whose file is damaged is lost, one that cannot be written stays, and
 * other sequences are not affected.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/folder.h"
#include "tests/support/manager.h"
#include "tests/support/parked-chats.h"
#include "tests/support/run-program.h"

static struct fix f;
static const char *socket_path; /* the daemon's */
static char *folder;
static struct skv_client *client;

/* ---- daemon and client ----------------------------------------------------------------------- */

static void start(const char *const *options)
{
	static char parked[96];
	const char *all[16] = {parked};
	int n = 1;

	if (!folder)
		folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", folder);
	for (int i = 0; options && options[i]; i++)
		all[n++] = options[i];
	fix_start_process(&f, all);
	socket_path = f.socket;
}

static void connect_client(void)
{
	OK(skv_connect(&client, socket_path));
	skv_set_timeout(client, 3000);
	chats_open(client);
}

static void begin(const char *const *options)
{
	chats_models();
	start(options);
	connect_client();
}

static void remove_folder(void)
{
	char command[200];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
}

static void end(void)
{
	skv_disconnect(client);
	fix_stop(&f);
	remove_folder();
}

/* Simulates a reboot: the memory is lost, and another daemon starts. */
static void reboot(const char *const *options)
{
	skv_disconnect(client);
	fix_kill(&f);
	start(options);
	connect_client();
}

/* Sends PARK, RESUME or DROP_NAME; returns 0, or the errno, with the text in `refused`. */
static char refused[SKV_TEXT_MAX];
static int ask(uint16_t type, const char *name)
{
	struct raw *r = raw_hello(socket_path);
	const int error = raw_seq_named(r, type, world[0].model.name, name);

	if (error)
		snprintf(refused, sizeof(refused), "%s", raw_error_text(r));
	raw_close(r);
	return error;
}

static json_int_t figure(const char *key)
{
	struct raw *r = raw_operator(socket_path);
	json_t *status = raw_query(r, SKV_QUERY_STATUS);
	json_int_t n = json_integer_value(json_object_get(json_array_get(json_object_get(status, "parking"), 0), key));

	json_decref(status);
	raw_close(r);
	return n;
}

/* Returns whether the sequence is on disk. */
static bool is_parked(const char *name)
{
	struct raw *r = raw_hello(socket_path);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS), *row;
	int found = 0, parked = 0;
	size_t i;

	json_array_foreach(json_object_get(seqs, "sequences"), i, row)
		if (!strcmp(json_string_value(json_object_get(row, "name")), name)) {
			found++;
			parked += json_object_get(row, "parked_bytes") != NULL;
		}
	json_decref(seqs);
	raw_close(r);
	ck_assert_int_eq(found, 1);
	return parked;
}

static uint64_t pages_in_use(void)
{
	struct raw *r = raw_operator(socket_path);
	json_t *status = raw_query(r, SKV_QUERY_STATUS), *totals = json_object_get(status, "totals");
	uint64_t n = (uint64_t)json_integer_value(json_object_get(totals, "page_bytes"));

	json_decref(status);
	raw_close(r);
	return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define TURNS_CHATS 14u

START_TEST(turns)
{
	uint64_t before;

	begin(NULL);
	before = pages_in_use();
	chats_make(TURNS_CHATS);
	for (int i = 0; i < 150; i++) {
		struct chat *c = &chats[rnd_below(TURNS_CHATS)];

		if (c->steps > CHAT_MAX_STEPS - 4)
			continue;
		if (rnd_below(2) && !is_parked(c->name)) {
			ck_assert_msg(ask(SKV_MSG_SEQ_PARK, c->name) == 0, "%s", refused);
			ck_assert(is_parked(c->name));
		}
		if (rnd_below(5) == 0 && is_parked(c->name)) {
			ck_assert_msg(ask(SKV_MSG_SEQ_RESUME, c->name) == 0, "%s", refused);
			ck_assert(!is_parked(c->name));
		}
		chat_talk(c, 1 + rnd_below(3));
	}
	for (unsigned i = 0; i < TURNS_CHATS; i++) {
		chat_check(&chats[i]);
		ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, chats[i].name), 0);
	}
	ck_assert_int_eq(figure("sequences"), TURNS_CHATS);
	ck_assert_int_gt(figure("attached_after_reading"), 10);
	ck_assert_int_gt(figure("attached_in_memory"), 10);
	for (size_t i = 0; i < CHAT_SPECS; i++)
		skv_close(world[i].session);
	ck_assert_uint_eq(pages_in_use(), before);
	skv_disconnect(client);
	fix_stop(&f);
	remove_folder();
}
END_TEST

START_TEST(after_a_reboot)
{
	const unsigned n = 100;

	begin(NULL);
	chats_make(n);
	for (unsigned i = 0; i < n; i++)
		ck_assert_msg(ask(SKV_MSG_SEQ_PARK, chats[i].name) == 0, "%s: %s", chats[i].name, refused);
	reboot(NULL);
	ck_assert_int_eq(figure("sequences"), n);
	for (unsigned i = 0; i < n; i++) {
		chat_talk(&chats[i], 1);
		chat_check(&chats[i]);
	}
	ck_assert_int_eq(figure("sequences"), 0);
	end();
}
END_TEST

#define PRESSURE_CHATS 32u

/* The most recently used sequences are in memory. */
START_TEST(pressure)
{
	char pool[64];
	const char *options[] = {"--segment-bytes=256K", "--account-bytes=512M", pool, NULL};
	unsigned order[PRESSURE_CHATS], in_memory = 0, parked = 0;
	uint64_t chat_bytes;

	chats_first_prompt = 400;
	chats_models();
	chat_bytes = world[0].model.n_layers * skv_pages_of(chats_first_prompt + 50) * skv_page_bytes(&world[0].model);
	snprintf(pool, sizeof(pool), "--%s=%llu", world[0].model.device == SKV_DEVICE_HOST ? "pool-bytes" : "cuda-pool-bytes",
	         (unsigned long long)(PRESSURE_CHATS * chat_bytes / 4));
	start(options);
	connect_client();
	/* a single spec and thus size, so that the order of eviction is visible */
	for (size_t i = 1; i < CHAT_SPECS; i++)
		skv_close(world[i].session);
	for (unsigned i = 0; i < PRESSURE_CHATS; i++) {
		snprintf(chats[i].name, sizeof(chats[i].name), "chat-%u", i);
		chats[i].w = &world[0];
		chats[i].len = 0;
		order[i] = i;
	}
	for (int turn = 0; turn < 160; turn++) { /* half of the time one of the last three chats */
		const unsigned k = turn < (int)PRESSURE_CHATS ? 0 : rnd_below(2) ? PRESSURE_CHATS - 1 - rnd_below(3) : rnd_below(PRESSURE_CHATS);
		const unsigned t = order[k];

		memmove(&order[k], &order[k + 1], (PRESSURE_CHATS - 1 - k) * sizeof(*order));
		order[PRESSURE_CHATS - 1] = t;
		chat_talk(&chats[t], 1);
	}
	for (unsigned i = PRESSURE_CHATS; i-- > 0;) {
		const bool on_disk = is_parked(chats[order[i]].name);

		ck_assert_msg(on_disk || parked == 0, "%s was used before others that are on disk", chats[order[i]].name);
		parked += on_disk;
		in_memory += !on_disk;
	}
	printf("%u chats in turns: %u in memory, %u on disk; %lld attached in memory, %lld from disk\n", PRESSURE_CHATS, in_memory, parked,
	       figure("attached_in_memory"), figure("attached_after_reading"));
	for (unsigned i = 0; i < PRESSURE_CHATS; i++)
		chat_check(&chats[i]);
	ck_assert_int_eq(figure("failed"), 0);
	ck_assert_int_gt(figure("attached_in_memory"), 20);
	ck_assert_int_gt(figure("attached_after_reading"), 20);
	skv_disconnect(client);
	fix_stop(&f);
	remove_folder();
}
END_TEST

/* Returns the file in the user's folder whose name has this part. */
static const char *file_of(const char *name)
{
	static char path[512];
	char command[300];
	FILE *p;

	snprintf(command, sizeof(command), "ls %s/%u/*-%s.parked", folder, (unsigned)getuid(), name);
	p = popen(command, "re");
	ck_assert_ptr_nonnull(p);
	ck_assert_ptr_nonnull(fgets(path, sizeof(path), p));
	pclose(p);
	path[strcspn(path, "\n")] = 0;
	return path;
}

static void flip(const char *path)
{
	struct stat st;
	unsigned char byte;
	off_t at;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	ck_assert_int_eq(fstat(fd, &st), 0);
	at = st.st_size / 2; /* among pages, without padding */
	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= (unsigned char)(1u << rnd_below(8));
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

START_TEST(damaged)
{
	struct skv_seq *q;

	chats_first_prompt = 100;
	begin(NULL);
	chats_make(8);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, chats[i].name), 0);
	}
	flip(file_of("chat-0"));
	ck_assert_int_eq(truncate(file_of("chat-7"), 8192), 0);
	FAILS(skv_seq_attach(world[0].session, "chat-0", &q), EBADMSG, "is lost, its file is damaged");
	FAILS(skv_seq_attach(world[0].session, "chat-0", &q), EBADMSG, "is lost, its file is damaged");
	FAILS(skv_seq_new(world[0].session, "chat-0", 0, &q), EEXIST, "which is parked");
	FAILS(skv_seq_attach(world[0].session, "chat-7", &q), EBADMSG, "8192 bytes");
	ck_assert_int_eq(figure("damaged"), 2);
	for (unsigned i = 1; i < 7; i++) {
		chat_talk(&chats[i], 1);
		chat_check(&chats[i]);
	}
	ck_assert_int_eq(ask(SKV_MSG_SEQ_DROP_NAME, "chat-0"), 0);
	OK(skv_seq_new(world[0].session, "chat-0", 0, &q));
	reboot(NULL); /* the other file's header does not match its size */
	fix_expect_log(&f, "chat-7.parked is left alone");
	end();
}
END_TEST

static bool is_worker(int pid)
{
	char path[64], comm[32] = "";
	FILE *p;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	p = fopen(path, "re");
	if (p) {
		(void)!fgets(comm, sizeof(comm), p);
		fclose(p);
	}
	return !strcmp(comm, "sparsekvd-disk\n");
}

/* Returns the daemon's disk worker, once there is one. */
static pid_t find_worker(void)
{
	char path[64];
	int pid, found = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)f.pid, (int)f.pid);
	for (int i = 0; i < 1000 && !found; i++) {
		FILE *p = fopen(path, "re");

		ck_assert_ptr_nonnull(p);
		while (!found && fscanf(p, "%d", &pid) == 1)
			found = is_worker(pid) ? pid : 0;
		fclose(p);
	}
	ck_assert_int_gt(found, 0);
	return found;
}

/* A sequence is attached while it is written: the attach does not wait, and the file is removed. */
START_TEST(taken_meanwhile)
{
	struct skv_msg_seq_of m = {.uid = (uint32_t)getuid(), .name = "chat-0"};
	struct raw *r;
	double begun;
	pid_t worker;

	begin(NULL);
	chats_make(2);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-1"), 0);
	worker = find_worker();
	ck_assert_int_eq(kill(worker, SIGSTOP), 0);
	r = raw_hello(socket_path);
	strcpy(m.model, world[0].model.name);
	raw_send(r, SKV_MSG_SEQ_PARK, &m, sizeof(m), -1);
	fix_sleep_ms(50);
	begun = fix_now();
	chat_talk(&chats[0], 2);
	ck_assert(fix_now() - begun < patience(2));
	ck_assert_int_eq(kill(worker, SIGCONT), 0);
	ck_assert_int_eq(raw_recv_answer(r, 20000), SKV_MSG_ERROR);
	ck_assert_msg(strstr(raw_error_text(r), "meanwhile") != NULL, "%s", raw_error_text(r));
	raw_close(r);
	ck_assert(!is_parked("chat-0"));
	chat_check(&chats[0]);
	chat_check(&chats[1]);
	end();
}
END_TEST

/*
 * If a worker dies, another one does the job; if the daemon ends while a worker runs, the sequences stay as they were.
 */
START_TEST(worker_dies)
{
	begin(NULL);
	chats_make(3);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), 0);
	ck_assert_int_eq(kill(find_worker(), SIGKILL), 0);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-1"), 0);
	chat_talk(&chats[0], 1);
	chat_talk(&chats[1], 1);
	chat_check(&chats[0]);
	chat_check(&chats[1]);
	end();
}
END_TEST

START_TEST(refusals)
{
	static const char *const options[] = {"--account-parked-bytes=64K", NULL};
	struct skv_seq *q;

	chats_first_prompt = 200;
	begin(options);
	chats_make(2);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), EDQUOT);
	ck_assert_ptr_nonnull(strstr(refused, "account-parked-bytes"));
	ck_assert(!is_parked("chat-0"));
	chat_check(&chats[0]);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "nobody"), ENOENT);
	ck_assert_int_eq(ask(SKV_MSG_SEQ_RESUME, "chat-0"), ENOENT);
	OK(skv_seq_attach(world[0].session, "chat-0", &q));
	ck_assert_int_eq(ask(SKV_MSG_SEQ_PARK, "chat-0"), EBUSY);
	OK(skv_seq_detach(q));
	end();
}
END_TEST

/* ---- deaths of daemons ----------------------------------------------------------------------- */

static char parked_option[96], path_option[300];
static const char *lasting[] = {parked_option, path_option, NULL, "--pool-bytes=64M", "--segment-bytes=1M", "--cuda-segment-bytes=2M", NULL};

static void begin_lasting(void)
{
	folder = fx_folder();
	snprintf(parked_option, sizeof(parked_option), "--parked-path=%s", folder);
	snprintf(path_option, sizeof(path_option), "--policy-path=%s", fix_built("policies/.libs"));
	lasting[2] = devmem_is_device() ? "--cuda=required" : "--cuda=off";
	manager_open();
	manager_start(lasting);
	socket_path = manager_socket;
	chats_models();
	connect_client();
}

static void next_daemon(void)
{
	ck_assert_int_eq(manager_end(SIGKILL), SIGKILL);
	manager_start(lasting);
}

static void end_lasting(void)
{
	char *log;

	skv_disconnect(client);
	log = manager_log();
	ck_assert_ptr_null(strstr(log, "state is inconsistent"));
	ck_assert_ptr_null(strstr(log, "left alone"));
	ck_assert_ptr_null(strstr(log, "cannot be restored"));
	ck_assert_ptr_null(strstr(log, "cannot be parked"));
	free(log);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
	remove_folder();
}

/* The daemon dies at any instant while chats are parked and resumed: each chat is there once, with all of its steps. */
START_TEST(daemon_dies)
{
	const bool device = devmem_is_device();
	const int daemons = device ? 15 : 60; /* it initializes the device when it starts */
	unsigned parks = 0;

	begin_lasting();
	chats_make(TURNS_CHATS);
	for (int i = 0; i < daemons; i++) {
		struct chat *c = &chats[rnd_below(TURNS_CHATS)];
		struct raw *r = raw_hello(socket_path);

		raw_send_named(r, rnd_below(3) ? SKV_MSG_SEQ_PARK : SKV_MSG_SEQ_RESUME, world[0].model.name, c->name);
		usleep(rnd_below(device ? 1500000 : 30000)); /* a worker first makes a context */
		next_daemon();
		raw_hang_up(r);
		for (unsigned k = 0; k < TURNS_CHATS; k++)
			parks += is_parked(chats[k].name);
		if (c->steps < CHAT_MAX_STEPS - 2 && rnd_below(2))
			chat_talk(c, 1);
	}
	printf("%d daemons; %.1f of %u chats on disk after each\n", daemons, (double)parks / daemons, TURNS_CHATS);
	for (unsigned i = 0; i < TURNS_CHATS; i++) {
		chat_talk(&chats[i], 1);
		chat_check(&chats[i]);
	}
	end_lasting();
}
END_TEST

/* A sequence that was dropped while it was parked or resumed does not come back. */
START_TEST(dropped_is_gone)
{
	const int daemons = devmem_is_device() ? 6 : 60;

	begin_lasting();
	for (int i = 0; i < daemons; i++) {
		struct raw *r = raw_hello(socket_path);
		const bool by_name = rnd_below(4) == 0;
		struct skv_seq *q;

		chats_make(1);
		raw_send_named(r, SKV_MSG_SEQ_PARK, world[0].model.name, chats[0].name);
		usleep(rnd_below(6000));
		if (by_name) {
			ck_assert_msg(ask(SKV_MSG_SEQ_DROP_NAME, chats[0].name) == 0, "%s", refused);
		} else {
			OK(skv_seq_attach(world[0].session, chats[0].name, &q));
			OK(skv_seq_drop(q));
		}
		next_daemon();
		raw_hang_up(r);
		FAILS(skv_seq_attach(world[0].session, chats[0].name, &q), ENOENT, "no sequence");
		chats[0].len = chats[0].steps = 0;
	}
	end_lasting();
}
END_TEST

static int ctl(const char *shell)
{
	char command[1024];

	snprintf(command, sizeof(command), "ctl() { '%s' --socket '%s' \"$@\"; }; cd '%s'; %s", run_built("daemon/ctl/sparsekvctl"), socket_path, f.dir,
	         shell);
	return system(command);
}

START_TEST(travels)
{
	begin(NULL);
	chats_make(3);
	ck_assert_int_eq(ctl("ctl seq park chat-0 >out && grep -q 'parked chat-0' out && ctl seq list | grep -q 'disk *chat-0'"), 0);
	ck_assert_int_eq(ctl("ctl seq resume chat-0 >out && ctl seq list | grep -q 'none *chat-0'"), 0);
	ck_assert_int_eq(ctl("ctl seq export chat-1 >file && ctl seq drop chat-1 >out && ctl seq import <file >out 2>&1"), 0);
	ck_assert_int_eq(ctl("ctl seq export chat-2 >file2 && ctl seq drop chat-2 >out"), 0);
	ck_assert_int_ne(ctl("head -c 9000 file2 | ctl seq import >out 2>&1"), 0);
	ck_assert_int_eq(ctl("grep -q 'the file ends after 9000 bytes' out"), 0);
	ck_assert_int_eq(ctl("cat file2 | ctl seq import >out 2>&1"), 0);
	ck_assert_int_ne(ctl("ctl seq import <file >out 2>&1"), 0);
	ck_assert_int_eq(ctl("grep -q 'there is a parked sequence' out"), 0);
	ck_assert_int_ne(ctl("head -c 9000 /dev/zero | ctl seq import >out 2>&1"), 0);
	for (unsigned i = 0; i < 3; i++) {
		chat_talk(&chats[i], 2);
		chat_check(&chats[i]);
	}
	ck_assert_int_ne(ctl("ctl seq import <file >out 2>&1"), 0); /* it is in memory */
	ck_assert_int_eq(ctl("ctl status | grep -q '^parked *0 sequences' && ctl metrics | grep -q '^sparsekv_resumed_total 3'"), 0);
	end();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-parking");

	add_case(s, "parked", 120, NULL, NULL, turns, after_a_reboot, pressure, taken_meanwhile, worker_dies, daemon_dies, dropped_is_gone, damaged, refusals, travels, NULL);
	return run_suite(s);
}
