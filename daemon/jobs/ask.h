/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/ask.h - requests that are answered when jobs have ended: one or several, of which others may wait, too.
 *
 * A connection has at most one such request: no further request is received until the reply.
 */
#ifndef SKV_JOBS_ASK_H
#define SKV_JOBS_ASK_H

#include "daemon/jobs/jobs.h"

/* Embedded in the request's struct. */
struct skv_job_ask {
	void (*tell)(struct skv_job_ask *); /* answers the request and frees its struct */
	unsigned jobs; /* under way; the request itself counts as one until all others are begun */
	unsigned done;
	uint64_t bytes; /* of the files of those that are done */
	int error; /* of the first job that failed: negative errno */
	char why[SKV_TEXT_MAX];
};

/* The request waits for the job. NULL: no request does. -ENOMEM. */
int skv_job_wait(struct skv_job *, struct skv_job_ask *);
/* One of the request's jobs has ended, with a file of so many bytes. The last call answers the request. */
void skv_job_answer(struct skv_job_ask *, int error, const char *why, uint64_t bytes);

/* Answers the requests that wait for the job, which goes on. And: ends the job as well, and frees it. */
void skv_job_answer_all(struct skv_job *, int error, const char *why, uint64_t bytes);
void skv_job_end(struct skv_job *, int error, const char *why, uint64_t bytes);
/*
 * The job could not be begun (r: negative errno, or an error of the core): frees it without answering its request.
 * Returns the negative errno, with a text.
 */
int skv_job_not_begun(struct skv_job *, int r, char why[SKV_TEXT_MAX]);

#endif
