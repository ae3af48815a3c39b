/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parking-request.c - requests that park, resume, export, import, attach or drop parked sequences.
 *
 * A user may name its own sequences in a request; an operator may name those of any user. The reply is sent when all
 * jobs of the request have ended.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/requests.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/report.h"
#include "daemon/server/device.h"
#include "daemon/sys/log.h"

/* ---- answers --------------------------------------------------------------------------------- */

struct request {
	struct skv_job_ask ask;
	struct skv_deferred deferred;
	char name[SKV_NAME_MAX];
	uint64_t begun_ns;
};

static void tell(struct skv_job_ask *ask)
{
	struct request *r = SKV_JOB_OWNER(ask, struct request, ask);
	const struct skv_msg_header *h = &r->deferred.header;
	struct skv_conn *conn = r->deferred.conn;

	if (ask->error)
		skv_deferred_error(&r->deferred, -ask->error, "%s", ask->why);
	else
		skv_deferred_end(&r->deferred);
	if (conn && !ask->error)
		skv_report_send(conn, h->type | SKV_REPLY, h->serial,
		                json_pack("{s:s, s:I, s:I, s:f}", "name", r->name, "sequences", (json_int_t)ask->done,
		                          "bytes", (json_int_t)ask->bytes, "seconds",
		                          (double)(skv_now_ns() - r->begun_ns) / 1e9));
	free(r);
}

/*
 * Creates a request, which counts as one of its own jobs until asked() is called for it. NULL: an error was sent.
 */
static struct skv_job_ask *ask_new(struct skv_conn *conn, const struct skv_msg_header *h, const char *name)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory");
		return NULL;
	}
	r->ask = (struct skv_job_ask){.tell = tell, .jobs = 1};
	r->begun_ns = skv_now_ns();
	snprintf(r->name, sizeof(r->name), "%s", name);
	skv_deferred_begin(&r->deferred, conn, h, true);
	return &r->ask;
}

/* Called when all jobs of the request are begun; `error` and `why` say why no more could be. */
static void asked(struct skv_job_ask *ask, int error, const char *why)
{
	if (error == 0)
		ask->done--; /* the request counted as a job, but parks or resumes no sequence itself */
	skv_job_answer(ask, error, why, 0);
}

int skv_parking_unread(struct skv_server *s, uid_t uid, const char *name, char why[SKV_TEXT_MAX])
{
	const int r = s->parking ? skv_files_unread(&s->parking->files, (uint32_t)uid, name) : 0;

	if (r < 0)
		snprintf(why, SKV_TEXT_MAX,
		         "sequence '%s' may be parked, but its file could not be read: %s; a reload tries again",
		         name, strerror(-r));
	return r;
}

/* Returns the error, with a text, for a sequence that is neither in memory nor in the list of files. */
static int not_there(struct skv_parking *k, const struct skv_msg_seq_of *m, const char *text, char why[SKV_TEXT_MAX])
{
	int r = skv_parking_unread(k->server, (uid_t)m->uid, m->name, why);

	if (r < 0)
		return r;
	snprintf(why, SKV_TEXT_MAX, text, m->name);
	return -ENOENT;
}

/* ---- by name --------------------------------------------------------------------------------- */

static void park(struct skv_parking *k, struct skv_conn *conn, const struct skv_msg_header *h,
                 const struct skv_msg_seq_of *m)
{
	struct skv_core *core = k->server->core;
	struct skv_job *j = skv_parking_find_job(k, SKV_DISK_PARK, m->uid, m->model, m->name, NULL);
	struct skv_job_ask *ask;
	char why[SKV_TEXT_MAX] = "";
	uint32_t row = UINT32_MAX, held = 0, seq;
	int r = 0;

	if (!j && !skv_core_may_park(core, m->uid)) {
		skv_parking_put_off(k, conn, h, m, sizeof(*m), skv_parking_request);
		return;
	}
	ask = ask_new(conn, h, m->name);
	if (!ask)
		return;
	for (; j; j = skv_parking_find_job(k, SKV_DISK_PARK, m->uid, m->model, m->name, j))
		r = skv_job_wait(j, ask) < 0 ? -ENOMEM : r;
	if (r < 0)
		snprintf(why, sizeof(why), "the daemon is out of memory");
	while (r == 0 && skv_core_park_name(core, m->uid, m->model, m->name, &row, &seq, &held)) {
		r = skv_parking_begin_park(k, seq, ask, why);
		if (r < 0)
			skv_core_park_failed(core, seq, skv_now_ns());
	}
	if (r == 0 && held) {
		r = -EBUSY;
		snprintf(why, sizeof(why), "sequence '%s' is held by a client", m->name);
	} else if (r == 0 && ask->jobs == 1 && ask->done == 0) {
		if (skv_files_next(&k->files, NULL, m->uid, m->model, m->name)) {
			r = -EALREADY;
			snprintf(why, sizeof(why), "sequence '%s' is parked already", m->name);
		} else {
			r = not_there(k, m, "there is no sequence '%s' of that user and model", why);
		}
	}
	asked(ask, r, why);
}

