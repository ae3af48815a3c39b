/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/values-priv.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/records.h"

#define MS UINT64_C(1000000) /* ns */
#define MAX_CALL_MS 10000u /* no progress is reported during a call, which must end before the daemon's timeout */
#define STAGING_ALIGN ((size_t)4096)

/* ---- the daemon's description ---------------------------------------------------------------- */

static int read_what(struct skv_store_values *v)
{
	const int fd = v->work->fds[SKV_DISK_FD_STORE];
	const size_t ids = v->work->job->kind == SKV_DISK_STORE_GET ? SKV_BLOCK_TOKENS * sizeof(int32_t) : 0;
	struct skv_store_what *what = &v->what;
	size_t names;
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(*what) ||
	    pread(fd, what, sizeof(*what), 0) != (ssize_t)sizeof(*what))
		return skv_disk_refuse(v->work, -EINVAL, "the daemon's description of the prefix store cannot be read");
	if (what->n_blocks < 1 || what->n_blocks > SKV_MAX_TOKENS / SKV_BLOCK_TOKENS)
		return skv_disk_refuse(v->work, -EINVAL, "the daemon's job has %u blocks, expected 1 to %u",
		                       what->n_blocks, SKV_MAX_TOKENS / SKV_BLOCK_TOKENS);
	if (!memchr(what->url, '\0', sizeof(what->url)) || !memchr(what->nixl, '\0', sizeof(what->nixl)))
		return skv_disk_refuse(v->work, -EINVAL,
		                       "the daemon's job has an address of the prefix store, or a library, without an "
		                       "end");
	names = what->n_blocks * sizeof(*v->names);
	if ((uint64_t)st.st_size < sizeof(*what) + names + what->n_blocks * ids)
		return skv_disk_refuse(v->work, -EINVAL, "the daemon's description of %u blocks has only %lld bytes",
		                       what->n_blocks,
		                       (long long)st.st_size);
	v->names = malloc(names);
	if (!v->names)
		return skv_disk_refuse(v->work, -ENOMEM, "no memory for the names of %u blocks", what->n_blocks);
	if (pread(fd, v->names, names, sizeof(*what)) != (ssize_t)names)
		return skv_disk_refuse(v->work, -EIO, "the names of %u blocks cannot be read", what->n_blocks);
	return 0;
}

/* ---- the store ------------------------------------------------------------------------------- */

/*
 * Sets v->store to the process's client of the store, which it creates if the job names another store. The client
 * outlives the job, so that a server that failed is not asked again too early by the next job.
 */
static int get_store(struct skv_store_values *v)
{
	static struct skv_store *store;
	static char url[SKV_STORE_URL];
	struct skv_store_config config;
	char why[SKV_STORE_TEXT] = "";
	int r;

	if (!store || strcmp(url, v->what.url) != 0) {
		store = skv_store_free(store);
		r = skv_store_config_parse(&config, v->what.url, why);
		if (r == 0) {
			r = skv_store_new(&config, &store, why);
			skv_store_config_wipe(&config);
		}
		if (r < 0)
			return skv_disk_refuse(v->work, r, "%s", why);
		memcpy(url, v->what.url, sizeof(url));
	}
	v->store = store;
	return 0;
}

uint32_t skv_store_values_left_ms(const struct skv_store_values *v)
{
	const uint64_t now_ns = skv_now_ns();

	if (now_ns >= v->deadline_ns)
		return 0;
	return v->deadline_ns - now_ns < MAX_CALL_MS * MS ? (uint32_t)((v->deadline_ns - now_ns) / MS) : MAX_CALL_MS;
}

int skv_store_values_late(struct skv_store_values *v)
{
	v->gave_up = true;
	return skv_disk_refuse(v->work, -ETIMEDOUT, "the prefix store: the job took longer than %u ms",
	                       v->what.timeout_ms);
}

/* -EIO becomes -EREMOTEIO: the worker would take -EIO for an error of the device, and its process would exit. */
int skv_store_values_failed(struct skv_store_values *v, int error)
{
	v->gave_up = true;
	return skv_disk_refuse(v->work, error == -EIO ? -EREMOTEIO : error, "the prefix store: %s",
	                       skv_store_error(v->store));
}

int skv_store_values_nixl(struct skv_store_values *v, size_t bytes, struct skv_nixl **at)
{
	char why[SKV_STORE_TEXT] = "";
	int r = *at ? 0 : skv_nixl_new(v->what.nixl, bytes, at, why);

	v->gave_up |= r < 0;
	return r < 0 ? skv_disk_refuse(v->work, r, "%s", why) : 0;
}

