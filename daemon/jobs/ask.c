/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/jobs/ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/core.h"

struct skv_job_asked {
	struct skv_job_asked *next;
	struct skv_job_ask *ask;
};

int skv_job_wait(struct skv_job *j, struct skv_job_ask *ask)
{
	struct skv_job_asked *a = ask ? malloc(sizeof(*a)) : NULL;

	if (!ask)
		return 0;
	if (!a)
		return -ENOMEM;
	*a = (struct skv_job_asked){j->asked, ask};
	j->asked = a;
	ask->jobs++;
	return 0;
}

void skv_job_answer(struct skv_job_ask *ask, int error, const char *why, uint64_t bytes)
{
	if (error && !ask->error) {
		ask->error = error;
		snprintf(ask->why, sizeof(ask->why), "%s", why);
	}
	if (error == 0) {
		ask->done++;
		ask->bytes += bytes;
	}
	if (--ask->jobs == 0)
		ask->tell(ask);
}

void skv_job_answer_all(struct skv_job *j, int error, const char *why, uint64_t bytes)
{
	while (j->asked) {
		struct skv_job_asked *a = j->asked;

		j->asked = a->next;
		skv_job_answer(a->ask, error, why, bytes);
		free(a);
	}
}

void skv_job_end(struct skv_job *j, int error, const char *why, uint64_t bytes)
{
	skv_job_answer_all(j, error, why, bytes);
	skv_job_free(j);
}

int skv_job_not_begun(struct skv_job *j, int r, char why[SKV_TEXT_MAX])
{
	snprintf(why, SKV_TEXT_MAX, "%s", r < 0 ? strerror(-r) : skv_core_why(j->jobs->config.core));
	if (j->asked)
		j->asked->ask->jobs--;
	free(j->asked);
	skv_job_free(j);
	return r < 0 ? r : -skv_core_errno((enum skv_core_error)r);
}
