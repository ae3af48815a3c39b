/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed prefixes on disk in the order of their last use, compared with a search through all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/disk/files.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define USERS 4u

static struct skv_files files;

static void setup(void)
{
	files = (struct skv_files)SKV_FILES_NULL;
	files.list = calloc(SKV_FILES_LISTS, sizeof(*files.list));
	ck_assert_ptr_nonnull(files.list);
}

static void teardown(void)
{
	skv_files_close(&files);
}

static void enter(uint32_t uid, uint64_t used_ns, bool is_prefix)
{
	struct skv_parked *p = skv_files_reserve(&files, uid);
	struct skv_parked_header h = {.parked_ns = used_ns, .file_bytes = 1};

	ck_assert_ptr_nonnull(p);
	snprintf(h.name, sizeof(h.name), "%s%016llx", is_prefix ? "/" : "", (unsigned long long)rnd64());
	skv_files_put(&files, p, h.name, &h, NULL);
}

static void same_as_search(uint32_t uid)
{
	const struct skv_parked *got = skv_files_oldest_prefix(&files, uid), *want = NULL;

	for (size_t i = 0; i < files.n; i++) {
		const struct skv_parked *p = files.all[i];

		if (skv_parked_is_prefix(p) && !p->going && !p->busy && (uid == UINT32_MAX || p->uid == uid) &&
		    (!want || p->used_ns < want->used_ns))
			want = p;
	}
	ck_assert_msg(got == want || (got && want && got->used_ns == want->used_ns && !got->busy && !got->going &&
	                              skv_parked_is_prefix(got)),
	              "user %d: the oldest of %zu files was used at %lld, expected %lld", (int)uid, files.n,
	              got ? (long long)got->used_ns : -1, want ? (long long)want->used_ns : -1);
}

/* Files in random states. Some have equal times, and some times go back, as if the operator had set the clock. */
START_TEST(any_order)
{
	for (uint32_t i = 0; i < 20000; i++) {
		struct skv_parked *p = files.n > 0 ? files.all[rnd_below((uint32_t)files.n)] : NULL;

		switch (p ? rnd_below(files.n < 300 ? 8 : 5) : 7) {
		case 0: skv_files_used(p, rnd_below(1000)); break;
		case 1: skv_files_set_busy(p, rnd_below(2)); break;
		case 2: skv_files_set_going(p, rnd_below(2)); break;
		case 3: skv_files_forget(&files, p); break;
		case 4: skv_files_unreserve(&files, skv_files_reserve(&files, rnd_below(USERS))); break;
		default: enter(rnd_below(USERS), rnd_below(1000), rnd_below(3));
		}
		same_as_search(i % 5 < USERS ? i % 5 : UINT32_MAX);
	}
}
END_TEST

/* A full disk, or a quota that was lowered: evicting each prefix does not cost a look at all others. */
START_TEST(many)
{
	struct timespec a, b;
	uint64_t last = 0;
	double seconds;

	for (uint32_t i = 0; i < 200000; i++)
		enter(rnd_below(USERS), rnd64() >> 1, true);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	for (struct skv_parked *p; (p = skv_files_oldest_prefix(&files, UINT32_MAX)) != NULL;) {
		ck_assert_uint_ge(p->used_ns, last);
		last = p->used_ns;
		skv_files_set_going(p, true);
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
	ck_assert_msg(seconds < 4.0, "%.1f s of processor time for 200,000 prefixes", seconds);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("use-order");

	add_case(s, "use-order", 60, setup, teardown, any_order, many, NULL);
	return run_suite(s);
}
