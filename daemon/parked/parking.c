/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parking.c - sequences are parked on disk and resumed: one job each, whose bytes a worker process moves
 * (disk/job.h).
 *
 *   park     list what the sequence names (core) → worker writes the file → free the sequence's memory (core)
 *   resume   an anonymous sequence and pages for it (core) → worker reads the file → name the sequence (core) →
 *            remove the file
 *
 * At any instant a sequence is whole in memory, in a file, or in both. If it is in both, memory counts: a daemon that
 * starts removes the file. Workers get their jobs through the ring, so a file is removed only after the commit that
 * has the sequence in memory.
 *
 * A sequence that is being written can be attached at once; its file is then removed. Only dropping a sequence waits
 * until its file is removed and none can be written any more (parking-request.c): the next daemon would take a file
 * for the sequence.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/pins.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/reply.h"
#include "daemon/sys/log.h"

#define IDLE_NS 30000000000u /* idle time after which a worker ends */
#define HOUR_NS UINT64_C(3600000000000)
#define FILES_A_TICK 4096u

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
	j->list = j->store = j->other = -1;
	j->begun_ns = skv_now_ns();
	j->work = (struct skv_worker_job){.job = &j->m, .bytes = sizeof(j->m), .user = uid, .done = done};
	j->next = k->jobs;
	k->jobs = j;
	skv_queue_put(&k->in[SKV_PARKING_NEW], &j->queued, uid);
	return j;
}

void skv_parking_enter(struct skv_parking_job *j, enum skv_parking_state state)
{
	struct skv_parking *k = j->parking;

	skv_queue_remove(&j->queued);
	j->state = state;
	skv_queue_put(&k->in[state], &j->queued, j->m.uid);
}

void skv_parking_job_free(struct skv_parking_job *j)
{
	struct skv_parking_job **at = &j->parking->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	skv_queue_remove(&j->queued);
	skv_core_list_end(&j->listing);
	skv_files_unreserve(&j->parking->files, j->reserved);
	if (j->list >= 0 && !j->parking->closed)
		skv_loop_close_fd(j->parking->server->loop, j->list); /* frees all its memory, which takes long */
	else
		skv_close_fd(j->list);
	skv_close_fd(j->store);
	skv_close_fd(j->other);
	j->parking->settled = true;
	skv_core_unpin(j->parking->server->core, (uid_t)j->m.uid, &j->pinned);
	free(j->segments);
	free(j->fds);
	free(j);
}

void skv_parking_answer(struct skv_parking_ask *ask, int error, const char *why)
{
	if (error && !ask->error) {
		ask->error = error;
		snprintf(ask->why, sizeof(ask->why), "%s", why);
	}
	ask->done += error == 0;
	if (--ask->jobs)
		return;
	ask->tell(ask);
	free(ask);
}

void skv_parking_written(struct skv_parking_job *j, const struct skv_parked_header *h, struct skv_parked_keys *keys)
{
	struct skv_parked_header known = {.model = j->m.model};

	memcpy(known.name, j->m.name, sizeof(known.name));
	skv_files_put(&j->parking->files, j->reserved, j->m.file, h ? h : &known, keys);
	j->file = j->reserved;
	j->reserved = NULL;
	skv_parking_used(j->file);
	skv_parking_enter(j, SKV_PARKING_WRITTEN);
	skv_parking_trim_prefixes(j->parking, j->m.uid);
}

