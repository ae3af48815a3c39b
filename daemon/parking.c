/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parking.c - sequences go to disk and come back: one job each, whose bytes a worker process moves (disk/job.h).
 *
 *   park     list what the sequence names (core) → worker writes the file → the sequence goes from memory (core)
 *   resume   a sequence without a name, pages for it (core) → worker reads the file → it gets its name (core) → the file goes
 *
 * At any instant a sequence is whole in memory, in a file, or in both; where it is in both, what is in memory counts: a daemon that
 * starts removes the file. A file is removed by way of the ring, so after the commit that has the sequence in memory.
 *
 * No holder of a sequence waits for this: one that is attached while it is being written is just attached, and its file removed. Only who
 * drops one waits until no file of it is there, or can come (parking-request.c): the next daemon would take that for the sequence.
 */
#include "daemon/parking-priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/core/pins.h"
#include "daemon/lease.h"
#include "daemon/reply.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/log.h"

#define IDLE_NS 30000000000u /* of a worker */
#define HOUR_NS UINT64_C(3600000000000)

/* ---- jobs ------------------------------------------------------------------------------------ */

static void done(struct skv_worker_job *work, int error, const char *why, const void *answer);

struct skv_parking_job *skv_parking_job_new(struct skv_parking *k, const struct skv_parking_kind *kind, uint32_t disk_kind, uint32_t uid, char why[SKV_TEXT_MAX])
{
	struct skv_parking_job *j = calloc(1, sizeof(*j));

	if (!j) {
		snprintf(why, SKV_TEXT_MAX, "the daemon is out of memory");
		return NULL;
	}
	j->parking = k;
	j->kind = kind;
	j->m.kind = disk_kind;
	j->m.uid = uid;
	j->list = j->other = -1;
	j->begun_ns = skv_now_ns();
	j->user = disk_kind < SKV_DISK_STORE_PUT ? skv_files_user(&k->files, uid) : -1;
	j->work = (struct skv_worker_job){.job = &j->m, .bytes = sizeof(j->m), .done = done};
	if (j->user < 0 && disk_kind < SKV_DISK_STORE_PUT) {
		snprintf(why, SKV_TEXT_MAX, "the user's folder for parked sequences: %s", strerror(-j->user));
		free(j);
		return NULL;
	}
	j->next = k->jobs;
	k->jobs = j;
	return j;
}

void skv_parking_job_free(struct skv_parking_job *j)
{
	struct skv_parking_job **at = &j->parking->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	skv_core_list_end(&j->listing);
	skv_files_unreserve(&j->parking->files, j->reserved);
	skv_close_fd(j->list);
	skv_close_fd(j->user);
	skv_close_fd(j->other);
	j->parking->settled = true;
	skv_core_unpin(j->parking->server->core, (uid_t)j->m.uid, &j->pinned);
	free(j->segments);
	free(j->fds);
	free(j);
}

void skv_parking_answer(struct skv_parking *k, struct skv_parking_ask *ask, int error, const char *why)
{
	if (error && !ask->error) {
		ask->error = error;
		snprintf(ask->why, sizeof(ask->why), "%s", why);
	}
	ask->done += error == 0;
	if (--ask->jobs)
		return;
	ask->tell(k, ask);
	free(ask);
}

void skv_parking_written(struct skv_parking_job *j, const struct skv_parked_header *h, struct skv_parked_keys *keys)
{
	struct skv_parked_header known = {.model = j->m.model};

	memcpy(known.name, j->m.name, sizeof(known.name));
	skv_files_put(&j->parking->files, j->reserved, j->m.uid, j->m.file, h ? h : &known, keys);
	j->file = j->reserved;
	j->reserved = NULL;
	skv_parking_used(j->file);
	j->state = SKV_PARKING_WRITTEN;
	skv_parking_trim_prefixes(j->parking, j->m.uid);
}

/* It is over: who asked is told. */
void skv_parking_end(struct skv_parking_job *j, int error, const char *why)
{
	struct skv_parking *k = j->parking;

	if (error < 0 && error != -EBUSY && error != -ECANCELED && j->kind->worker < SKV_PARKING_FOREIGN)
		skv_count(k->server->counts, (uid_t)j->m.uid, SKV_COUNT_PARKING_FAILED, 1);
	while (j->asked) {
		struct skv_parking_asked *a = j->asked;

		j->asked = a->next;
		if (error == 0)
			a->ask->bytes += j->file ? j->file->bytes : 0;
		skv_parking_answer(k, a->ask, error, why);
		free(a);
	}
	skv_parking_job_free(j);
}

