/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server.c - the life of the daemon: it starts, serves, reloads its settings, stops.
 *
 * At its start the daemon reads the settings, makes the io_uring, the core and the socket, and probes the policy files.
 * Only then does it accept the first connection, so that each client finds all policies loaded. At its end it
 * disconnects all clients, drains the ring, empties the core and recounts the state. A daemon whose counts do not match
 * its state (does not balance) logs an error and exits with a failure.
 */
#include <config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/turns.h"
#include "daemon/jobs/jobs.h"
#include "daemon/parked/parking.h"
#include "daemon/prefix/prefix.h"
#include "daemon/request.h"
#include "daemon/requests/fence.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/policy.h"
#include "daemon/requests/query.h"
#include "daemon/requests/reply.h"
#include "daemon/requests/report.h"
#include "daemon/requests/tasks.h"
#include "daemon/restart/previous.h"
#include "daemon/server/device.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/child.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"
#include "daemon/tick.h"

#define RING_ENTRIES 256u
#define DEVICE_BYTES ((uint64_t)512 << 30) /* memory of the largest device for which the core makes its tables */

/* kernel threads for closes and punches that do not block */
#define WORKERS 16u
/* descriptors of the daemon itself: sockets, the ring, workers, files of one turn; not segments of devices */
#define OWN_FDS 96u

enum { COMMAND_STOP = 1, COMMAND_RELOAD = 1u << 16 };

static void begin_reload(struct skv_server *s);

/* ---- settings ---- */

_Static_assert(SKV_CONFIG_MOST_ROWS == SKV_CORE_MAX_ROWS, "one limit");

static void core_config(const struct skv_config *c, struct skv_core_config *ret)
{
	*ret = (struct skv_core_config){
		.pool_bytes = c->pool_bytes,
		.segment_bytes = c->segment_bytes,
		.account_bytes = c->account_bytes,
		.device_bytes = c->cuda == SKV_CUDA_OFF ? 0 : DEVICE_BYTES,
		.device_segment_bytes = c->cuda == SKV_CUDA_OFF ? 0 : c->cuda_segment_bytes,
		.account_clients = c->account_clients,
		.account_sequences = c->account_sequences,
		.max_clients = c->max_clients,
		.max_sequences = c->max_sequences,
		.max_sessions = c->max_sessions,
		.max_pools = c->max_pools,
		.account_pools = c->account_pools,
		.client_sessions = c->client_sessions,
	};
}

/* Applies the settings that may change while the daemon runs. */
static void apply_config(struct skv_server *s)
{
	const struct skv_config *c = &s->config;
	/* There may be more connections than clients: a client beyond a quota gets an error in reply to HELLO. */
	struct skv_ipc_limits limits = {
		.connections = c->max_clients + 64,
		.account_connections = c->account_clients + 8,
		.hello_ns = c->hello_timeout,
	};

	skv_log_open(c->log_level);
	skv_ipc_set_limits(s->ipc, &limits);
	/* closing a connection may block, each in a thread of its own */
	skv_loop_allow_workers(s->loop, limits.connections + WORKERS);
	skv_registry_set_limits(s->registry, c->max_policies, c->probe_timeout);
	skv_core_set_recall(s->core, c->recall_every);
	skv_device_reconfigure(s);
	skv_jobs_set_timeout(s->jobs, c->disk_timeout);
}

/* ---- starting ---- */

static void count_dropped(void *server, uid_t uid, bool for_room)
{
	const struct skv_server *s = server;

	skv_count(s->counts, uid, for_room ? SKV_COUNT_DISPLACED : SKV_COUNT_EXPIRED, 1);
}

static void on_corrupt(void *server, uid_t uid, const char *model, const char *name, const char *why)
{
	(void)server;
	skv_log_peer(LOG_WARNING,
	             "sequence %s of model %s, uid %u, was dropped, since its memory is not valid: %s",
	             *name ? name : "(anonymous)", model, (unsigned)uid, why);
}

