/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of parked sequences that were damaged, or created by an attacker with valid checksums: resumed and imported, or
 * rejected with a text. Undamaged files must be accepted; pages of other sequences must not change, nor may memory
 * beyond the layout, which is sealed.
 *
 * The input determines the sequence, the damage to its file, which checksums are corrected afterwards, and how the file
 * is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/fd.h"
#include "daemon/disk/run-job.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "parked";
const int fuzz_copies = 20;

#define FILE_MOST (512u << 10) /* bytes; a pipe must have room for a file */
#define GUARD 0x5au

static struct {
	char bytes[FILE_MOST];
	size_t n;
	struct skv_parked_header header; /* before damage */
} file;
static int folder = -1;

static void remove_folder(void)
{
	char path[64], link[32];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
	n = readlink(link, path, sizeof(path) - 1);
	if (n > 0) {
		path[n] = 0;
		rmdir(path);
	}
}

static void make_folder(void)
{
	char shm[] = "/dev/shm/fuzz-parked-XXXXXX", tmp[] = "/tmp/fuzz-parked-XXXXXX";
	const char *path;

	if (folder >= 0)
		return;
	path = mkdtemp(shm);
	path = path ? path : mkdtemp(tmp);
	MUST(path);
	folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(folder >= 0);
	atexit(remove_folder);
}

/* ---- a sequence ------------------------------------------------------------------------------ */

static struct skv_wire_model a_model(struct fuzz_input *in)
{
	struct skv_wire_model m = {.n_layers = 1 + fuzz_u8(in) % 3, .n_kv_heads = 1 + fuzz_u8(in) % 2, .head_dim = 16 + 16 * (fuzz_u8(in) % 2),
	                           .kv_dtype = fuzz_u8(in) % 4, .max_tokens = 4096, .n_ranks = 1};

	m.n_heads = m.n_kv_heads * 2;
	skv_wire_string(m.name, sizeof(m.name), "m");
	return m;
}

/* Creates entries from the input's bits. Returns the number of pages. */
static uint64_t make_entries(struct fuzz_input *in, const struct skv_seqmem_layout *l, uint32_t len, skv_pte *to)
{
	uint64_t n = 0;

	for (uint32_t t = 0; t < l->n_tables; t++)
		for (uint32_t i = 0; i < skv_seqmem_entries(l, t, len); i++) {
			bool kv = skv_table_page_kind(l->n_layers, t) == SKV_PAGES_KV, is_page = fuzz_u8(in) & 1;

			*to++ = is_page ? skv_pte_make(SKV_PTE_PRIVATE, (uint32_t)n) : skv_pte_make(kv ? SKV_PTE_HOLE : SKV_PTE_NONE, 0);
			n += is_page;
		}
	return n;
}

static void make_file(struct fuzz_input *in)
{
	struct skv_parked_header h = {.model = a_model(in), .max_tokens = 1 + fuzz_u8(in) % 64};
	uint32_t len = fuzz_u8(in) % (h.max_tokens + 1);
	struct skv_seqmem_layout l;
	struct skv_seqmem *s = (void *)(file.bytes + SKV_PARKED_ALIGN);
	struct skv_model m;

	memset(file.bytes, 0, sizeof(file.bytes));
	skv_wire_to_model(&m, &h.model);
	skv_seqmem_layout(&m, h.max_tokens, &l);
	skv_wire_string(h.name, sizeof(h.name), "s");
	h.commit = (UINT64_C(3) << 32) | len;
	h.page_bytes = skv_page_bytes(&m);
	h.state_bytes = fuzz_u8(in) / 4 * 4;
	for (uint32_t t = 0; t < l.n_tables; t++)
		h.n_entries += skv_seqmem_entries(&l, t, len);
	skv_seqmem_init_header(s, &l);
	s->commit = h.commit;
	skv_parked_lay_out(&h); /* the position of the entries does not depend on n_pages */
	MUST(h.pages_at <= FILE_MOST);
	h.n_pages = make_entries(in, &l, len, (skv_pte *)(file.bytes + h.memory_at + h.memory_bytes - h.n_entries * sizeof(skv_pte)));
	skv_parked_lay_out(&h);
	file.header = h;
	file.n = h.file_bytes;
}