int skv_parking_not_begun(struct skv_parking_job *j, int r, char why[SKV_TEXT_MAX])
{
	snprintf(why, SKV_TEXT_MAX, "%s", r < 0 ? strerror(-r) : skv_core_why(j->parking->server->core));
	if (j->asked)
		j->asked->ask->jobs--;
	free(j->asked);
	skv_parking_job_free(j);
	return r < 0 ? r : -skv_core_errno((enum skv_core_error)r);
}

int skv_parking_wait(struct skv_parking_job *j, struct skv_parking_ask *ask)
{
	struct skv_parking_asked *a = ask ? malloc(sizeof(*a)) : NULL;

	if (!ask)
		return 0;
	if (!a)
		return -ENOMEM;
	*a = (struct skv_parking_asked){j->asked, ask};
	j->asked = a;
	ask->jobs++;
	return 0;
}

struct skv_parking_job *skv_parking_find_job(struct skv_parking *k, uint32_t kind, uint32_t uid, const char *model, const char *name,
                                             struct skv_parking_job *after)
{
	struct skv_parking_job *j = after ? after->next : k->jobs;

	while (j && (j->m.kind != kind || j->m.uid != uid || strcmp(j->m.model.name, model) || strcmp(j->m.name, name)))
		j = j->next;
	return j;
}

bool skv_parking_is_about_to_be(const void *parking, uint32_t uid, const char *file)
{
	const struct skv_parking *k = parking;
	const struct skv_parking_job *j = k->jobs;

	while (j && (j->m.kind != SKV_DISK_PARK || j->m.uid != uid || strcmp(j->m.file, file)))
		j = j->next;
	return j != NULL;
}

/* ---- with a worker --------------------------------------------------------------------------- */

/* The numbers of segments go into the list, after the rest, and their descriptors along. False: one is not there any more. */
static bool add_segments(struct skv_parking_job *j, uint64_t listed)
{
	for (uint32_t s = 0; s < j->n_segments; s++) {
		const struct skv_mem_handle *h = j->segments[s] ? skv_core_seq_segment(j->parking->server->core, j->seq, s) : NULL;

		if (!j->segments[s])
			continue;
		if (!h || h->fd < 0 || pwrite(j->list, &s, sizeof(s), (off_t)listed) != sizeof(s))
			return false;
		listed += sizeof(s);
		j->fds[j->m.n_fds++] = h->fd;
	}
	return true;
}

/* Sequence memory, list and memory of pages; what the job says of them. Negative errno. */
static int add_memory(struct skv_parking_job *j, uint64_t listed)
{
	struct skv_core_location p;

	if (skv_core_seq_location(j->parking->server->core, j->seq, &p))
		return -ESTALE;
	j->fds[SKV_DISK_FD_SEQ] = p.fd;
	j->fds[SKV_DISK_FD_LIST] = j->list;
	j->m.n_fds = SKV_DISK_FD_PAGES;
	j->m.max_pages = p.max_pages;
	j->m.segment_bytes = p.segment_bytes;
	j->m.pages_per_segment = p.pages_per_segment;
	if (p.pages_fd >= 0)
		j->fds[j->m.n_fds++] = p.pages_fd;
	return p.pages_fd >= 0 || add_segments(j, listed) ? 0 : -ESTALE;
}

/*
 * Everything is known: to the worker. What is sent are descriptors of the core, which may close them while the job waits for its turn: so
 * it has copies.
 */
int skv_parking_move(struct skv_parking_job *j, uint64_t listed)
{
	struct skv_parking *k = j->parking;
	int r = 0;

	j->fds = malloc((SKV_DISK_FD_PAGES + 1 + j->n_segments) * sizeof(*j->fds));
	if (!j->fds)
		return -ENOMEM;
	j->fds[SKV_DISK_FD_FOLDER] = k->files.folder;
	j->fds[SKV_DISK_FD_USER] = j->user;
	j->fds[SKV_DISK_FD_OTHER] = j->other;
	j->m.n_fds = j->m.kind == SKV_DISK_STORE_FIND ? SKV_DISK_FD_STORE + 1 : SKV_DISK_FD_OTHER + 1;
	if (j->list >= 0)
		r = add_memory(j, listed);
	if (r < 0)
		return r;
	j->work.fds = j->fds;
	j->work.n_fds = j->m.n_fds;
	j->state = SKV_PARKING_MOVING;
	skv_worker_submit(k->workers[j->kind->worker], &j->work);
	return 0;
}

