/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/ask.h - requests that are answered when jobs of disk workers have ended.
 *
 * A request may wait for several jobs, and several requests for the same job. A connection has at most one such
 * request: its next request is not received until the reply is sent.
 */
#ifndef SKV_JOBS_ASK_H
#define SKV_JOBS_ASK_H

#include "daemon/jobs/jobs.h"

/* A request that waits for jobs; embedded in the request's struct. */
struct skv_job_ask {
	void (*tell)(struct skv_job_ask *); /* answers the request and frees its struct */
	unsigned jobs; /* number of jobs to wait for; the request counts as one of them until all of them are begun */
	unsigned done; /* number of jobs that have succeeded */
	uint64_t bytes; /* bytes of the files of the jobs that have succeeded */
	int error; /* negative errno of the first job that failed, or 0 */
	char why[SKV_TEXT_MAX];
};

/* Makes the request wait for the job; `ask` may be NULL. Returns 0 or -ENOMEM. */
int skv_job_wait(struct skv_job *, struct skv_job_ask *);
/* Tells the request that one of its jobs has ended, with a file of `bytes`. The last job's call answers the request. */
void skv_job_answer(struct skv_job_ask *, int error, const char *why, uint64_t bytes);

/* Calls skv_job_answer() for all requests that wait for the job. The job itself goes on. */
void skv_job_answer_all(struct skv_job *, int error, const char *why, uint64_t bytes);
/* Calls skv_job_answer() for all requests that wait for the job, which has ended, and frees the job. */
void skv_job_end(struct skv_job *, int error, const char *why, uint64_t bytes);
/*
 * Frees a job that could not be begun, because of the error r (a negative errno, or an error of the core), without
 * answering its request. Returns the error as a negative errno, with a text.
 */
int skv_job_not_begun(struct skv_job *, int r, char why[SKV_TEXT_MAX]);

#endif