void skv_store_values_key(struct skv_store_values *v, uint32_t i, uint32_t block, uint32_t part)
{
	skv_store_part_key(v->names[block], part, v->text[i]);
	v->keys[i] = (struct skv_store_bytes){v->text[i], strlen(v->text[i])};
}

int skv_store_values_exist(struct skv_store_values *v, uint32_t n)
{
	const uint32_t left_ms = skv_store_values_left_ms(v);
	int r;

	if (!left_ms)
		return skv_store_values_late(v);
	r = skv_store_exists(v->store, v->keys, n, left_ms, v->status);
	return r < 0 ? skv_store_values_failed(v, r) : 0;
}

/* ---- the job --------------------------------------------------------------------------------- */

/* Returns how many page table entries (PUT) or page ids (GET) the list must have for n_tokens. */
static uint64_t listed(const struct skv_store_values *v, bool get, uint32_t n_tokens)
{
	bool records = false;

	for (uint32_t layer = 0; layer < v->model.n_layers; layer++)
		records |= v->what.made.form[layer].kind != 0;
	if (get)
		return skv_made_pages(&v->what.made, &v->model, n_tokens);
	return (uint64_t)skv_table(v->model.n_layers, records ? SKV_PAGES_REFS + 1 : SKV_PAGES_KV + 1, 0) *
	       skv_pages_of(n_tokens);
}

static int check_job(struct skv_store_values *v)
{
	const struct skv_disk_job *job = v->work->job;
	const bool get = job->kind == SKV_DISK_STORE_GET;
	const uint64_t n_tokens = (uint64_t)v->what.n_blocks * SKV_BLOCK_TOKENS;
	const struct skv_model *m = &v->model;
	const char *wrong;
	int r;

	skv_wire_to_model(&v->model, &job->model);
	wrong = skv_model_check(m);
	if (!wrong && job->page_bytes != skv_page_bytes(m))
		wrong = "its pages have another size than its model's";
	if (!wrong)
		wrong = skv_made_check(&v->what.made, m);
	if (!wrong && get && (job->max_tokens > SKV_MAX_TOKENS || n_tokens > job->max_tokens))
		wrong = "its blocks have more tokens than its sequence may have";
	if (!wrong && get && (uint64_t)m->n_layers * skv_pages_of(job->max_tokens) > SKV_SEQ_MAX_ENTRIES)
		wrong = "its sequence may have more pages than a daemon allows";
	if (!wrong && !get && skv_commit_len(job->commit) != n_tokens)
		wrong = "its prefix has another length than its blocks";
	if (!wrong && (get ? job->n_pages : job->n_entries) < listed(v, get, (uint32_t)n_tokens))
		wrong = "its list has another length than its blocks have pages";
	if (wrong)
		return skv_disk_refuse(v->work, -EINVAL, "the daemon's job is not valid: %s", wrong);
	r = skv_store_cut_init(&v->cut, m, &v->what.made, get ? 0 : skv_pages_of((uint32_t)n_tokens));
	if (r == -EOPNOTSUPP)
		return skv_disk_refuse(v->work, r, "a page has %llu bytes, values of the prefix store have %zu at most",
		                       (unsigned long long)job->page_bytes,
		                       SKV_STORE_MAX_VALUE - SKV_STORE_PART_OVERHEAD);
	return r < 0 ? skv_disk_refuse(v->work, r, "no memory for the pieces of a block") : 0;
}

uint32_t skv_store_values_run(const struct skv_store_values *v, uint32_t first, uint32_t end)
{
	const struct skv_store_piece *p = &v->cut.piece[first];
	uint32_t n = 1;

	while (n < end - first && n < SKV_STORE_RUN && p[n].listed == p[0].listed + n)
		n++;
	return n;
}

int skv_store_values_ids(struct skv_store_values *v, uint32_t first, uint32_t n)
{
	const uint64_t at = v->cut.piece[first].listed;
	struct skv_disk_list list;

	skv_disk_list_begin(&list, v->work, at, at + n);
	return skv_disk_list_pages(&list, n, v->ids);
}

