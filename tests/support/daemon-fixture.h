/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/daemon-fixture.h - a daemon to test against, and a client that uses the raw protocol.
 *
 * The daemon belongs to the test: it has a private directory, and runs in a thread of the test's process (so that
 * sanitizers and debuggers see it) or as the built program in a process of its own. Stopping it checks that its state
 * balanced; tests also compare open descriptors before and after.
 *
 * The raw client can send anything: correct requests with one call, raw_ask(), incorrect packets with
 * raw_send_packet(). Each function fails the test if it cannot do what its name says.
 */
#ifndef SKV_TEST_FIXTURE_H
#define SKV_TEST_FIXTURE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include "common/wire.h"
#include "daemon/server/server.h"

/* ---- daemons ---- */

struct fix {
	char dir[64], socket[96], log[96];
	char *options[20];         /* of the command line, owned */
	struct skv_server *server; /* in a thread ... */
	pthread_t thread;
	int result;
	pid_t pid; /* ... or a process; in both cases the daemon's pid */
};

/* `options`: "--key=value", terminated by NULL; or NULL. They follow the fixture's own options (small pools). */
void fix_start_thread(struct fix *, const char *const *options);
void fix_start_process(struct fix *, const char *const *options);
/* If not NULL, called in the next daemon's process before it executes the program. */
extern void (*fix_before_exec)(void);
/* Waits until a daemon answers on the socket. Both start functions call it. */
void fix_wait(const struct fix *);
/* Stops the daemon as an operator does, and expects success: the state balanced. Removes the private directory. */
void fix_stop(struct fix *);
/* Kills a daemon in a process with SIGKILL, and removes the private directory. */
void fix_kill(struct fix *);
/* Returns the log of a daemon in a process so far; the caller frees it. */
char *fix_log(const struct fix *);
/* Waits until the daemon's log contains `what`, 20 s at most. */
void fix_expect_log(const struct fix *, const char *what);

/* A field of the daemon's /proc/PID/status in MiB: "RssAnon", its own memory now; "VmHWM", the most it had. */
unsigned long fix_memory_mib(const struct fix *, const char *field);
/* Returns the number of open descriptors of a process (0: this one). */
unsigned fix_count_fds(pid_t pid);
/* Returns the bytes of all memfds that the process has open, each counted once. */
uint64_t fix_held_bytes(pid_t pid);
/*
 * Returns the number of open descriptors once it has not changed for 50 ms: the daemon has then closed connections that
 * just hung up.
 */
unsigned fix_settled_fds(pid_t pid);
/*
 * Sends a signal to the children of a process that have this name (NULL: to all), and returns their number. Signal 0
 * only counts them.
 */
unsigned fix_signal_children(pid_t pid, const char *name, int signal);
/* Waits until the process has `expected` open descriptors again, 20 s at most. */
void fix_expect_fds(pid_t pid, unsigned expected);
/* Paths in the build directory. */
const char *fix_built(const char *name); /* returns one of four static buffers */

double fix_now(void); /* monotonic seconds */
void fix_sleep_ms(unsigned ms);

/* ---- the raw client ---- */

struct raw {
	int fd;
	uint32_t serial;
	/* the last packet */
	size_t bytes;
	unsigned n_fds;
	int fds[SKV_WIRE_MAX_FDS]; /* owned; closed when the next packet arrives */
	uint32_t client;
	uint32_t sessions[64]; /* opened on this connection */
	unsigned n_sessions;
	/* announced segments, and the last of them; also its fd if keep_fd is set */
	unsigned n_segments;
	struct skv_msg_segment_ipc segment;
	bool keep_fd;
	int segment_fd; /* owned; -1: none */
	_Alignas(8) char packet[SKV_WIRE_MAX];
};

/* Connects without HELLO. The result is on the heap; NULL if no process listens. */
struct raw *raw_connect(const char *socket);
/* Connects and sends HELLO; raw_operator() does the same on the operators' socket of that daemon. */
struct raw *raw_hello(const char *socket);
struct raw *raw_operator(const char *socket);
/*
 * raw_close() closes the sessions and hangs up. raw_hang_up() leaves them open: the daemon keeps them until this
 * process ends or sends CLIENT_END.
 */