/* Corrects checksums of what the header describes, as far as it lies within the file. */
static void seal(uint8_t which)
{
	struct skv_parked_header *h = (void *)file.bytes;
	const uint64_t end = file.n;

	if (which & 1 && h->page_bytes && h->chunk_pages)
		for (uint64_t i = 0; i < h->n_pages && i < 1000; i++) {
			uint64_t at = h->pages_at + i / h->chunk_pages * h->chunk_bytes + i % h->chunk_pages * h->page_bytes;
			uint32_t sum;

			if (at > end || h->page_bytes > end - at || h->sums_at > end || i * 4 > end - h->sums_at || end - h->sums_at - i * 4 < 4)
				break;
			sum = skv_crc32c(0, file.bytes + at, h->page_bytes);
			memcpy(file.bytes + h->sums_at + i * sizeof(sum), &sum, sizeof(sum));
		}
	if (which & 2 && h->sums_at <= end && h->n_pages <= (end - h->sums_at) / 4)
		h->sums_sum = skv_crc32c(0, file.bytes + h->sums_at, h->n_pages * 4);
	if (which & 4 && h->memory_at <= end && h->memory_bytes <= end - h->memory_at)
		h->memory_sum = skv_crc32c(0, file.bytes + h->memory_at, h->memory_bytes);
	if (which & 8)
		skv_parked_seal(h);
}

static void damage(struct fuzz_input *in)
{
	static const uint32_t values[] = {0, 1, UINT32_MAX, 0x80000000u, 0x10000000u, 0x30000000u};
	const uint8_t what = fuzz_u8(in), how = fuzz_u8(in);
	uint32_t at = fuzz_u16(in), x;
	const struct skv_parked_header *h = &file.header;

	if (file.n < sizeof(*h))
		return;
	switch (what % 6) {
	case 0: at = at * 4 % sizeof(*h); break;
	case 1: at = (uint32_t)(h->memory_at + at % 256); break; /* the beginning of struct skv_seqmem */
	case 2: at = (uint32_t)(h->memory_at + h->memory_bytes - 4 * (at % h->n_entries) - 4); break;
	case 3: at = (uint32_t)(at * 8 % file.n); break;
	case 4: file.n = how % 2 ? file.n - at % file.n : file.n + at % SKV_PARKED_ALIGN; return;
	case 5: file.n = (file.n / SKV_PARKED_ALIGN + how % 3) * SKV_PARKED_ALIGN; return;
	}
	if (at + sizeof(x) > file.n)
		return;
	memcpy(&x, file.bytes + at, sizeof(x));
	x = how & 128 ? values[how % 6] : how & 64 ? fuzz_u32(in) : x ^ 1u << how % 32;
	memcpy(file.bytes + at, &x, sizeof(x));
}

/* ---- resuming and importing --------------------------------------------------------------------- */

static int checked(const struct skv_disk_work *work, int r)
{
	MUST(r == 0 || (r == -EBADMSG && *work->why));
	if (r && getenv("FUZZ_SAYS"))
		fprintf(stderr, "%s\n", work->why);
	return r;
}

