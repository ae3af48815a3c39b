/* SPDX-License-Identifier: Apache-2.0 */
/* Parked sequences whose pages are in segments of a device: those of the fake driver, which are memfds. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/jobs/memory.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/disk-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/suite.h"

#define SEGMENT ((uint64_t)2 << 20)

static char *steering;

static void begin(void)
{
	steering = fx_folder();
	ck_assert_int_eq(setenv("FAKE_CUDA_DIR", steering, 1), 0);
	ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fix_built("tests/fake-cuda"), 1), 0);
	disk_begin();
}

static void end(void)
{
	disk_end();
	fx_remove(steering);
}

/* A pool of a device: enough segments for the case's pages, in any order, and some without any of them. */
struct pool {
	uint32_t n, *numbers;
	int *fds;
};

static void pool_make(struct pool *p, struct parked_case *c, uint32_t more)
{
	struct skv_disk_job *job = &c->job;

	job->model.device = SKV_DEVICE_CUDA(rnd_below(2));
	job->segment_bytes = SEGMENT;
	job->pages_per_segment = (uint32_t)(SEGMENT / job->page_bytes - (SEGMENT % job->page_bytes != 0));
	p->n = (uint32_t)(job->max_pages / job->pages_per_segment + 1) + more;
	job->max_pages = p->n * (uint64_t)job->pages_per_segment; /* the case has memory for the pages that it uses */
	job->n_fds = SKV_DISK_FD_PAGES + p->n;
	p->numbers = malloc(p->n * sizeof(*p->numbers));
	p->fds = malloc(p->n * sizeof(*p->fds));
	for (uint32_t i = 0; i < p->n; i++) {
		uint32_t k = rnd_below(i + 1);

		p->numbers[i] = p->numbers[k];
		p->numbers[k] = i;
		p->fds[i] = skv_memfd_new("segment", SEGMENT);
		ck_assert_int_ge(p->fds[i], 0);
	}
}

static void pool_free(struct pool *p)
{
	while (p->n > 0)
		close(p->fds[--p->n]);
	free(p->fds);
	free(p->numbers);
}

/*
 * Copies pages between the case's memory and the pool. In the pool, a page is at a multiple of its size in the range of
 * all segments.
 */
static void pool_copy(struct pool *p, struct parked_case *c, bool back)
{
	const struct skv_disk_job *job = &c->job;
	char *page = malloc(job->page_bytes);

	for (uint64_t i = 0; i < job->n_pages; i++) {
		uint32_t id = c->ids[i], segment = id / job->pages_per_segment, k = 0;
		uint64_t at = segment * SEGMENT;

		while (at % job->page_bytes)
			at++;
		at += id % job->pages_per_segment * job->page_bytes - segment * SEGMENT;
		while (p->numbers[k] != segment)
			k++;
		ck_assert_int_eq(pread(back ? p->fds[k] : c->pages, page, job->page_bytes, (off_t)(back ? at : id * job->page_bytes)),
		                 (ssize_t)job->page_bytes);
		ck_assert_int_eq(pwrite(back ? c->pages : p->fds[k], page, job->page_bytes, (off_t)(back ? id * job->page_bytes : at)),
		                 (ssize_t)job->page_bytes);
	}
	free(page);
}

static int ask(struct pool *p, const struct parked_case *c)
{
	bool parks = c->job.kind == SKV_DISK_PARK;
	uint64_t n = parks ? c->job.n_entries : c->job.n_pages;
	int *fds = malloc(c->job.n_fds * sizeof(*fds)), list = skv_memfd_new("list", (n + p->n) * sizeof(uint32_t));

	ck_assert_int_eq(pwrite(list, parks ? c->entries : c->ids, n * 4, 0), (ssize_t)(n * 4));
	ck_assert_int_eq(pwrite(list, p->numbers, p->n * 4, (off_t)(n * 4)), p->n * 4);
	memcpy(fds, (int[]){disk.root, disk.root, c->seq, list}, SKV_DISK_FD_PAGES * sizeof(*fds));
	memcpy(fds + SKV_DISK_FD_PAGES, p->fds, (c->job.n_fds - SKV_DISK_FD_PAGES) * sizeof(*fds));
	disk_post(&c->job, fds);
	disk_wait();
	close(list);
	free(fds);
	return disk.answer.error;
}

