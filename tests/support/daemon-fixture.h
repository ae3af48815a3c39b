/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/daemon-fixture.h - a daemon to test against, and a client that speaks the raw protocol.
 *
 * The daemon is the test's own: in a private directory, in a thread of the test's process (so that a
 * sanitizer sees into it and a debugger too) or as the built program in a process of its own. Stopping
 * it checks that its state balanced; a test also compares open descriptors before and after.
 *
 * The raw client can say anything. What it says right is said in one line, raw_ask(); what is wrong
 * goes out with raw_send_packet(). Everything fails the test when it does not go as it is named.
 */
#ifndef SKV_TEST_FIXTURE_H
#define SKV_TEST_FIXTURE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include "common/wire.h"
#include "daemon/server.h"

/* ---- daemons ---- */

struct fix {
	char dir[64], socket[96], log[96];
	char *options[20];         /* of the command line, owned */
	struct skv_server *server; /* in a thread ... */
	pthread_t thread;
	int result;
	pid_t pid; /* ... or a process; the pid to look for in any case */
};

/* `options`: "--key=value", NULL at the end; or NULL. They go after the fixture's own (small pools). */
void fix_start_thread(struct fix *, const char *const *options);
void fix_start_process(struct fix *, const char *const *options);
/* Not NULL: what the process of the next daemon does before it becomes it. */
extern void (*fix_before_exec)(void);
/* Wait until a daemon answers on the socket; both start functions do. */
void fix_wait(const struct fix *);
/* Stop it as an operator would, and expect success: the state balanced. The private directory goes too. */
void fix_stop(struct fix *);
/* SIGKILL a daemon in a process; the private directory goes. */
void fix_kill(struct fix *);
/* What a daemon in a process has logged so far; owned by the caller. */
char *fix_log(const struct fix *);
/* Wait until the daemon's log says `what`, 20 s at most. */
void fix_expect_log(const struct fix *, const char *what);

/* Open descriptors of a process (0: this one). */
unsigned fix_count_fds(pid_t pid);
/* Memory of all memfds that the process has open, each counted once. */
uint64_t fix_held_bytes(pid_t pid);
/* Of open descriptors, once their number has been still for a while: who just hung up is gone by then. */
unsigned fix_settled_fds(pid_t pid);
/* Wait until the process has as many as `expected` again, 20 s at most. */
void fix_expect_fds(pid_t pid, unsigned expected);
/* Paths in the build directory. */
const char *fix_built(const char *name); /* one of a few static buffers */

double fix_now(void); /* monotonic seconds */
void fix_sleep_ms(unsigned ms);

/* ---- the raw client ---- */

struct raw {
	int fd;
	uint32_t serial;
	/* the last packet */
	size_t bytes;
	unsigned n_fds;
	int fds[SKV_WIRE_MAX_FDS]; /* owned: closed when the next packet comes */
	uint32_t client;
	uint32_t sessions[64]; /* that were opened */
	unsigned n_sessions;
	/* segments that were announced, and the last of them; its fd too, where `keep_fd` asks for it */
	unsigned n_segments;
	struct skv_msg_segment_ipc segment;
	bool keep_fd;
	int segment_fd; /* owned; -1: none */
	_Alignas(8) char packet[SKV_WIRE_MAX];
};

/* Connect without a word. On the heap; NULL when nobody listens. */
struct raw *raw_connect(const char *socket);
/* Connect and say HELLO; the same on the operators' socket of that daemon. */
struct raw *raw_hello(const char *socket);
struct raw *raw_operator(const char *socket);
/*
 * Close its sessions, and hang up; or hang up with them open, and then they are kept until this process ends or says
 * CLIENT_END.
 */
void raw_close(struct raw *);
void raw_hang_up(struct raw *);

/* CLIENT_END of a client of this process, which may be gone already. */
void raw_client_end(const char *socket, uint32_t client);

void raw_send_packet(struct raw *, const void *packet, size_t bytes, const int *fds, unsigned n_fds);
void raw_send(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
/* The next packet: its type; 0 when the daemon hung up; -1 when there is none in time. It is well-formed. */
int raw_recv(struct raw *, int timeout_ms);
/* The next packet that is no notice; new segments are counted, the end of others is acknowledged. */
int raw_recv_answer(struct raw *, int timeout_ms);
/* The daemon hangs up, after any words of farewell. */
void raw_expect_end(struct raw *);

/* Ask and expect the answer: its body. */
const void *raw_ask(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
/* Ask and expect ERROR: the errno. The text is raw_error_text(). */
int raw_refused(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
const char *raw_error_text(const struct raw *);
/* Ask for JSON; owned by the caller. */
json_t *raw_ask_json(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
json_t *raw_query(struct raw *, enum skv_query what);
uint64_t raw_pool_figure(struct raw *, const char *field); /* of pool 0 */
uint64_t raw_leased(struct raw *);                         /* bytes of all pools' pages on lease */
/* The clients that the daemon has of a process. The first one's id goes to ret_client, which may be NULL. */
unsigned raw_clients_of(struct raw *, pid_t, uint32_t *ret_client);

/* As an operator: what status says that the daemon holds is what the process has, within 1 %. */
void raw_expect_held(struct raw *, pid_t pid);

/* The model of most tests: 4 layers, pages of 4 KiB. */
struct skv_wire_model raw_model(const char *name);
uint32_t raw_open_model(struct raw *, const struct skv_wire_model *, const char *spec,
                        struct skv_msg_open_ok *ret);
/* Open a session with it; the answer's body is left in *ret (may be NULL). */
uint32_t raw_open(struct raw *, const char *model, const char *spec, struct skv_msg_open_ok *ret);
uint32_t raw_seq_new(struct raw *, uint32_t session, const char *name);
/* Leave a named sequence of a client that is gone; how many this user has. */
void raw_leave_sequence(const char *socket, const char *name);
int raw_count_sequences(const char *socket);
/* Lease exactly n pages. */
void raw_lease(struct raw *, uint32_t session, uint32_t n);
/* As an operator, POLICY_LOAD of a file, POLICY_SWAP of all sessions: 0, or the errno. */
int raw_policy_load(struct raw *, const char *file);
int raw_policy_swap(struct raw *, const char *spec);
/* The same of one client's sessions; SEQ_DROP_NAME, SEQ_PARK or SEQ_RESUME of this user's; or only ask for that. */
int raw_policy_swap_client(struct raw *, uint32_t client, const char *spec);
int raw_seq_named(struct raw *, uint16_t type, const char *model, const char *name);
void raw_send_named(struct raw *, uint16_t type, const char *model, const char *name);

/* Run `body` in a child process, as another user when uid is not 0; it must end with success. */
void fix_in_child(uid_t uid, void (*body)(void *), void *arg);

#endif