/* ---- what becomes of them -------------------------------------------------------------------- */

static void done(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	struct skv_parking_job *j = (struct skv_parking_job *)work;

	j->kind->moved(j, j->parking->closed ? -ECANCELED : error, why, answer);
}

/* A turn for each job that is in one of these states and had none since. A turn may end other jobs, and run this. */
static void run(struct skv_parking *k, uint64_t turn, enum skv_parking_state a, enum skv_parking_state b)
{
	struct skv_parking_job *j = k->jobs;

	while (j) {
		if ((j->state != a && j->state != b) || j->turn >= turn) {
			j = j->next;
			continue;
		}
		j->turn = turn;
		j->kind->turn(j);
		j = k->jobs;
	}
}

/* Requests that were put off, and need not be any more. */
static void try_again(struct skv_parking *k)
{
	struct skv_put_off *all = k->settled ? k->put_off : NULL, *x;

	if (all)
		k->put_off = NULL;
	k->settled = false;
	while ((x = all)) {
		struct skv_conn *conn = skv_ipc_find(k->server->ipc, x->conn);

		all = x->next;
		if (conn) {
			x->again(k->server, conn, &x->header, &x->body, NULL); /* it may be put off once more */
			skv_conn_pause(conn, false);
		}
		free(x);
	}
}

bool skv_parking_work(struct skv_server *s)
{
	struct skv_parking *k = s->parking;
	char why[SKV_TEXT_MAX];
	uint32_t seq;
	int r;

	if (!k || k->closed)
		return false;
	try_again(k);
	while (skv_core_next_park(s->core, &seq))
		if ((r = skv_parking_begin_park(k, seq, NULL, why)) < 0) {
			skv_core_park_failed(s->core, seq, skv_now_ns());
			if (r != -EBUSY)
				skv_log_peer(LOG_WARNING, "a sequence stays in memory, it cannot be parked: %s", why);
			skv_lease_retry(s);
		}
	run(k, ++k->turns, SKV_PARKING_TURNS, SKV_PARKING_FILE);
	for (const struct skv_parking_job *j = k->jobs; j; j = j->next)
		if (j->state == SKV_PARKING_TURNS)
			return true;
	return false;
}

void skv_parking_retry(struct skv_server *s)
{
	if (s->parking)
		run(s->parking, ++s->parking->turns, SKV_PARKING_MEMORY, SKV_PARKING_MEMORY);
}

static void odd(const char *file, const char *why)
{
	skv_log_peer(LOG_WARNING, "parked-path: %s is left alone: %s", file, why);
}

/* What is in memory, too, counts there: its file goes before anybody can drop the sequence. A sealed prefix never changes, and may be in both. */
static void remove_known(struct skv_parking *k)
{
	for (size_t i = k->files.n; i > 0; i--) {
		struct skv_parked *p = k->files.all[i - 1];
		struct skv_model m;
		int user;

		skv_wire_to_model(&m, &p->model);
		if (skv_parked_is_prefix(p) || !skv_core_seq_exists(k->server->core, p->uid, &m, p->name))
			continue;
		user = skv_files_user(&k->files, p->uid);
		if (user >= 0 && unlinkat(user, p->file, 0) == 0)
			skv_parking_forget(k, p);
		else
			skv_parking_remove(k, p);
		skv_close_fd(user);
	}
}

/* Not while what comes in may have a name already: it is not known which. */
static void look_again(struct skv_parking *k)
{
	const size_t n = k->files.n;
	unsigned gone;

	for (const struct skv_parking_job *j = k->jobs; j; j = j->next)
		if (j->m.kind == SKV_DISK_IMPORT)
			return;
	k->look_again = false;
	skv_files_look_again(&k->files, odd, skv_parking_is_about_to_be, k);
	skv_log(LOG_NOTICE, "parked-path: %zu more sequences could be read now; of %zu files and folders it failed again", k->files.n - n,
	        k->files.n_unread);
	remove_known(k);
	(void)skv_parking_index_prefixes(k, &gone);
}

/*
 * How long it has been without use. Time passes by a clock that nobody sets. How old a file was when this daemon found it, only the clock
 * of the day says, and it may be wrong, or may have been: so none is found too old to stay for an hour, or a quarter of `ttl_ns`.
 */
