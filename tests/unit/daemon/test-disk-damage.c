/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged files of parked sequences: a flipped bit, a missing end, and changes by an attacker who computes valid
 * checksums. None of them is resumed or imported as something that was not parked.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/disk-fixture.h"
#include "tests/support/folder.h"
#include "tests/support/suite.h"

static struct parked_case was;
static char *file; /* as it was parked */
static size_t bytes;

#define MOST_BYTES (1u << 20) /* of pages: each test writes and reads the file hundreds of times */

/* Uses a file system in memory if there is one: this test syncs often. */
static void begin(void)
{
	if (access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1);
	disk_begin();
	do {
		parked_case_random(&was);
		if (was.job.n_pages >= 5 && was.job.n_pages * was.job.page_bytes <= MOST_BYTES)
			break;
		parked_case_free(&was);
	} while (true);
	DISK_EXPECT(disk_park(&was), 0);
	file = fx_read(fx_path(disk.dir, was.job.file), &bytes);
	ck_assert_int_eq(unlinkat(disk.folder, was.job.file, 0), 0);
}

static void end(void)
{
	free(file);
	parked_case_free(&was);
	disk_end();
}

/* Returns whether the byte has no meaning. */
static bool is_padding(uint64_t at)
{
	const struct skv_parked_header *h = (const void *)file;

	if (at < h->memory_at)
		return at >= sizeof(*h);
	if (at < h->sums_at)
		return at >= h->memory_at + h->memory_bytes;
	if (at < h->pages_at)
		return at >= h->sums_at + h->n_pages * sizeof(uint32_t);
	return (at - h->pages_at) % h->chunk_bytes >= h->chunk_pages * h->page_bytes ||
	       (at - h->pages_at) / h->chunk_bytes * h->chunk_pages + (at - h->pages_at) % h->chunk_bytes / h->page_bytes >= h->n_pages;
}

/*
 * Resumes and imports the data: both refuse it as a bad file, or both succeed with what was parked. Returns the error
 * text.
 */