START_TEST(pages_of_a_device_come_back)
{
	for (int i = 0; i < (slowed() ? 5 : 30); i++) {
		struct parked_case c, *to;
		uint64_t max_pages;
		struct pool p, q;

		parked_case_random(&c);
		to = parked_target(&c);
		max_pages = to->job.max_pages;
		pool_make(&p, &c, i == 0 ? 300 : rnd_below(4)); /* 300: more descriptors than fit into a packet */
		pool_make(&q, to, rnd_below(4));
		pool_copy(&p, &c, false);
		DISK_EXPECT(ask(&p, &c), 0);
		DISK_EXPECT(ask(&q, to), 0);
		pool_copy(&q, to, true);
		to->job.max_pages = max_pages;
		parked_expect(&c, to);
		pool_free(&p);
		pool_free(&q);
		parked_case_free(&c);
		parked_case_free(to);
		free(to);
	}
}
END_TEST

START_TEST(what_is_wrong_with_a_device_is_an_answer)
{
	struct skv_wire_model m = parked_model(2, 2, 2, 32, SKV_BF16);
	struct parked_case c;
	struct pool p;
	uint32_t was;

	parked_case_make(&c, &m, 500, 400, 80);
	pool_make(&p, &c, 2);
	pool_copy(&p, &c, false);
	c.job.model.device = SKV_DEVICE_CUDA(7);
	DISK_EXPECT(ask(&p, &c), -ENODEV);
	c.job.model.device = SKV_DEVICE_CUDA(0);
	was = p.numbers[1];
	p.numbers[1] = p.numbers[0];
	DISK_EXPECT(ask(&p, &c), -EINVAL);
	ck_assert_msg(strstr(disk.answer.why, "twice"), "%s", disk.answer.why);
	p.numbers[1] = 1000;
	DISK_EXPECT(ask(&p, &c), -EINVAL);
	ck_assert_msg(strstr(disk.answer.why, "has segment 1000"), "%s", disk.answer.why);
	p.numbers[1] = was;
	c.job.n_fds = SKV_DISK_FD_PAGES + 1;
	for (uint32_t i = 0; i < p.n; i++) /* the one without a page */
		if (p.numbers[i] == p.n - 1) {
			p.numbers[i] = p.numbers[0];
			p.numbers[0] = p.n - 1;
		}
	DISK_EXPECT(ask(&p, &c), -EINVAL);
	ck_assert_msg(strstr(disk.answer.why, "which it did not pass"), "%s", disk.answer.why);
	fx_text(fx_path(steering, "fault"), "");
	c.job.n_fds = SKV_DISK_FD_PAGES + p.n;
	DISK_EXPECT(ask(&p, &c), -EIO);
	ck_assert_msg(strstr(disk.answer.why, "copying pages"), "%s", disk.answer.why);
	ck_assert_uint_eq(disk_count_files(), 0);
	pool_free(&p);
	parked_case_free(&c);
}
END_TEST

/*
 * A client that held the sequence while its entries were listed may have leased pages in segments that the pool did not
 * have at the beginning, and entered them.
 */
START_TEST(a_page_beyond_the_pool)
{
	enum { SEGMENTS = 3, PER_SEGMENT = 16 };
	const skv_pte within = skv_pte_make(SKV_PTE_PRIVATE, SEGMENTS * PER_SEGMENT - 1);
	const skv_pte beyond = skv_pte_make(_i ? SKV_PTE_SHARED : SKV_PTE_PRIVATE, SEGMENTS * PER_SEGMENT);
	struct skv_job job = {.m.n_entries = 2};
	struct skv_job_memory mem = {.list = skv_memfd_new("list", 4096), .n_segments = SEGMENTS};
	const skv_pte holes[] = {0, within};

	mem.segments = calloc(SEGMENTS, 1);
	ck_assert_int_eq(pwrite(mem.list, holes, sizeof(holes), 0), sizeof(holes));
	ck_assert_int_eq(skv_job_memory_mark(&job, &mem, PER_SEGMENT), 0);
	ck_assert(!mem.segments[0] && !mem.segments[1] && mem.segments[2]);
	mem.marked = 0;
	ck_assert_int_eq(pwrite(mem.list, &beyond, sizeof(beyond), 0), sizeof(beyond));
	ck_assert_int_eq(skv_job_memory_mark(&job, &mem, PER_SEGMENT), -ESTALE);
	free(mem.segments);
	close(mem.list);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("disk-device");

	tcase_add_loop_test(add_case(s, "lists", 60, NULL, NULL, NULL), a_page_beyond_the_pool, 0, 2);
	add_case(s, "device", 60, begin, end, pages_of_a_device_come_back, what_is_wrong_with_a_device_is_an_answer, NULL);
	return run_suite(s);
}
