/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/restore.c - resumes a parked sequence: from a file to memory.
 *
 * Its pages are taken as for a client, and may have to be waited for while others are parked. A damaged file stays,
 * and its name is taken, until the sequence is dropped: nothing is thrown away that might be of use. The damaged file
 * of a sealed prefix is removed, since its tokens can be computed again; an intact one stays, since a prefix never
 * changes.
 */
#include "daemon/parked/parking-priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/pins.h"
#include "daemon/requests/reply.h"
#include "daemon/sys/log.h"


static void turn(struct skv_parking_job *j);
static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer);

static const struct skv_parking_kind kind = {SKV_PARKING_IN, turn, moved};

int skv_parking_begin_resume(struct skv_parking *k, struct skv_parked *p, uint32_t device, struct skv_parking_ask *ask, char why[SKV_TEXT_MAX])
{
	struct skv_core *core = k->server->core;
	struct skv_parking_job *j = skv_parking_job_new(k, &kind, SKV_DISK_RESUME, p->uid, why);
	struct skv_model m;
	int r;

	if (!j)
		return -ENOMEM;
	skv_wire_to_model(&m, &p->model);
	m.device = device;
	j->m.model = p->model;
	strcpy(j->m.name, p->name);
	strcpy(j->m.file, p->file);
	j->m.max_tokens = p->max_tokens;
	j->m.commit = p->commit;
	j->m.n_pages = p->n_pages;
	j->m.page_bytes = skv_page_bytes(&m);
	j->m.max_bytes = p->bytes;
	j->m.model.device = device;
	if (device != SKV_DEVICE_HOST)
		j->segments = calloc(1, 1);
	r = device != SKV_DEVICE_HOST && !j->segments ? -ENOMEM : skv_parking_wait(j, ask);
	if (r == 0)
		r = skv_core_pin_list(core, (uid_t)p->uid, p->n_pages * sizeof(uint32_t), &j->pinned);
	if (r == 0 && (j->list = memfd_create("skv-list", MFD_CLOEXEC)) < 0)
		r = -errno;
	if (r == 0)
		r = skv_core_restore_new(core, p->uid, &m, skv_parked_is_prefix(p) ? "" : p->name, p->max_tokens, &j->seq);
	if (r)
		return skv_parking_not_begun(j, r, why);
	j->file = p;
	p->busy = true;
	skv_parking_enter(j, SKV_PARKING_TURNS);
	return 0;
}

static void resume_failed(struct skv_parking_job *j, int error, const char *why)
{
	struct skv_parking *k = j->parking;
	struct skv_server *s = k->server;
	struct skv_model m;
	char text[SKV_TEXT_MAX];
	int r = skv_core_restore_drop(s->core, j->seq);

	if (r < 0)
		skv_server_fail(s, "resuming", r);
	skv_wire_to_model(&m, &j->m.model);
	j->file->busy = false;
	if ((error == -EBADMSG || error == -ENOENT) && skv_parked_is_prefix(j->file)) {
		snprintf(text, sizeof(text), "a sealed prefix is lost, its file is %s: %s", error == -ENOENT ? "gone" : "damaged", why);
		skv_count(s->counts, (uid_t)j->m.uid, SKV_COUNT_DAMAGED, 1);
		skv_parking_remove(k, j->file);
	} else if (error == -ENOENT) { /* a mount may bring the file back, so the error is not -ENOENT */
		snprintf(text, sizeof(text),
		         "sequence '%s' is parked, but its file %s is gone: restore the file, mount its disk, or drop "
		         "the sequence",
		         j->m.name, j->m.file);
		error = -EBADMSG;
	} else if (error == -EBADMSG) {
		snprintf(text, sizeof(text), "sequence '%s' is lost, its file is damaged (drop it): %s", j->m.name, why);
		skv_count(s->counts, (uid_t)j->m.uid, SKV_COUNT_DAMAGED, !j->file->damaged);
		j->file->damaged = true;
	} else {
		snprintf(text, sizeof(text), "sequence '%s' is parked, but cannot be read: %s", j->m.name, why);
	}
	if (error != -ECANCELED)
		skv_log_peer(LOG_WARNING, "uid %u, model %s: %s", j->m.uid, j->m.model.name, text);
	k->ops->restored(s, j->m.uid, &m, j->m.name, error, text);
	skv_parking_end(j, error, text);
}

/* Appends the ids of pages to the list, and marks their segments. */
static int add_pages(struct skv_parking_job *j, const struct skv_wire_run *runs, uint32_t n, uint32_t pages_per_segment)
{
	uint32_t ids[4096], used = 0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < runs[i].count; k++) {
			const uint32_t id = runs[i].first + k, segment = id / pages_per_segment;

			if (j->segments && segment >= j->n_segments) {
				uint8_t *more = realloc(j->segments, segment + 1);

				if (!more)
					return -ENOMEM;
				memset(more + j->n_segments, 0, segment + 1 - j->n_segments);
				j->segments = more;
				j->n_segments = segment + 1;
			}
			if (j->segments)
				j->segments[segment] = 1;
			ids[used++] = id;
			if (used < 4096 && (i + 1 < n || k + 1 < runs[i].count))
				continue;
			if (pwrite(j->list, ids, used * sizeof(*ids), (off_t)(j->taken * sizeof(*ids))) != (ssize_t)(used * sizeof(*ids)))
				return -ENOSPC;
			j->taken += used;
			used = 0;
		}
	return 0;
}