/* Returns the listening sockets: fds[0] for clients, fds[1] for operators (-1: there is none). */
static int open_sockets(struct skv_server *s, int fds[2])
{
	fds[0] = s->restart.passed.clients;
	fds[1] = s->restart.passed.operators;
	if (fds[0] >= 0 && fds[1] < 0)
		skv_log(LOG_WARNING, "the service manager passed no socket for operators (sparsekvd-operators.socket): "
		                     "policies cannot be loaded or swapped");
	return fds[0] >= 0 ? 0 : skv_sockets_open(&s->config, &s->life.sockets, fds);
}

static bool commit(void *core)
{
	return skv_core_commit(core);
}

static int start_core(struct skv_server *s)
{
	struct skv_core_config config;
	int r;

	core_config(&s->config, &config);
	skv_hostmem_init(&s->hostmem, s->loop);
	r = skv_past_start(s, &config);
	if (r < 0)
		return r;
	s->hostmem.core = s->core;
	skv_past_watch_clients(s, skv_fence_resume);
	skv_core_commit(s->core);
	skv_loop_before_submit(s->loop, commit, s->core);
	skv_core_on_corrupt(s->core, on_corrupt, s);
	skv_core_on_dropped(s->core, count_dropped, s);
	return 0;
}

/*
 * Makes the kernel enlarge the process's table of descriptors to n entries at the start, because enlarging the table
 * later would stop the loop for up to 20 ms.
 */
static void grow_table(uint64_t n)
{
	const int fd = open("/", O_PATH | O_CLOEXEC);

	skv_close_fd(fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, (int)n - 1));
	skv_close_fd(fd);
}

/*
 * Raises the limit of descriptors. Each sequence, session, pool and policy takes one descriptor, a client takes two.
 * The start fails if the limit is too low for the daemon alone. The daemon only warns if the limit is too low for all
 * that the settings allow: a client that needs a descriptor too many then gets an error, as for a lack of memory.
 */
static int take_descriptors(const struct skv_config *c)
{
	const uint64_t limit = skv_fd_raise_limit(), least = OWN_FDS + c->max_policies;
	const uint64_t most = least + c->max_sequences + c->max_sessions + c->max_pools + UINT64_C(2) * c->max_clients;

	if (limit < least) {
		skv_log(LOG_ERR,
		        "RLIMIT_NOFILE: got %llu, expected at least %llu descriptors to start with, and %llu for all "
		        "that the settings allow (ulimit -Hn, LimitNOFILE= of the unit)",
		        (unsigned long long)limit, (unsigned long long)least, (unsigned long long)most);
		return -EMFILE;
	}
	if (limit < most)
		skv_log(LOG_WARNING,
		        "RLIMIT_NOFILE: got %llu, which clients may use up; expected %llu, as max-sequences, "
		        "max-sessions, max-clients and max-pools allow",
		        (unsigned long long)limit, (unsigned long long)most);
	grow_table(limit < most ? limit : most);
	return 0;
}

/* With cuda = required, opens the first CUDA device at the start, instead of when a model first uses it. */
static int start_devices(struct skv_server *s)
{
	char why[SKV_TEXT_MAX];
	int r = s->config.cuda == SKV_CUDA_REQUIRED ? skv_device_need(s, SKV_DEVICE_CUDA(0), why) : 0;

	if (r)
		skv_log(LOG_ERR, "cuda = required, but the first CUDA device cannot be used: %s", why);
	return -r;
}

/* Takes the sockets and the stored descriptors that the service manager passes to the daemon. */
static int take_passed(struct skv_server *s)
{
	char err[512];
	int r = s->options.service ? skv_sd_take_fds(&s->restart.passed, err, sizeof(err)) : 0;

	if (r < 0)
		skv_log(LOG_ERR, "what the service manager passed: %s", err);
	return r;
}

static int start_loop(struct skv_server *s)
{
	char why[512];
	int r = skv_loop_new(RING_ENTRIES, &s->loop);

	if (r < 0) {
		skv_loop_explain(r, why, sizeof(why));
		skv_log(LOG_ERR, "the event loop cannot be set up: %s", why);
	}
	return r;
}

