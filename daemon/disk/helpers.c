/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/disk/helpers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HELPERS 4 /* more threads would not help: all share the memory bandwidth */

struct skv_disk_helpers {
	pthread_mutex_t lock;
	pthread_cond_t given, done;
	struct skv_disk_task *first, **end; /* list of the tasks that no thread has started yet */
	bool ending;
	int n;
	pthread_t threads[MAX_HELPERS];
};

static void *help(void *helpers)
{
	struct skv_disk_helpers *h = helpers;

	pthread_mutex_lock(&h->lock);
	for (;;) {
		struct skv_disk_task *task = h->first;

		if (!task && h->ending)
			break;
		if (!task) {
			pthread_cond_wait(&h->given, &h->lock);
			continue;
		}
		h->first = task->next;
		if (!h->first)
			h->end = &h->first;
		pthread_mutex_unlock(&h->lock);
		task->run(task);
		pthread_mutex_lock(&h->lock);
		task->done = true;
		pthread_cond_signal(&h->done);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

static int processors(void)
{
	cpu_set_t cpus;

	/* it fails if the system has more processors than a cpu_set_t can hold; then one thread is used */
	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

int skv_disk_helpers_new(struct skv_disk_work *work, struct skv_disk_helpers **ret)
{
	struct skv_disk_helpers *h = calloc(1, sizeof(*h));
	const int n = processors();
	int e = 0;

	if (!h)
		return -ENOMEM;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->given, NULL);
	pthread_cond_init(&h->done, NULL);
	h->end = &h->first;
	while (h->n < n && h->n < MAX_HELPERS && (e = pthread_create(&h->threads[h->n], NULL, help, h)) == 0)
		h->n++;
	if (h->n == 0) {
		skv_disk_helpers_free(h);
		return skv_disk_refuse(work, -e, "the disk worker has no thread to check pages with: %s", strerror(e));
	}
	*ret = h;
	return 0;
}

void skv_disk_helpers_free(struct skv_disk_helpers *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->ending = true;
	pthread_cond_broadcast(&h->given);
	pthread_mutex_unlock(&h->lock);
	while (h->n > 0)
		pthread_join(h->threads[--h->n], NULL);
	pthread_cond_destroy(&h->given);
	pthread_cond_destroy(&h->done);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

void skv_disk_helpers_give(struct skv_disk_helpers *h, struct skv_disk_task *task)
{
	task->next = NULL;
	task->done = false;
	pthread_mutex_lock(&h->lock);
	*h->end = task;
	h->end = &task->next;
	pthread_cond_signal(&h->given);
	pthread_mutex_unlock(&h->lock);
}

void skv_disk_helpers_wait(struct skv_disk_helpers *h, const struct skv_disk_task *task)
{
	pthread_mutex_lock(&h->lock);
	while (!task->done)
		pthread_cond_wait(&h->done, &h->lock);
	pthread_mutex_unlock(&h->lock);
}