static void resume(struct skv_parking *k, struct skv_conn *conn, const struct skv_msg_header *h,
                   const struct skv_msg_seq_of *m)
{
	struct skv_job_ask *ask = ask_new(conn, h, m->name);
	char why[SKV_TEXT_MAX] = "";
	struct skv_parked *p = NULL;
	int r = 0;

	if (!ask)
		return;
	for (struct skv_job *j = NULL; (j = skv_parking_find_job(k, SKV_DISK_RESUME, m->uid, m->model, m->name, j));)
		r = skv_job_wait(j, ask) < 0 ? -ENOMEM : r;
	if (r < 0)
		snprintf(why, sizeof(why), "the daemon is out of memory");
	while (r == 0 && (p = skv_files_next(&k->files, p, m->uid, m->model, m->name))) {
		if (p->busy || p->going)
			continue;
		r = -skv_device_need(k->server, p->model.device, why);
		if (r == 0)
			r = skv_parking_begin_resume(k, p, p->model.device, ask, why);
	}
	if (r == 0 && ask->jobs == 1)
		r = not_there(k, m, "no sequence '%s' of that user and model is parked", why);
	asked(ask, r, why);
}

/* Begins to export a parked sequence into a pipe, and sends the pipe's read end to the client. */
static void export_one(struct skv_parking *k, struct skv_conn *conn, const struct skv_msg_header *h,
                       const struct skv_msg_seq_of *m)
{
	struct skv_msg_file ok = {0};
	struct skv_parked *p, *other;
	char why[SKV_TEXT_MAX];
	int ends[2], r;

	if (skv_prefix_name_valid(m->name)) {
		skv_conn_error(conn, h->serial, EOPNOTSUPP,
		               "a sealed prefix cannot be exported: only daemons with the same secret can use it, and "
		               "they share it in a prefix store");
		return;
	}
	p = skv_files_next(&k->files, NULL, m->uid, m->model, m->name);
	other = p ? skv_files_next(&k->files, p, m->uid, m->model, m->name) : NULL;
	if (!p || p->going) {
		r = not_there(k, m, "no sequence '%s' of that user and model is parked: park it first", why);
		skv_conn_error(conn, h->serial, -r, "%s", why);
		return;
	}
	if (other) {
		skv_conn_error(conn, h->serial, EOPNOTSUPP, "sequence '%s' has several ranks, each in a file of its "
		                                            "own, and cannot be exported",
		               m->name);
		return;
	}
	if (pipe2(ends, O_CLOEXEC) < 0) {
		skv_conn_error(conn, h->serial, errno, "a pipe for the export cannot be created: %s", strerror(errno));
		return;
	}
	ok.bytes = p->bytes;
	r = skv_parking_begin_export(k, p, ends[1], why);
	if (r < 0)
		skv_conn_error(conn, h->serial, -r, "%s", why);
	else
		skv_conn_send(conn, h->type | SKV_REPLY, h->serial, &ok, sizeof(ok), NULL, 0, &ends[0], 1);
	skv_close_fd(ends[0]);
}

static void import(struct skv_parking *k, struct skv_conn *conn, const struct skv_msg_header *h,
                   const struct skv_msg_user *m, int *fds)
{
	struct skv_job_ask *ask;
	char why[SKV_TEXT_MAX] = "";
	int r;

	if (!skv_conn_is_operator(conn)) {
		skv_conn_error(conn, h->serial, EPERM,
		               "only an operator may import sequences, on the operators' socket");
		return;
	}
	ask = ask_new(conn, h, "");
	if (!ask)
		return;
	r = skv_parking_begin_import(k, m->uid, fds[0], ask, why);
	fds[0] = -1;
	asked(ask, r, why);
}