/* Reads and checks the whole list before any data is transferred. */
static int check_list(struct skv_store_values *v)
{
	int r = 0;

	for (uint32_t block = 0; r == 0 && block < v->what.n_blocks; block++) {
		skv_store_cut_to(&v->cut, block);
		for (uint32_t i = 0, n; r == 0 && i < v->cut.n_pieces; i += n) {
			n = skv_store_values_run(v, i, v->cut.n_pieces);
			r = skv_store_values_ids(v, i, n);
		}
	}
	if (r == 0 &&
	    v->work->job->n_pages != skv_made_pages(&v->what.made, &v->model, v->what.n_blocks * SKV_BLOCK_TOKENS))
		return skv_disk_refuse(v->work, -EINVAL, "the daemon's job has %llu pages, but its blocks have another "
		                                         "number of pages",
		                       (unsigned long long)v->work->job->n_pages);
	return r;
}

/* Copies n whole pages, or the piece's bytes of a single page, from (`reads`) or to the pages. */
static int copy_piece(struct skv_store_values *v, const uint32_t *ids, uint32_t n, const struct skv_store_piece *p,
                      char *at, bool reads)
{
	if (p->bytes == v->cut.page_bytes)
		return reads ? skv_disk_pages_read(&v->pages, ids, n, at) : skv_disk_pages_write(&v->pages, ids, n, at);
	return reads ? skv_disk_pages_read_some(&v->pages, *ids, p->offset, p->bytes, at)
	             : skv_disk_pages_write_some(&v->pages, *ids, p->offset, p->bytes, at);
}

/* Copies the pieces of a part from their pages to `staging` (`reads`), or from `staging` to their pages. */
static int copy_part(struct skv_store_values *v, uint32_t part, bool reads)
{
	const uint32_t end = v->cut.first[part + 1];
	char *at = v->staging;
	int r = 0;

	for (uint32_t i = v->cut.first[part], n; r == 0 && i < end; i += n) {
		const struct skv_store_piece *p = &v->cut.piece[i];

		n = skv_store_values_run(v, i, end);
		r = skv_store_values_ids(v, i, n);
		for (uint32_t k = 0, some; r == 0 && k < n; k += some) {
			for (some = 1;
			     k + some < n && p[k].bytes == v->cut.page_bytes && p[k + some].bytes == p[k].bytes; some++)
				;
			r = copy_piece(v, v->ids + k, some, &p[k], at, reads);
			at += (size_t)some * p[k].bytes;
		}
	}
	return r;
}

int skv_store_values_read_part(struct skv_store_values *v, uint32_t part)
{
	return copy_part(v, part, true);
}

int skv_store_values_write_part(struct skv_store_values *v, uint32_t part)
{
	return copy_part(v, part, false);
}

static int open_pages(struct skv_store_values *v)
{
	v->staging_bytes = (v->cut.most_bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
	v->staging = mmap(NULL, v->staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	v->cipher = (struct skv_store_cipher){EVP_CIPHER_CTX_new(), v->what.key};
	if (v->staging == MAP_FAILED || !v->cipher.ctx)
		return skv_disk_refuse(v->work, -ENOMEM, "no memory for a part of a block");
	return skv_disk_pages_open(&v->pages, v->work, v->staging, v->staging_bytes);
}

int skv_store_values_begin(struct skv_disk_work *work, struct skv_store_values **ret)
{
	struct skv_store_values *v = calloc(1, sizeof(*v));
	int r;

	if (!v)
		return skv_disk_refuse(work, -ENOMEM, "no memory for a job of the prefix store");
	v->work = work;
	v->staging = MAP_FAILED;
	r = read_what(v);
	v->deadline_ns = skv_now_ns() + v->what.timeout_ms * MS;
	if (r == 0)
		r = get_store(v);
	if (r < 0)
		skv_store_values_end(v);
	else
		*ret = v;
	return r;
}

int skv_store_values_begin_with_pages(struct skv_disk_work *work, struct skv_store_values **ret)
{
	struct skv_store_values *v;
	int r = skv_store_values_begin(work, &v);

	if (r < 0)
		return r;
	r = check_job(v);
	if (r == 0)
		r = check_list(v);
	if (r == 0)
		r = open_pages(v);
	if (r < 0)
		skv_store_values_end(v);
	else
		*ret = v;
	return r;
}

void skv_store_values_end(struct skv_store_values *v)
{
	skv_disk_pages_close(&v->pages);
	if (v->staging != MAP_FAILED)
		munmap(v->staging, v->staging_bytes);
	EVP_CIPHER_CTX_free(v->cipher.ctx);
	skv_store_cut_free(&v->cut);
	OPENSSL_cleanse(&v->what, sizeof(v->what));
	free(v->names);
	free(v);
}