int skv_parking_take_pages(struct skv_parking_job *j, char why[SKV_TEXT_MAX])
{
	struct skv_server *s = j->parking->server;
	struct skv_wire_run runs[512];
	struct skv_core_location p;
	uint32_t n = 0;
	int r = 0;

	/* an earlier job of the user waits for memory */
	if (j->taken < j->m.n_pages && skv_queue_has(&j->parking->in[SKV_PARKING_MEMORY], j->m.uid)) {
		skv_parking_enter(j, SKV_PARKING_MEMORY);
		return 0;
	}
	if (j->taken < j->m.n_pages)
		r = skv_core_restore_take(s->core, j->seq, (uint32_t)(j->m.n_pages - j->taken), runs, 512, &n);
	if (r < 0) {
		skv_server_fail(s, "pages for what is read", r);
		return 0;
	}
	skv_parking_enter(j, r == SKV_CORE_E_WAIT ? SKV_PARKING_MEMORY : SKV_PARKING_TURNS);
	if (r == SKV_CORE_E_WAIT)
		return 0;
	if (r)
		snprintf(why, SKV_TEXT_MAX, "%s", skv_core_why(s->core));
	r = -skv_core_errno((enum skv_core_error)r);
	if (r == 0)
		r = skv_core_seq_location(s->core, j->seq, &p) ? -ESTALE : add_pages(j, runs, n, p.pages_per_segment);
	if (r == 0 && j->taken == j->m.n_pages)
		r = skv_parking_move(j, j->m.n_pages * sizeof(uint32_t));
	if (r < 0 && !*why)
		snprintf(why, SKV_TEXT_MAX, "%s", strerror(-r));
	return r;
}

static void turn(struct skv_parking_job *j)
{
	char why[SKV_TEXT_MAX] = "";
	int r = skv_parking_take_pages(j, why);

	if (r < 0)
		resume_failed(j, r, why);
}

void skv_parking_give_up_prefixes(struct skv_server *s, bool (*is_awaited)(const struct skv_server *, uid_t uid, const char *name))
{
	struct skv_parking_job *j = s->parking ? s->parking->jobs : NULL;

	while (j)
		if (j->kind == &kind && skv_parked_is_prefix(j->file) && j->state == SKV_PARKING_MEMORY && !j->asked &&
		    !is_awaited(s, (uid_t)j->m.uid, j->m.name)) {
			resume_failed(j, -ECANCELED, "no request waits for it any more");
			j = s->parking->jobs; /* other jobs may have ended as well */
		} else {
			j = j->next;
		}
}

/* Everything was read: names the sequence, or seals the prefix. 0, or negative errno with a text. */
static int finish(struct skv_parking_job *j, const char **ret_why)
{
	struct skv_core *core = j->parking->server->core;
	const struct skv_parked *p = j->file;
	int r = skv_parked_is_prefix(p) ? skv_core_prefix_restored(core, j->seq, NULL, p->keys->key, p->n_keys)
	                                : skv_core_restore_done(core, j->seq, j->m.name);

	if (r == SKV_CORE_E_EXIST && skv_parked_is_prefix(p)) /* it was computed and sealed again meanwhile */
		return -ECANCELED;
	*ret_why = r < 0 ? strerror(-r) : skv_core_why(core);
	if (r < 0)
		skv_server_fail(j->parking->server, "resuming", r);
	return r < 0 ? r : r == SKV_CORE_E_CORRUPT ? -EBADMSG : -skv_core_errno((enum skv_core_error)r);
}

static void count(struct skv_parking_job *j)
{
	struct skv_counts *n = j->parking->server->counts;
	const bool is_prefix = skv_parked_is_prefix(j->file);
	const uid_t uid = (uid_t)j->m.uid;

	skv_count(n, uid, is_prefix ? SKV_COUNT_PREFIXES_RESTORED : SKV_COUNT_RESUMED, 1);
	skv_count(n, uid, SKV_COUNT_RESTORED_TOKENS, (uint64_t)j->file->n_keys * SKV_BLOCK_TOKENS);
	skv_count(n, uid, SKV_COUNT_BYTES_READ, j->file->bytes);
	skv_count_time(n, uid, is_prefix ? SKV_COUNT_RESTORE_NS : SKV_COUNT_RESUME_NS, skv_now_ns() - j->begun_ns);
}

static void moved(struct skv_parking_job *j, int error, const char *why, const void *answer)
{
	struct skv_parking *k = j->parking;
	struct skv_parked *p = j->file;
	struct skv_model m;

	(void)answer;
	if (error == 0)
		error = finish(j, &why);
	if (error) {
		resume_failed(j, error, why);
		return;
	}
	count(j);
	if (skv_parked_is_prefix(p)) {
		p->busy = false;
		skv_parking_used(p);
	} else {
		p->seq = j->seq;
		skv_parking_remove(k, p);
	}
	skv_wire_to_model(&m, &j->m.model);
	k->ops->restored(k->server, j->m.uid, &m, j->m.name, 0, "");
	skv_parking_end(j, 0, "");
}
