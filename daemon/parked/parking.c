/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parking.c - parks sequences in files and resumes them. Parking or resuming a sequence takes one job,
 * whose bytes a disk worker process moves (disk/job.h).
 *
 *   park     list the sequence's page table entries (core) → worker writes the file → free the sequence's memory (core)
 *   resume   create a sequence without a name, and take pages for it (core) → worker reads the file → give the sequence
 *            its name (core) → remove the file
 *
 * At any instant a sequence is complete in memory, in a file, or in both. If a sequence is in both, its memory is
 * authoritative: a daemon that starts removes the file. Workers get their jobs through the io_uring of the daemon's
 * loop, so a file is removed only after the state that has its sequence in memory is committed.
 *
 * A client can attach a sequence that is being written to a file; the file is then removed. Only a request to drop the
 * sequence waits until the file is removed and no worker can write another one (parking-request.c): if the daemon ended
 * before, the next daemon would take the file for a parked sequence.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "daemon/core/operations/parking.h"
#include "daemon/requests/lease.h"
#include "daemon/sys/log.h"

#define HOUR_NS UINT64_C(3600000000000)
#define FILES_A_TICK 4096u

/* ---- jobs ------------------------------------------------------------------------------------ */

struct skv_job *skv_parking_find_job(const struct skv_parking *k, enum skv_disk_job_kind kind, uint32_t uid,
                                     const char *model, const char *name, const struct skv_job *after)
{
	struct skv_job *j = skv_jobs_next(k->jobs, after, kind, uid);

	while (j && (strcmp(j->m.model.name, model) || strcmp(j->m.name, name)))
		j = skv_jobs_next(k->jobs, j, kind, uid);
	return j;
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

	return k && !k->jobs->closed && (k->jobs->settled || k->trying.first || skv_core_has_park(s->core));
}

/* Carries out one request that was put off, and begins to park one sequence, however many are due. */
void skv_parking_work(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k || k->jobs->closed)
		return;
	if (skv_jobs_settle(k->jobs))
		skv_queue_move(&k->trying, &k->put_off);
	skv_parking_try_again(k);
	skv_loop_did(s->loop, "parking: requests");
	begin_next_park(k);
	skv_loop_did(s->loop, "parking: beginning");
}

/* ---- once a second --------------------------------------------------------------------------- */

/*
 * Returns how long the file was not used, by the monotonic clock. When this function first sees a file that an earlier
 * daemon wrote, its age is known only from the real-time clock, which may be wrong, or may have been wrong when the
 * file was written. So such a file stays for at least one more hour, or a quarter of `ttl_ns` if that is less.
 */
static uint64_t age_of(struct skv_parked *p, uint64_t ttl_ns)
{
	const uint64_t now_ns = skv_now_ns(), real_ns = skv_real_ns();
	const uint64_t grace_ns = ttl_ns / 4 < HOUR_NS ? ttl_ns / 4 : HOUR_NS;

	if (!p->since_ns) {
		p->since_ns = now_ns;
		p->age_ns = real_ns > p->used_ns ? real_ns - p->used_ns : 0;
		if (p->age_ns > ttl_ns - grace_ns)
			p->age_ns = ttl_ns - grace_ns;
	}
	return p->age_ns + (now_ns - p->since_ns);
}

/*
 * Begins to remove files that were not used for `ttl`, and files whose removal has failed. Each tick checks up to
 * FILES_A_TICK files, beginning after the file that the tick before ended with.
 */
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

void skv_parking_tick(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k)
		return;
	skv_parking_end_exports(k);
	k->jobs->settled = true; /* jobs and requests that wait for others are tried each second, also without event */
	skv_lease_retry(s); /* a sequence that was to be parked for a lease may have been attached instead */
	age_files(k, s->config.sequence_ttl);
}

/* ---- life ------------------------------------------------------------------------------------ */

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
	k->jobs = s->jobs;
	k->ops = ops;
	k->files = (struct skv_files)SKV_FILES_NULL;
	s->parking = k;
	r = skv_files_open(&k->files, path, skv_parking_odd, why, sizeof(why));
	if (r < 0) {
		skv_log(LOG_ERR, "parked-path %s cannot be used: %s", path, why);
		return r;
	}
	skv_parking_remove_known(k);
	skv_core_set_parking(s->core, true);
	if (k->files.n)
		skv_log(LOG_NOTICE, "%zu sequences and sealed prefixes are parked in %s", k->files.n, path);
	return 0;
}

void skv_parking_reload(struct skv_server *s)
{
	if (s->parking)
		s->parking->look_again = s->parking->files.n_unread > 0;
}

void skv_parking_free(struct skv_server *s)
{
	struct skv_parking *k = s->parking;

	if (!k)
		return;
	skv_parking_forget_put_off(k);
	skv_parking_remove_rest(k);
	skv_block_index_deinit(&k->prefixes);
	skv_files_close(&k->files);
	free(k);
	s->parking = NULL;
}