static const char *expect_refused_or_same(const char *data, size_t n, bool same)
{
	static char why[SKV_DISK_TEXT_MAX];
	struct parked_case *to = parked_target(&was);
	int from;

	fx_write(fx_path(disk.dir, was.job.file), data, n);
	DISK_EXPECT(disk_resume(to), same ? 0 : -EBADMSG);
	memcpy(why, disk.answer.why, sizeof(why));
	if (same)
		parked_expect(&was, to);
	from = openat(disk.folder, was.job.file, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(unlinkat(disk.folder, was.job.file, 0), 0);
	DISK_EXPECT(disk_import(from, UINT64_MAX), same ? 0 : -EBADMSG);
	if (same)
		disk_expect_resumes(&was);
	close(from);
	ck_assert_uint_eq(disk_count_files(), same);
	(void)unlinkat(disk.folder, was.job.file, 0);
	parked_case_free(to);
	free(to);
	return why;
}

START_TEST(each_bit_counts)
{
	const struct skv_parked_header *h = (const void *)file;

	for (int i = 0; i < (slowed() ? 30 : 400); i++) {
		const uint64_t ends[] = {sizeof(*h), SKV_PARKED_ALIGN, h->memory_at + h->memory_bytes, h->pages_at, bytes};
		uint64_t at = rnd_below((uint32_t)ends[rnd_below(5)]);
		char bit = (char)(1 << rnd_below(8));
		bool padding = is_padding(at);

		file[at] ^= bit;
		(void)expect_refused_or_same(file, bytes, padding);
		file[at] ^= bit;
	}
}
END_TEST

START_TEST(files_that_are_cut_or_longer_are_refused)
{
	char *longer = calloc(1, bytes + SKV_PARKED_ALIGN);

	memcpy(longer, file, bytes);
	for (int i = 0; i < 50; i++) {
		size_t n = rnd_below(2) ? rnd_below((uint32_t)bytes) : rnd_below((uint32_t)(bytes / SKV_PARKED_ALIGN)) * SKV_PARKED_ALIGN;
		const char *why = expect_refused_or_same(file, n, false);

		ck_assert_msg(strstr(why, n < sizeof(struct skv_parked_header) ? "a header alone has 4096" : "bytes, its header says"), "%s", why);
	}
	expect_refused_or_same(longer, bytes + 1, false);
	expect_refused_or_same(longer, bytes + SKV_PARKED_ALIGN, false);
	free(longer);
}
END_TEST

/* ---- with valid checksums ----------------------------------------------------------------------- */

static void seal(char *data)
{
	struct skv_parked_header *h = (void *)data;

	h->memory_sum = skv_crc32c(0, data + h->memory_at, h->memory_bytes);
	skv_parked_seal(h);
}

/*
 * Returns whether a field says whose the sequence is and when it was parked, which is not part of the sequence, or
 * whether the daemon checks it elsewhere.
 */
static bool is_about(size_t word)
{
	static const struct skv_parked_header h;
	const size_t at = word * sizeof(uint32_t);

#define WITHIN(field) (at - offsetof(struct skv_parked_header, field) < sizeof(h.field))
	return WITHIN(uid) || WITHIN(parked_ns) || WITHIN(model.device) || WITHIN(model.scale) || WITHIN(model.max_tokens);
}

START_TEST(each_field_of_the_header_is_checked)
{
	const uint32_t n = sizeof(struct skv_parked_header) / sizeof(uint32_t) - 1;
	struct parked_case *to = parked_target(&was);
	char *changed = malloc(bytes);

	for (uint32_t round = 0; round < n * 6; round++) {
		const uint32_t word = round % n, values[] = {0, 1, UINT32_MAX, 1u << 31, (uint32_t)rnd64(), 1u << rnd_below(32)};
		uint32_t is, value = values[round / n];

		memcpy(changed, file, bytes);
		memcpy(&is, file + word * sizeof(is), sizeof(is));
		if (round / n == 5)
			value ^= is;
		if (is_about(word) || value == is)
			continue;
		memcpy(changed + word * sizeof(value), &value, sizeof(value));
		skv_parked_seal((void *)changed);
		fx_write(fx_path(disk.dir, was.job.file), changed, bytes);
		DISK_EXPECT(disk_resume(to), -EBADMSG);
	}
	parked_case_free(to);
	free(to);
	free(changed);
}
END_TEST

/* Changes the header of the sequence memory, and any table. */
START_TEST(sequence_memory_that_cannot_be_is_refused)
{
	const size_t checked[] = {offsetof(struct skv_seqmem, magic), offsetof(struct skv_seqmem, n_layers),
	                          offsetof(struct skv_seqmem, max_tokens), offsetof(struct skv_seqmem, max_pages),
	                          offsetof(struct skv_seqmem, commit), offsetof(struct skv_seqmem, commit) + 4,
	                          offsetof(struct skv_seqmem, journal_epoch), offsetof(struct skv_seqmem, journal_n),
	                          offsetof(struct skv_seqmem, holder)};
	const struct skv_parked_header *h = (const void *)file;
	const uint64_t entries = h->memory_at + h->memory_bytes - h->n_entries * sizeof(skv_pte);
	char *changed = malloc(bytes);

	for (int i = 0; i < (slowed() ? 30 : 200); i++) {
		uint64_t k = rnd_below(2) ? h->memory_at + checked[rnd_below(9)]
		                          : entries + rnd_below((uint32_t)h->n_entries) * sizeof(skv_pte), other;
		const uint32_t kinds[] = {0, skv_pte_make(SKV_PTE_HOLE, 0), skv_pte_make(SKV_PTE_PRIVATE, rnd_below((uint32_t)h->n_pages + 2)),
		                          skv_pte_make(SKV_PTE_SHARED, 0), (uint32_t)rnd64()};
		uint32_t x = kinds[rnd_below(5)];

		memcpy(changed, file, bytes);
		other = entries + rnd_below((uint32_t)h->n_entries) * sizeof(skv_pte);
		if (k >= entries && rnd_below(3) == 0) /* another page's entry: that page would be used twice */
			memcpy(&x, file + other, sizeof(x));
		if (memcmp(changed + k, &x, sizeof(x)) == 0)
			continue;
		memcpy(changed + k, &x, sizeof(x));
		seal(changed);
		(void)expect_refused_or_same(changed, bytes, false);
	}
	free(changed);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
	struct skv_parked_header *h = (void *)file;
	char text[100];
	uint64_t page = h->n_pages / 2, at = h->pages_at + page / h->chunk_pages * h->chunk_bytes + page % h->chunk_pages * h->page_bytes;

	file[at] ^= 1;
	snprintf(text, sizeof(text), "page %llu of %llu has another checksum", (unsigned long long)page, (unsigned long long)h->n_pages);
	ck_assert_ptr_nonnull(strstr(expect_refused_or_same(file, bytes, false), text));
	file[at] ^= 1;
	file[h->memory_at + h->memory_bytes - 1] ^= 1; /* an entry, now of an unknown kind */
	ck_assert_ptr_nonnull(strstr(expect_refused_or_same(file, bytes, false), "the sequence memory has another checksum"));
	seal(file);
	ck_assert_ptr_nonnull(strstr(expect_refused_or_same(file, bytes, false), "entry "));
	h->version++;
	ck_assert_ptr_nonnull(strstr(expect_refused_or_same(file, bytes, false), "another version of the format"));
	h->magic++;
	ck_assert_ptr_nonnull(strstr(expect_refused_or_same(file, bytes, false), "is not the file of a parked sequence"));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("disk-damage");

	add_case(s, "damage", 120, begin, end, each_bit_counts, files_that_are_cut_or_longer_are_refused, NULL);
	add_case(s, "with checksums", 120, begin, end, each_field_of_the_header_is_checked, sequence_memory_that_cannot_be_is_refused,
	         what_is_wrong_is_named, NULL);
	return run_suite(s);
}
