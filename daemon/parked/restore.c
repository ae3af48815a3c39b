/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/restore.c - resumes a parked sequence: from a file to memory.
 *
 * Pages for the sequence are taken as for a client; the job may have to wait until other sequences are parked. A file
 * that turns out to be damaged stays until a client drops the sequence, and until then no other sequence can have its
 * name: the file may still be of use. The damaged file of a sealed prefix is removed, since the prefix can be computed
 * again. After a successful resume the file of a sequence is removed; that of a prefix stays, since it never changes.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/prefix.h"
#include "daemon/jobs/memory.h"
#include "daemon/requests/reply.h"
#include "daemon/sys/log.h"

struct resume {
	struct skv_job job;
	struct skv_job_memory memory;
	struct skv_parking *parking;
	struct skv_parked *file; /* list entry of the file, marked as busy; NULL: the job is not begun yet */
	uint64_t begun_ns;
};

static struct resume *resume_of(struct skv_job *j)
{
	return SKV_JOB_OWNER(j, struct resume, job);
}

static void free_resume(struct skv_job *j)
{
	skv_job_memory_free(j, &resume_of(j)->memory);
	free(resume_of(j));
}

static void turn(struct skv_job *j);
static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer);

static const struct skv_job_kind kind = {SKV_JOBS_READ, turn, moved, free_resume};

int skv_parking_begin_resume(struct skv_parking *k, struct skv_parked *p, uint32_t device, struct skv_job_ask *ask,
                             char why[SKV_TEXT_MAX])
{
	struct resume *x = calloc(1, sizeof(*x));
	struct skv_disk_job *m;
	struct skv_model model;
	int r;

	if (!x) {
		snprintf(why, SKV_TEXT_MAX, "the daemon is out of memory");
		return -ENOMEM;
	}
	*x = (struct resume){.memory = SKV_JOB_MEMORY_NULL, .parking = k, .begun_ns = skv_now_ns()};
	skv_job_begin(&x->job, k->jobs, &kind, SKV_DISK_RESUME, p->uid);
	skv_wire_to_model(&model, &p->model);
	model.device = device;
	m = &x->job.m;
	m->model = p->model;
	m->model.device = device;
	strcpy(m->name, p->name);
	strcpy(m->file, p->file);
	m->max_tokens = p->max_tokens;
	m->commit = p->commit;
	m->n_pages = p->n_pages;
	m->page_bytes = skv_page_bytes(&model);
	m->max_bytes = p->bytes;
	r = skv_job_wait(&x->job, ask);
	if (r == 0)
		r = skv_job_memory_prepare(&x->job, &x->memory);
	if (r == 0)
		r = skv_core_restore_new(k->server->core, p->uid, &model, skv_parked_is_prefix(p) ? "" : p->name,
		                         p->max_tokens, &x->memory.seq);
	if (r)
		return skv_job_not_begun(&x->job, r, why);
	x->file = p;
	skv_files_set_busy(p, true);
	skv_job_enter(&x->job, SKV_JOB_TURNS);
	return 0;
}

static void resume_failed(struct resume *x, int error, const char *why)
{
	const struct skv_disk_job *m = &x->job.m;
	struct skv_parking *k = x->parking;
	struct skv_server *s = k->server;
	const bool no_room = error == -ENOSPC || error == -EDQUOT; /* in memory: nothing is wrong with the file */
	struct skv_model model;
	char text[SKV_TEXT_MAX];
	int r = skv_core_restore_drop(s->core, x->memory.seq);

	if (r < 0)
		skv_server_fail(s, "resuming a sequence", r);
	skv_wire_to_model(&model, &m->model);
	skv_files_set_busy(x->file, false);
	if ((error == -EBADMSG || error == -ENOENT) && skv_parked_is_prefix(x->file)) {
		snprintf(text, sizeof(text), "a sealed prefix is lost, its file is %s: %s",
		         error == -ENOENT ? "gone" : "damaged", why);
		skv_count(s->counts, (uid_t)m->uid, SKV_COUNT_DAMAGED, 1);
		skv_parking_remove(k, x->file);
	} else if (error == -ENOENT) { /* the disk may just not be mounted: a client must not see "no such sequence" */
		snprintf(text, sizeof(text),
		         "sequence '%s' is parked, but its file %s is gone: restore the file, mount its disk, or drop "
		         "the sequence",
		         m->name, m->file);
		error = -EBADMSG;
	} else if (error == -EBADMSG) {
		snprintf(text, sizeof(text), "sequence '%s' is lost, its file is damaged (drop it): %s", m->name, why);
		skv_count(s->counts, (uid_t)m->uid, SKV_COUNT_DAMAGED, !x->file->damaged);
		x->file->damaged = true;
	} else {
		snprintf(text, sizeof(text), "sequence '%s' is parked, but cannot be read: %s", m->name, why);
	}
	if (error != -ECANCELED && !no_room)
		skv_log_peer(LOG_WARNING, "uid %u, model %s: %s", m->uid, m->model.name, text);
	if (error != -ECANCELED && error != -EBUSY && !no_room)
		skv_count(s->counts, (uid_t)m->uid, SKV_COUNT_PARKING_FAILED, 1);
	k->ops->restored(s, m->uid, &model, m->name, error, text);
	skv_job_end(&x->job, error, text, 0);
}