static int start_ipc(struct skv_server *s)
{
	static const struct skv_ipc_ops ops = {.message = skv_request,
	                                       .gone = skv_request_gone,
	                                       .used_up = skv_request_used_up,
	                                       .drained = skv_request_drained};
	int fds[2], r = open_sockets(s, fds);

	if (r < 0)
		return r;
	r = skv_ipc_new(s->loop, fds[0], fds[1], &ops, s, s->counts, &s->ipc);
	if (r < 0) {
		skv_close_fd(fds[0]);
		skv_close_fd(fds[1]);
	}
	return r;
}

static int start_signals(struct skv_server *s)
{
	sigset_t set;

	s->life.command_fd = eventfd(0, EFD_CLOEXEC);
	if (s->life.command_fd < 0)
		return -errno;
	if (!s->options.service)
		return 0;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	s->life.signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	return s->life.signal_fd < 0 ? -errno : 0;
}

static void on_failure(void *server, const char *what, int error)
{
	skv_server_fail(server, what, error);
}

static int start_jobs(struct skv_server *s)
{
	const struct skv_jobs_config config = {.loop = s->loop,
	                                       .core = s->core,
	                                       .program = s->worker,
	                                       .timeout_ns = s->config.disk_timeout,
	                                       .fail = on_failure,
	                                       .server = s};
	char why[SKV_TEXT_MAX];
	int r = skv_jobs_new(&config, &s->jobs, why);

	if (r < 0)
		skv_log(LOG_ERR, "the workers cannot be set up: %s", why);
	return r;
}

/* A parked sequence or prefix has been read, or reading has failed: continues the requests that wait for the file. */
static void on_restored(struct skv_server *s, uid_t uid, const struct skv_model *m, const char *name, int error,
                        const char *why)
{
	if (skv_prefix_name_valid(name))
		skv_prefix_restored(s, uid, name);
	else
		skv_fence_restored(s, uid, m, name, error, why);
}

static const struct skv_parking_ops parking_ops = {.restored = on_restored, .tag = skv_prefix_file_tag};

int skv_server_new(const struct skv_server_options *options, struct skv_server **ret)
{
	struct skv_server *s = calloc(1, sizeof(*s));
	char err[SKV_CONFIG_ERR];
	int r;

	if (!s)
		return -ENOMEM;
	s->options = *options;
	s->counts = skv_counts_new();
	s->worker = skv_child_find(options->program, "sparsekv-worker");
	s->life.command_fd = s->life.signal_fd = -1;
	s->restart.passed = (struct skv_sd_passed)SKV_SD_PASSED_NULL;
	s->life.sockets = (struct skv_sockets)SKV_SOCKETS_NULL;
	s->life.started_ns = skv_now_ns();
	r = skv_config_load(&options->config, &s->config, err);
	skv_log_open(r < 0 ? LOG_INFO : s->config.log_level);
	if (r < 0)
		skv_log(LOG_ERR, "settings: %s", err);
	if (r == 0 && (!s->counts || !s->worker))
		r = -ENOMEM;
	if (r == 0)
		r = take_descriptors(&s->config);
	if (r == 0)
		r = start_signals(s);
	if (r == 0)
		r = take_passed(s);
	if (r == 0)
		r = start_loop(s);
	if (r == 0)
		r = start_core(s);
	if (r == 0)
		r = start_devices(s);
	if (r == 0)
		r = start_jobs(s);
	if (r == 0)
		r = skv_parking_start(s, &parking_ops);
	if (r == 0)
		r = skv_prefix_start(s);
	if (r == 0)
		r = skv_registry_new(s->loop, options->program, &skv_policy_registry_ops, s, &s->registry);
	if (r == 0)
		r = skv_scan_new(s->registry, &s->scan);
	if (r == 0)
		r = start_ipc(s);
	if (r < 0) {
		s->core = skv_core_abandon(s->core); /* leave the kept state as it is, for the next daemon */
		skv_server_free(s);
		return r;
	}
	apply_config(s);
	*ret = s;
	return 0;
}