/* Resumes into pages 1, 3, 5 and so on; the pages between belong to other sequences. */
static int resume(const struct skv_parked_header *h, const char *name)
{
	struct skv_disk_job job = {.kind = SKV_DISK_RESUME, .n_fds = SKV_DISK_FD_PAGES + 1, .model = h->model, .max_tokens = h->max_tokens,
	                           .n_pages = h->n_pages, .page_bytes = h->page_bytes, .max_pages = 2 * h->n_pages + 1};
	struct skv_disk_work work = {.job = &job};
	struct skv_seqmem_layout l;
	struct skv_model m;
	char guard;
	int r;

	job.model.device = 0;
	skv_wire_to_model(&m, &h->model);
	skv_seqmem_layout(&m, h->max_tokens, &l);
	memcpy(job.name, h->name, sizeof(job.name));
	snprintf(job.file, sizeof(job.file), "%s", name);
	work.fds = (int[]){folder, folder, skv_memfd_new("seq", l.total), skv_memfd_new("list", h->n_pages * 4 + 1),
	                   skv_memfd_new("pages", job.max_pages * job.page_bytes)};
	for (uint32_t i = 0, id; i < h->n_pages; i++) {
		id = 2 * i + 1;
		MUST(pwrite(work.fds[SKV_DISK_FD_LIST], &id, 4, i * 4) == 4);
	}
	guard = GUARD;
	for (uint64_t i = 0; i < job.max_pages; i += 2)
		MUST(pwrite(work.fds[SKV_DISK_FD_PAGES], &guard, 1, (off_t)(i * job.page_bytes + i % job.page_bytes)) == 1);
	r = checked(&work, skv_disk_resume(&work));
	for (uint64_t i = 0; i < job.max_pages; i += 2)
		MUST(pread(work.fds[SKV_DISK_FD_PAGES], &guard, 1, (off_t)(i * job.page_bytes + i % job.page_bytes)) == 1 && guard == GUARD);
	for (int i = SKV_DISK_FD_SEQ; i <= SKV_DISK_FD_PAGES; i++)
		close(work.fds[i]);
	return r;
}

static int import(int from, char ret_name[SKV_PARKED_FILE])
{
	const struct skv_disk_job job = {.kind = SKV_DISK_IMPORT, .n_fds = SKV_DISK_FD_OTHER + 1, .uid = 7, .max_bytes = FILE_MOST};
	struct skv_disk_work work = {.job = &job, .fds = (int[]){folder, folder, from}};
	int r = skv_disk_import(&work);

	if (r != -EDQUOT)
		(void)checked(&work, r);
	memcpy(ret_name, work.file, sizeof(work.file));
	return r;
}

static int put_file(const char *name)
{
	int fd = openat(folder, name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);

	MUST(fd >= 0 && pwrite(fd, file.bytes, file.n, 0) == (ssize_t)file.n);
	return fd;
}

static int put_pipe(void)
{
	int ends[2];

	MUST(pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 2 * FILE_MOST) > 0);
	MUST(write(ends[1], file.bytes, file.n) == (ssize_t)file.n);
	close(ends[1]);
	return ends[0];
}

void fuzz_one(const uint8_t *data, size_t size)
{
	const struct skv_parked_header *h = (const void *)file.bytes;
	struct fuzz_input in = {data, size};
	uint8_t damages = fuzz_u8(&in) % 4, sealed = fuzz_u8(&in), from = fuzz_u8(&in);
	char name[SKV_PARKED_FILE];
	int fd, r, imported;

	make_folder();
	make_file(&in);
	if (file.n > FILE_MOST)
		return;
	memcpy(file.bytes, &file.header, sizeof(file.header));
	seal(15);
	for (uint8_t i = 0; i < damages; i++)
		damage(&in);
	if (file.n > FILE_MOST || file.n < sizeof(*h))
		return;
	seal(damages ? sealed : 0);
	fd = put_file("f");
	/* use the damaged header if it makes a valid job, otherwise the original */
	r = resume(from & 1 && !skv_parked_check(h, file.n) ? h : &file.header, "f");
	MUST(damages || r == 0);
	if (from & 2) {
		close(fd);
		fd = put_pipe();
	}
	imported = import(fd, name);
	MUST(damages || imported == 0);
	if (imported == 0) { /* an imported file can be resumed */
		MUST(resume(h, name) == 0);
		MUST(unlinkat(folder, name, 0) == 0);
	}
	close(fd);
	MUST(unlinkat(folder, "f", 0) == 0);
}