/* The job has ended: answers its requests. */
void skv_parking_end(struct skv_parking_job *j, int error, const char *why)
{
	struct skv_parking *k = j->parking;

	if (error < 0 && error != -EBUSY && error != -ECANCELED && j->kind->worker < SKV_PARKING_EXPORT)
		skv_count(k->server->counts, (uid_t)j->m.uid, SKV_COUNT_PARKING_FAILED, 1);
	while (j->asked) {
		struct skv_parking_asked *a = j->asked;

		j->asked = a->next;
		if (error == 0)
			a->ask->bytes += j->file ? j->file->bytes : 0;
		skv_parking_answer(a->ask, error, why);
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

bool skv_parking_has_job(const struct skv_parking *k, const struct skv_parking_kind *kind, uint32_t uid)
{
	const struct skv_parking_job *j = k->jobs;

	while (j && (j->kind != kind || j->m.uid != uid))
		j = j->next;
	return j != NULL;
}

struct skv_parking_job *skv_parking_find_job(struct skv_parking *k, uint32_t kind, uint32_t uid, const char *model, const char *name,
                                             struct skv_parking_job *after)
{
	struct skv_parking_job *j = after ? after->next : k->jobs;

	while (j && (j->m.kind != kind || j->m.uid != uid || strcmp(j->m.model.name, model) || strcmp(j->m.name, name)))
		j = j->next;
	return j;
}

bool skv_parking_is_about_to_be(const struct skv_parking *k, uint32_t uid, const char *file)
{
	const struct skv_parking_job *j = k->jobs;

	while (j && (j->m.kind != SKV_DISK_PARK || j->m.uid != uid || strcmp(j->m.file, file)))
		j = j->next;
	return j != NULL;
}

/* ---- jobs with a worker ------------------------------------------------------------------------- */

/* Appends the numbers of needed segments to the list, and their descriptors to the job. False: a segment is gone. */
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

/* Adds sequence memory, list and memory of pages to the job. Negative errno. */
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
 * Everything is known: hands the job to its worker. Descriptors of the core are borrowed, and not duplicated while
 * the job waits for its turn.
 */
int skv_parking_move(struct skv_parking_job *j, uint64_t listed)
{
	struct skv_parking *k = j->parking;
	int r = 0;

	j->fds = malloc((SKV_DISK_FD_PAGES + 1 + j->n_segments) * sizeof(*j->fds));
	if (!j->fds)
		return -ENOMEM;
	j->fds[SKV_DISK_FD_LOCK] = k->files.folder;
	j->fds[SKV_DISK_FD_USER] = j->store >= 0 ? j->store : k->files.folder;
	j->fds[SKV_DISK_FD_OTHER] = j->other;
	j->m.n_fds = j->m.kind == SKV_DISK_STORE_FIND ? SKV_DISK_FD_STORE + 1 : SKV_DISK_FD_OTHER + 1;
	if (j->list >= 0)
		r = add_memory(j, listed);
	if (r < 0)
		return r;
	j->work.fds = j->fds;
	j->work.n_fds = j->m.n_fds;
	skv_parking_enter(j, SKV_PARKING_MOVING);
	skv_worker_submit(k->workers[j->kind->worker], &j->work);
	return 0;
}

/* ---- jobs that have ended, turns ---------------------------------------------------------------- */

static void done(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	struct skv_parking_job *j = (struct skv_parking_job *)work;

	j->kind->moved(j, j->parking->closed ? -ECANCELED : error, why, answer);
}

/* Takes the next job of a queue; NULL: it is empty. */
static struct skv_parking_job *take(struct skv_queue *q)
{
	struct skv_queued *e = skv_queue_take(q);

	return e ? SKV_QUEUED_OWNER(e, struct skv_parking_job, queued) : NULL;
}

/* Runs a turn of the next job of a queue. It may end other jobs, and call this function. */
static void run(struct skv_queue *q)
{
	struct skv_parking_job *j = take(q);

	if (!j)
		return;
	skv_parking_enter(j, SKV_PARKING_NEW);
	j->kind->turn(j);
}

/* A job has ended or a file was removed: what waited for that continues. */
static void go_on(struct skv_parking *k)
{
	struct skv_parking_job *j;

	if (!k->settled)
		return;
	k->settled = false;
	while ((j = take(&k->in[SKV_PARKING_FILE])))
		skv_parking_enter(j, SKV_PARKING_TURNS);
	skv_queue_move(&k->trying, &k->put_off);
}

static void begin_next_park(struct skv_parking *k)
{
	struct skv_server *s = k->server;
	char why[SKV_TEXT_MAX];
	uint32_t seq;
	int r;

	if (!skv_core_next_park(s->core, &seq))
		return;
	r = skv_parking_begin_park(k, seq, NULL, why);
	if (r == 0)
		return;
	skv_core_park_failed(s->core, seq, skv_now_ns());
	if (r != -EBUSY)
		skv_log_peer(LOG_WARNING, "a sequence cannot be parked and stays in memory: %s", why);
	skv_lease_retry(s);
}

bool skv_parking_has_work(const struct skv_server *s)
{
	const struct skv_parking *k = s->parking;

	return k && !k->closed &&
	       (k->settled || k->trying.first || k->in[SKV_PARKING_TURNS].first || skv_core_has_park(s->core));
}

/* One request, one parking that begins, and one turn of a job, however many are due. */
void skv_parking_work(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k || k->closed)
		return;
	go_on(k);
	skv_parking_try_again(k);
	skv_loop_did(s->loop, "parking: requests");
	begin_next_park(k);
	skv_loop_did(s->loop, "parking: beginning");
	run(&k->in[SKV_PARKING_TURNS]);
	skv_loop_did(s->loop, "parking: turns");
}

/*
 * Tries jobs that wait for memory at once: what the pool has beyond what is taken now is given back (lease.c). At
 * most one job per user is tried in vain, since the user's other jobs wait behind it (skv_parking_take_pages()).
 */
void skv_parking_retry(struct skv_server *s)
{
	struct skv_queue round = {0};

	if (!s->parking)
		return;
	skv_queue_move(&round, &s->parking->in[SKV_PARKING_MEMORY]);
	while (round.first)
		run(&round);
}

void skv_parking_odd(const char *file, const char *why)
{
	skv_log_peer(LOG_WARNING, "parked-path: %s is left alone: %s", file, why);
}

/*
 * A sequence that is also in memory counts there: its file is removed before the sequence can be dropped. A sealed
 * prefix never changes, and may be in both.
 */
void skv_parking_remove_known(struct skv_parking *k)
{
	for (size_t i = k->files.n; i > 0; i--) {
		struct skv_parked *p = k->files.all[i - 1];
		struct skv_model m;

		skv_wire_to_model(&m, &p->model);
		if (!skv_parked_is_prefix(p) && !p->going && skv_core_seq_exists(k->server->core, p->uid, &m, p->name))
			skv_parking_remove(k, p);
	}
}

/*
 * Returns how long the file was not used, by the monotonic clock. The age at which this daemon found it is known only
 * from the real-time clock, which may be or may have been wrong. So a file is never found too old to stay for another
 * hour, or for a quarter of `ttl_ns` if that is less.
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

/* Expires files, and retries removals that failed: up to FILES_A_TICK files, from where the last tick ended. */
static void age_files(struct skv_parking *k, uint64_t ttl)
{
	const struct skv_files *f = &k->files;

	for (size_t i = f->n < FILES_A_TICK ? f->n : FILES_A_TICK; i > 0; i--) {
		struct skv_parked *p;

		k->aged = k->aged < f->n ? k->aged : 0;
		p = f->all[k->aged++];
		skv_parking_remove_again(k, p);
		if (!ttl || p->busy || p->going || age_of(p, ttl) < ttl)
			continue;
		skv_count(k->server->counts, (uid_t)p->uid, SKV_COUNT_PARKED_EXPIRED, 1);
		skv_parking_remove(k, p);
	}
}

/* Ends exports whose reader reads nothing. */
static void end_exports(struct skv_parking *k)
{
	SKV_QUEUE_EACH(e, &k->in[SKV_PARKING_READER]) {
		struct skv_parking_job *j = SKV_QUEUED_OWNER(e, struct skv_parking_job, queued);

		if (skv_now_ns() > j->patient_until_ns)
			skv_op_cancel(k->server->loop, &j->op);
	}
}

void skv_parking_tick(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k)
		return;
	end_exports(k);
	k->settled = true; /* so that a lost event only delays what waits */
	age_files(k, s->config.sequence_ttl);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int start_workers(struct skv_parking *k)
{
	const struct skv_worker_config config = {
		.program = k->server->worker,
		.option = "disk",
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

int skv_parking_start(struct skv_server *s, const struct skv_parking_ops *ops)
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
	k->ops = ops;
	k->files = (struct skv_files)SKV_FILES_NULL;
	s->parking = k;
	r = skv_files_open(&k->files, path, skv_parking_odd, why, sizeof(why));
	if (r < 0) {
		skv_log(LOG_ERR, "parked-path %s: %s", path, why);
		return r;
	}
	r = start_workers(k);
	if (r < 0)
		return r;
	skv_parking_remove_known(k);
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
	skv_parking_forget_put_off(k);
	for (unsigned i = 0; i < SKV_PARKING_WORKERS; i++)
		skv_worker_free(k->workers[i]);
	skv_parking_remove_rest(k);
	skv_block_index_deinit(&k->prefixes);
	skv_files_close(&k->files);
	free(k);
	s->parking = NULL;
}