struct skv_server *skv_server_free(struct skv_server *s)
{
	if (!s)
		return NULL;
	skv_ipc_free(s->ipc);
	skv_lease_free_all(s);
	skv_fence_free_all(s);
	skv_tasks_free_all(s);
	skv_query_free_all(s);
	skv_sockets_remove(&s->life.sockets);
	skv_scan_free(s->scan);
	skv_registry_free(s->registry);
	/* these three refund charges in the core */
	s->jobs = skv_jobs_free(s->jobs, s->core);
	skv_parking_free(s);
	skv_prefix_free(s);
	skv_core_free(s->core);
	skv_past_free(s);
	skv_sd_passed_free(&s->restart.passed);
	skv_device_free_all(s);
	skv_hostmem_deinit(&s->hostmem);
	skv_loop_free(s->loop);
	skv_close_fd(s->life.command_fd);
	skv_close_fd(s->life.signal_fd);
	skv_counts_free(s->counts);
	free(s->worker);
	free(s);
	return NULL;
}

/* ---- serving ---- */

static void on_watchdog(struct skv_op *op, int res)
{
	struct skv_server *s = SKV_OP_OWNER(op, struct skv_server, life.watchdog_op);

	if (res < 0)
		return;
	skv_sd_watchdog();
	skv_op_timer(s->loop, op, s->life.watchdog_ns, on_watchdog);
}

static void stop(struct skv_server *s, const char *why)
{
	if (!s->life.stopping)
		skv_log(LOG_NOTICE, "the daemon stops: %s", why);
	s->life.stopping = true;
	skv_loop_quit(s->loop);
}

static void on_command(struct skv_op *op, int res)
{
	struct skv_server *s = SKV_OP_OWNER(op, struct skv_server, life.command_op);

	if (res == -ECANCELED)
		return;
	if (s->life.command % COMMAND_RELOAD)
		stop(s, "a stop was requested");
	else
		begin_reload(s);
	skv_op_read(s->loop, op, s->life.command_fd, &s->life.command, sizeof(s->life.command), on_command);
}