void skv_parking_request(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                         int *fds)
{
	const struct skv_msg_seq_of *m = body;
	struct skv_parking *k = s->parking;

	if (!k || k->jobs->closed) {
		skv_conn_error(conn, h->serial, EOPNOTSUPP, "this daemon parks no sequences: set parked-path");
		return;
	}
	if (h->type == SKV_MSG_SEQ_IMPORT) {
		import(k, conn, h, body, fds);
		return;
	}
	if (m->uid != skv_conn_peer(conn)->uid && !skv_conn_is_operator(conn))
		skv_conn_error(conn, h->serial, EPERM,
		               "only an operator may park, resume or export sequences of another user (uid %u), on the "
		               "operators' socket",
		               m->uid);
	else if (h->type == SKV_MSG_SEQ_PARK)
		park(k, conn, h, m);
	else if (h->type == SKV_MSG_SEQ_RESUME)
		resume(k, conn, h, m);
	else
		export_one(k, conn, h, m);
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct skv_parked *find(struct skv_server *s, uid_t uid, const struct skv_model *m, const char *name)
{
	struct skv_parked *p = s->parking ? skv_files_find(&s->parking->files, (uint32_t)uid, m->name, m->rank,
	                                                   m->n_ranks, name)
	                                  : NULL;

	return p && !p->going ? p : NULL;
}

bool skv_parking_has(struct skv_server *s, uid_t uid, const struct skv_model *m, const char *name)
{
	return find(s, uid, m, name) != NULL;
}

static bool same_shape(const struct skv_wire_model *a, const struct skv_model *b)
{
	return a->n_layers == b->n_layers && a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
	       a->head_dim == b->head_dim && a->kv_dtype == b->kv_dtype;
}

int skv_parking_attach(struct skv_server *s, uid_t uid, const struct skv_model *m, const char *name,
                       char why[SKV_TEXT_MAX])
{
	struct skv_parked *p = find(s, uid, m, name);
	int r;

	if (!p)
		return skv_parking_unread(s, uid, name, why);
	if (p->busy)
		return 1;
	if (!same_shape(&p->model, m)) {
		snprintf(why, SKV_TEXT_MAX, "sequence '%s' was made with another shape of model '%s'", name, m->name);
		return -EINVAL;
	}
	r = skv_parking_begin_resume(s->parking, p, m->device, NULL, why);
	return r < 0 ? r : 1;
}

void skv_parking_attached(struct skv_server *s, uid_t uid, bool read)
{
	if (s->parking)
		skv_count(s->counts, uid, read ? SKV_COUNT_ATTACHED_AFTER_READING : SKV_COUNT_ATTACHED_IN_MEMORY, 1);
}

/* ---- dropping sequences ------------------------------------------------------------------------ */

/*
 * Returns whether a file of this name, of the sequence `seq` or of any (0), is being removed or written. A job that
 * writes such a file is canceled.
 */
static bool has_file(struct skv_parking *k, uid_t uid, const char *model, const char *name, uint32_t seq)
{
	struct skv_job *j = NULL;
	const struct skv_parked *p = NULL;

	while ((p = skv_files_next(&k->files, p, (uint32_t)uid, model, name)))
		if (p->leaving && (!seq || p->seq == seq))
			return true;
	while ((j = skv_parking_find_job(k, SKV_DISK_PARK, (uint32_t)uid, model, name, j)))
		if (skv_parking_cancel_park(j, seq)) /* this may have freed the job */
			return true;
	return false;
}

/* Returns has_file() for the sequence, or the name, that a SEQ_DROP or SEQ_DROP_NAME request drops. */
static bool may_come_back(struct skv_server *s, const struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body)
{
	const struct skv_msg_seq *seq = body;
	const struct skv_msg_seq_of *of = body;
	const struct skv_model *model;
	const char *name;

	if (h->type != SKV_MSG_SEQ_DROP)
		return has_file(s->parking, (uid_t)of->uid, of->model, of->name, 0);
	return skv_core_seq_held_name(s->core, skv_conn_client(conn), seq->session, seq->seq, &model, &name) &&
	       has_file(s->parking, skv_conn_peer(conn)->uid, model->name, name, seq->seq);
}

bool skv_parking_puts_off(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                          skv_parking_again again)
{
	struct skv_parking *k = s->parking;

	if (!k || k->jobs->closed || !may_come_back(s, conn, h, body))
		return false;
	skv_parking_put_off(k, conn, h, body,
	                    h->type == SKV_MSG_SEQ_DROP ? sizeof(struct skv_msg_seq) : sizeof(struct skv_msg_seq_of),
	                    again);
	return true;
}

bool skv_parking_is_busy(struct skv_server *s, uid_t uid, const char *model, const char *name)
{
	const struct skv_parked *p = NULL;

	while (s->parking && (p = skv_files_next(&s->parking->files, p, (uint32_t)uid, model, name)))
		if (p->busy)
			return true;
	return false;
}

unsigned skv_parking_drop(struct skv_server *s, uid_t uid, const char *model, const char *name)
{
	struct skv_parked *p = NULL;
	unsigned n = 0;

	while (s->parking && (p = skv_files_next(&s->parking->files, p, (uint32_t)uid, model, name))) {
		if (!p->leaving) /* otherwise a removal of the file is running already */
			skv_parking_remove(s->parking, p);
		n++;
	}
	return n;
}

bool skv_parking_undo_drop(struct skv_server *s, uid_t uid, const char *model, const char *name)
{
	struct skv_parked *p = NULL;
	bool stays = false;

	while (s->parking && (p = skv_files_next(&s->parking->files, p, (uint32_t)uid, model, name))) {
		stays |= p->going && !p->leaving;
		/* a file that is only a copy of a sequence that was in memory (p->seq) must still be removed */
		skv_files_set_going(p, p->leaving || (p->going && p->seq));
	}
	return stays;
}