void raw_close(struct raw *);
void raw_hang_up(struct raw *);

/* Sends CLIENT_END of a client of this process, which may already be gone. */
void raw_client_end(const char *socket, uint32_t client);

void raw_send_packet(struct raw *, const void *packet, size_t bytes, const int *fds, unsigned n_fds);
void raw_send(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
/*
 * Receives the next packet and checks that it is well-formed. Returns its type; 0 if the daemon hung up; -1 after the
 * timeout.
 */
int raw_recv(struct raw *, int timeout_ms);
/* Receives the next packet that is not a notice; counts new segments and acknowledges those that are gone. */
int raw_recv_answer(struct raw *, int timeout_ms);
/* Expects that the daemon hangs up, perhaps after one ERROR. */
void raw_expect_end(struct raw *);

/* Sends a request and expects its reply. Returns the reply's body. */
const void *raw_ask(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
/* Sends a request and expects ERROR. Returns the errno; raw_error_text() has the text. */
int raw_refused(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
const char *raw_error_text(const struct raw *);
/* Sends a request and returns the reply's JSON; the caller owns it. */
json_t *raw_ask_json(struct raw *, uint16_t type, const void *body, size_t bytes, int fd);
json_t *raw_query(struct raw *, enum skv_query what);
uint64_t raw_pool_figure(struct raw *, const char *field); /* of the first pool */
uint64_t raw_leased(struct raw *);                         /* bytes of all pools' leased pages */
/* Returns how many clients of a process the daemon has. The first one's id goes to ret_client, which may be NULL. */
unsigned raw_clients_of(struct raw *, pid_t, uint32_t *ret_client);

/*
 * As an operator: prints which work made turns of the daemon's loop long, and returns how many pieces of it took 2 ms of the processor's
 * time or more. A few are not the daemon's: in a virtual machine the first touch of a page can take 9 ms, which the guest counts as
 * time of the processor. What is too much work for a turn comes more often.
 */
unsigned raw_print_turns(struct raw *);
#define RAW_RARE_TURNS 4u
/* As an operator: the bytes that status says the daemon holds are those that the process has open, within 1 %. */
void raw_expect_held(struct raw *, pid_t pid);

/* The model of most tests: 4 layers, pages of 4 KiB. */
struct skv_wire_model raw_model(const char *name);
uint32_t raw_open_model(struct raw *, const struct skv_wire_model *, const char *spec,
                        struct skv_msg_open_ok *ret);
/* Opens a session; *ret (may be NULL) gets the body of the reply. */
uint32_t raw_open(struct raw *, const char *model, const char *spec, struct skv_msg_open_ok *ret);
uint32_t raw_seq_new(struct raw *, uint32_t session, const char *name);
/* raw_leave_sequence() makes a named sequence and disconnects; raw_count_sequences() counts this user's sequences. */
void raw_leave_sequence(const char *socket, const char *name);
int raw_count_sequences(const char *socket);
/* Leases exactly n pages. */
void raw_lease(struct raw *, uint32_t session, uint32_t n);
/* As an operator: POLICY_LOAD of a file; POLICY_SWAP of all sessions. Return 0 or the errno. */
int raw_policy_load(struct raw *, const char *file);
int raw_policy_swap(struct raw *, const char *spec);
/*
 * POLICY_SWAP of one client's sessions; SEQ_DROP_NAME, SEQ_PARK or SEQ_RESUME of this user's sequence; the latter
 * without waiting for the reply.
 */
int raw_policy_swap_client(struct raw *, uint32_t client, const char *spec);
int raw_seq_named(struct raw *, uint16_t type, const char *model, const char *name);
void raw_send_named(struct raw *, uint16_t type, const char *model, const char *name);

/* Runs `body` in a child process, as another user if uid is not 0. The child must exit with 0. */
void fix_in_child(uid_t uid, void (*body)(void *), void *arg);

#endif