static void on_signal(struct skv_op *op, int res)
{
	struct skv_server *s = SKV_OP_OWNER(op, struct skv_server, life.signal_op);

	if (res == -ECANCELED)
		return;
	if (res != (int)sizeof(s->life.signal))
		skv_log(LOG_ERR, "a signal cannot be read: %s", res < 0 ? strerror(-res) : "a short read");
	else if (s->life.signal.ssi_signo == SIGHUP)
		begin_reload(s);
	else
		stop(s, s->life.signal.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
	skv_op_read(s->loop, op, s->life.signal_fd, &s->life.signal, sizeof(s->life.signal), on_signal);
}

static bool on_idle(void *server)
{
	struct skv_server *s = server;
	bool more = skv_ipc_work(s->ipc); /* requests go first, since they create work for the functions below */

	skv_loop_did(s->loop, "requests");
	more |= skv_tick_some(s);
	more |= skv_prefix_work(server);
	skv_loop_did(s->loop, "keys of prefixes");
	more |= skv_tasks_work(server);
	skv_parking_work(server);
	skv_jobs_work(s->jobs);
	skv_loop_did(s->loop, "jobs");
	more |= skv_query_work(server);
	skv_loop_did(s->loop, "lists");
	skv_device_make(server);
	skv_reply_announce_all(server);
	skv_loop_did(s->loop, "notices");
	return more || skv_parking_has_work(server) ||
	       /* the functions above may have made work */
	       skv_jobs_has_work(s->jobs);
}

/* The policies have been loaded. At the start the daemon now accepts connections; a reload ends here. */
static void on_scanned(void *server)
{
	struct skv_server *s = server;
	char names[256];

	if (s->life.stopping || s->failure)
		return;
	skv_registry_names(s->registry, names, sizeof(names));
	if (!s->life.serving) {
		skv_log(LOG_NOTICE, "sparsekvd %s listens on %s; policies: %s", PACKAGE_VERSION,
		        s->life.sockets.clients.path ? s->life.sockets.clients.path : "the service manager's socket",
		        names);
		skv_policy_replace_all(s);
		skv_ipc_listen(s->ipc);
		s->life.serving = true;
	}
	skv_report_status_line(s, s->life.status, sizeof(s->life.status));
	if (s->options.service)
		skv_sd_ready(s->life.status);
	if (s->life.reload_again) {
		s->life.reload_again = false;
		begin_reload(s);
	}
}

/* ---- reloading ---- */

static void begin_reload(struct skv_server *s)
{
	struct skv_core_config core;
	struct skv_config next;
	char err[SKV_CONFIG_ERR], kept[256];

	if (skv_scan_running(s->scan)) {
		s->life.reload_again = true;
		return;
	}
	if (s->options.service)
		skv_sd_reloading();
	if (skv_config_load(&s->options.config, &next, err) < 0) {
		skv_log(LOG_ERR, "reload: %s; the old configuration stays in force", err);
		if (s->options.service) {
			skv_sd_ready("");
			s->life.reload_failed = true;
			skv_sd_status("Reload failed, the old configuration stays in force: %s", err);
		}
		return;
	}
	s->life.reload_failed = false;
	skv_config_apply(&s->config, &next, kept, sizeof(kept));
	if (*kept)
		skv_log(LOG_WARNING, "reload: these settings take effect at the next start: %s", kept);
	core_config(&s->config, &core);
	if (!skv_core_reconfigure(s->core, &core))
		skv_log(LOG_WARNING,
		        "reload: pool-bytes cannot grow beyond four times what the daemon started with");
	apply_config(s);
	skv_parking_reload(s);
	skv_log(LOG_NOTICE, "the configuration is reloaded");
	skv_scan_start(s->scan, s->config.policy_path, on_scanned, s);
}

/* ---- running and stopping ---- */

/*
 * Disconnects all clients and checks that the state balances. If the service manager keeps the state for the next
 * daemon, nothing is dropped; otherwise everything is dropped first, and the state must be empty.
 */
static int close_core(struct skv_server *s)
{
	const bool keeps = s->options.service && skv_sd_is_there();
	const char *off;
	int r;

	s->restart.leaving = keeps;
	if (s->options.service)
		skv_sd_stopping(keeps ? "Leaving everything to the next daemon" : "Reclaiming everything");
	skv_ipc_close_all(s->ipc);
	skv_device_close_all(s);
	skv_jobs_close(s->jobs);
	r = skv_loop_drain(s->loop);
	if (r < 0)
		skv_log(LOG_ERR, "waiting for the end of operations of the io_uring failed: %s", strerror(-r));
	s->hostmem.loop = NULL;
	if (s->failure) {
		/* leaves the state as of the last commit, from which the next daemon continues */
		s->core = skv_core_abandon(s->core);
		return r;
	}
	if (!keeps)
		skv_core_drop_all(s->core);
	off = skv_core_balance(s->core, !keeps);
	if (off) {
		skv_log(LOG_CRIT, "the state is inconsistent, which is a bug in the daemon: %s", off);
		return -EUCLEAN;
	}
	if (keeps)
		skv_past_leave(s);
	else
		skv_log(LOG_NOTICE, "all state was released, and it is consistent; the daemon exits");
	return r;
}

int skv_server_run(struct skv_server *s)
{
	int r, closed;

	s->life.watchdog_ns = s->options.service ? skv_sd_watchdog_interval() : 0;
	if (s->life.watchdog_ns)
		skv_op_timer(s->loop, &s->life.watchdog_op, s->life.watchdog_ns, on_watchdog);
	if (s->life.signal_fd >= 0)
		skv_op_read(s->loop, &s->life.signal_op, s->life.signal_fd, &s->life.signal, sizeof(s->life.signal),
		            on_signal);
	skv_op_read(s->loop, &s->life.command_op, s->life.command_fd, &s->life.command, sizeof(s->life.command),
	            on_command);
	skv_tick_start(s);
	skv_loop_on_idle(s->loop, on_idle, s);
	skv_scan_start(s->scan, s->config.policy_path, on_scanned, s);

	r = skv_loop_run(s->loop);
	if (r < 0)
		skv_server_fail(s, "the io_uring", r);
	s->life.stopping = true;
	closed = close_core(s);
	return s->failure ? s->failure : closed;
}

static void command(struct skv_server *s, uint64_t what)
{
	int saved = errno;

	(void)!write(s->life.command_fd, &what, sizeof(what));
	errno = saved;
}

void skv_server_stop(struct skv_server *s)
{
	command(s, COMMAND_STOP);
}

void skv_server_reload(struct skv_server *s)
{
	command(s, COMMAND_RELOAD);
}