static uint64_t age_of(struct skv_parked *p, uint64_t ttl_ns)
{
	const uint64_t now_ns = skv_now_ns(), real_ns = skv_real_ns(), grace_ns = ttl_ns / 4 < HOUR_NS ? ttl_ns / 4 : HOUR_NS;

	if (!p->since_ns) {
		p->since_ns = now_ns;
		p->age_ns = real_ns > p->used_ns ? real_ns - p->used_ns : 0;
		if (p->age_ns > ttl_ns - grace_ns)
			p->age_ns = ttl_ns - grace_ns;
	}
	return p->age_ns + (now_ns - p->since_ns);
}

void skv_parking_used(struct skv_parked *p)
{
	p->used_ns = skv_real_ns();
	p->since_ns = skv_now_ns();
	p->age_ns = 0;
}

void skv_parking_tick(struct skv_server *s)
{
	struct skv_parking *k = s->parking;
	const uint64_t ttl = s->config.sequence_ttl;

	if (k && k->look_again)
		look_again(k);
	for (const struct skv_parking_job *j = k ? k->jobs : NULL; j; j = j->next)
		for (const struct skv_parking_asked *a = j->asked; a; a = a->next)
			skv_reply_wait(skv_ipc_find(s->ipc, a->ask->conn), a->ask->header.serial);
	if (k)
		skv_parking_remove_again(k);
	for (size_t i = 0; k && ttl && i < k->files.n; i++) {
		struct skv_parked *p = k->files.all[i];

		if (p->busy || p->going || age_of(p, ttl) < ttl)
			continue;
		skv_count(s->counts, (uid_t)p->uid, SKV_COUNT_PARKED_EXPIRED, 1);
		skv_parking_remove(k, p);
	}
}

/* ---- life ------------------------------------------------------------------------------------ */

static int start_workers(struct skv_parking *k)
{
	const struct skv_worker_config config = {
		.program = k->server->options.program,
		.option = "--disk-worker",
		.name = "disk",
		.answer_bytes = sizeof(struct skv_disk_answer),
		.why_at = offsetof(struct skv_disk_answer, why),
		.timeout_ns = k->server->config.disk_timeout,
		.idle_ns = IDLE_NS,
	};
	int r = 0;

	for (unsigned i = 0; i < SKV_PARKING_WORKERS && r == 0; i++)
		r = skv_worker_new(k->server->loop, &config, &k->workers[i]);
	return r;
}

int skv_parking_start(struct skv_server *s, skv_parking_restored restored)
{
	const char *path = s->config.parked_path;
	struct skv_parking *k;
	char why[256];
	int r;

	if (!*path)
		return 0;
	k = calloc(1, sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->server = s;
	k->restored = restored;
	k->files = (struct skv_files)SKV_FILES_NULL;
	s->parking = k;
	r = skv_files_open(&k->files, path, odd, why, sizeof(why));
	if (r < 0) {
		skv_log(LOG_ERR, "parked-path %s: %s", path, why);
		return r;
	}
	r = start_workers(k);
	if (r < 0)
		return r;
	remove_known(k);
	skv_core_set_parking(s->core, true);
	if (k->files.n)
		skv_log(LOG_NOTICE, "%zu sequences and sealed prefixes are parked in %s", k->files.n, path);
	return 0;
}

void skv_parking_reconfigure(struct skv_server *s)
{
	for (unsigned i = 0; s->parking && i < SKV_PARKING_WORKERS; i++)
		skv_worker_set_times(s->parking->workers[i], s->config.disk_timeout, IDLE_NS);
}

void skv_parking_reload(struct skv_server *s)
{
	if (s->parking)
		s->parking->look_again = s->parking->files.n_unread > 0;
}

void skv_parking_close(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k)
		return;
	k->closed = true;
	for (unsigned i = 0; i < SKV_PARKING_WORKERS; i++)
		skv_worker_close(k->workers[i]);
}

void skv_parking_free(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k)
		return;
	while (k->jobs) {
		while (k->jobs->asked) {
			struct skv_parking_asked *a = k->jobs->asked;

			k->jobs->asked = a->next;
			if (--a->ask->jobs == 0)
				free(a->ask);
			free(a);
		}
		skv_parking_job_free(k->jobs);
	}
	while (k->put_off) {
		struct skv_put_off *x = k->put_off;

		k->put_off = x->next;
		free(x);
	}
	for (unsigned i = 0; i < SKV_PARKING_WORKERS; i++)
		skv_worker_free(k->workers[i]);
	skv_parking_remove_rest(k);
	skv_block_index_deinit(&k->prefixes);
	skv_files_close(&k->files);
	free(k);
	s->parking = NULL;
}