static void turn(struct skv_job *j)
{
	struct resume *x = resume_of(j);
	char why[SKV_TEXT_MAX] = "";
	int r = skv_job_memory_take(j, &x->memory, x->parking->files.folder, why);

	if (r < 0)
		resume_failed(x, r, why);
}

void skv_parking_give_up_prefixes(struct skv_server *s,
                                  bool (*is_awaited)(const struct skv_server *, uid_t uid, const char *name))
{
	struct skv_job *j = s->parking ? s->jobs->all : NULL;

	while (j)
		if (j->kind == &kind && j->state == SKV_JOB_MEMORY && skv_parked_is_prefix(resume_of(j)->file) &&
		    !j->asked && !is_awaited(s, (uid_t)j->m.uid, j->m.name)) {
			resume_failed(resume_of(j), -ECANCELED, "no request waits for the prefix any more");
			j = s->jobs->all; /* from the start, since other jobs may have ended as well */
		} else {
			j = j->next;
		}
}

/* Gives the sequence that was read its name, or seals the prefix. Returns 0, or a negative errno with a text. */
static int finish(struct resume *x, const char **ret_why)
{
	struct skv_core *core = x->parking->server->core;
	const struct skv_parked *p = x->file;
	int r = skv_parked_is_prefix(p) ? skv_core_prefix_restored(core, x->memory.seq, NULL, p->keys->key, p->n_keys)
	                                : skv_core_restore_done(core, x->memory.seq, x->job.m.name);

	if (r == SKV_CORE_E_EXIST && skv_parked_is_prefix(p)) /* a client has sealed the same prefix meanwhile */
		return -ECANCELED;
	*ret_why = r < 0 ? strerror(-r) : skv_core_why(core);
	if (r < 0)
		skv_server_fail(x->parking->server, "resuming a sequence", r);
	return r < 0 ? r : r == SKV_CORE_E_CORRUPT ? -EBADMSG : -skv_core_errno((enum skv_core_error)r);
}

static void count(const struct resume *x)
{
	struct skv_counts *n = x->parking->server->counts;
	const bool is_prefix = skv_parked_is_prefix(x->file);
	const uid_t uid = (uid_t)x->job.m.uid;

	skv_count(n, uid, is_prefix ? SKV_COUNT_PREFIXES_RESTORED : SKV_COUNT_RESUMED, 1);
	skv_count(n, uid, SKV_COUNT_RESTORED_TOKENS, (uint64_t)x->file->n_keys * SKV_BLOCK_TOKENS);
	skv_count(n, uid, SKV_COUNT_BYTES_READ, x->file->bytes);
	skv_count_time(n, uid, is_prefix ? SKV_COUNT_RESTORE_NS : SKV_COUNT_RESUME_NS, skv_now_ns() - x->begun_ns);
}

static void moved(struct skv_job *j, int error, const char *why, const struct skv_disk_answer *answer)
{
	struct resume *x = resume_of(j);
	struct skv_parking *k = x->parking;
	const uint64_t bytes = x->file->bytes;
	struct skv_model model;

	(void)answer;
	if (error == 0)
		error = finish(x, &why);
	if (error) {
		resume_failed(x, error, why);
		return;
	}
	count(x);
	if (skv_parked_is_prefix(x->file)) {
		skv_files_set_busy(x->file, false);
		skv_parking_used(x->file);
	} else {
		x->file->seq = x->memory.seq;
		skv_parking_remove(k, x->file);
	}
	skv_wire_to_model(&model, &j->m.model);
	k->ops->restored(k->server, j->m.uid, &model, j->m.name, 0, "");
	skv_job_end(j, 0, "", bytes);
}
