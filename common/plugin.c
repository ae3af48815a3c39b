/* SPDX-License-Identifier: Apache-2.0 */
#include "common/spec.h"
#include "common/fd.h"
#include "common/refuse.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define refuse(err, err_len, ...) skv_refuse(-EBADMSG, err, err_len, __VA_ARGS__)

/* ---- struct skv_policy ----------------------------------------------------------------------- */

/* maximum of bytes of a policy's config, a struct of parameter values; the largest values are profiles */
#define CONFIG_MAX 131072u

static bool only_of(const char *s, const char *set, size_t most)
{
	size_t n = strspn(s, set);

	return n > 0 && s[n] == '\0' && n < most;
}

/* Returns whether s is a nonempty line of printable ASCII, shorter than `most` bytes. */
static bool one_line(const char *s, size_t most)
{
	size_t n = 0;

	for (; s[n]; n++)
		if (s[n] < 0x20 || s[n] > 0x7e || n + 1 >= most)
			return false;
	return n > 0;
}

#define WORD "abcdefghijklmnopqrstuvwxyz0123456789_"

static int check_geometry(const struct skv_policy *p, char *err, size_t err_len)
{
	const struct {
		const char *name;
		uint32_t is, expected;
	} g[] = {
	        {"abi", p->abi, SKV_POLICY_ABI},
	        {"size", p->size, sizeof(struct skv_policy)},
	        {"page_tokens", p->page_tokens, SKV_PAGE_TOKENS},
	        {"param_size", p->param_size, sizeof(struct skv_param)},
	        {"plan_size", p->plan_size, sizeof(struct skv_plan)},
	        {"prims_size", p->prims_size, sizeof(struct skv_prims)},
	};

	for (size_t i = 0; i < sizeof(g) / sizeof(g[0]); i++)
		if (g[i].is != g[i].expected)
			return refuse(err, err_len,
			              "policy block: %s is %u, expected %u: built for another sparsekv",
			              g[i].name, g[i].is, g[i].expected);
	return 0;
}

static int check_identity(const struct skv_policy *p, char *err, size_t err_len)
{
	const struct {
		const char *name;
		uint32_t is, most;
	} taxonomy[] = {
	        {"action", p->action, SKV_ACT_COMPRESS},
	        {"granularity", p->granularity, SKV_GRAN_PAGE},
	        {"evidence", p->evidence, SKV_EVID_WEIGHTS},
	        {"scope", p->scope, SKV_SCOPE_LAYER},
	        {"sharing", p->sharing, SKV_SHARE_Q_HEAD},
	};

	if (!p->name || !only_of(p->name, WORD "-", SKV_NAME_MAX))
		return refuse(err, err_len,
		              "policy block: name is \"%.70s\", expected 1 to %u of a-z, 0-9, _ and -",
		              p->name ? p->name : "", SKV_NAME_MAX - 1);
	if (!p->version || !one_line(p->version, SKV_NAME_MAX))
		return refuse(err, err_len, "%s: version, expected 1 to %u printable ASCII characters",
		              p->name, SKV_NAME_MAX - 1);
	if (!p->summary || !one_line(p->summary, SKV_POLICY_MAX_TEXT))
		return refuse(err, err_len,
		              "%s: summary, expected one line of 1 to %u printable ASCII characters", p->name,
		              SKV_POLICY_MAX_TEXT - 1);
	for (size_t i = 0; i < sizeof(taxonomy) / sizeof(taxonomy[0]); i++)
		if (taxonomy[i].is > taxonomy[i].most)
			return refuse(err, err_len, "%s: %s is %u, expected 0 to %u", p->name,
			              taxonomy[i].name, taxonomy[i].is, taxonomy[i].most);
	if (!p->plan)
		return refuse(err, err_len, "%s: plan is NULL, expected a function", p->name);
	return 0;
}

/*
 * Returns the bytes, and in *ret_align the alignment, of a parameter's value in the config. Returns 0 for an unknown
 * parameter type.
 */
static size_t param_bytes(uint32_t type, size_t *ret_align)
{
	switch (type) {
	case SKV_PARAM_BUDGET:
		*ret_align = alignof(struct skv_budget);
		return sizeof(struct skv_budget);
	case SKV_PARAM_UINT:
	case SKV_PARAM_BOOL:
	case SKV_PARAM_CHOICE:
		*ret_align = alignof(uint32_t);
		return sizeof(uint32_t);
	case SKV_PARAM_FLOAT:
		*ret_align = alignof(float);
		return sizeof(float);
	case SKV_PARAM_LAYERS:
		*ret_align = alignof(struct skv_layer_set);
		return sizeof(struct skv_layer_set);
	case SKV_PARAM_PROFILE:
		*ret_align = alignof(struct skv_profile);
		return sizeof(struct skv_profile);
	case SKV_PARAM_CODEC:
		*ret_align = alignof(struct skv_codec_file);
		return sizeof(struct skv_codec_file);
	default:
		return 0;
	}
}

static int check_param(const struct skv_policy *p, uint32_t i, char *err, size_t err_len)
{
	const struct skv_param *q = &p->params[i];
	size_t align = 1, bytes = param_bytes(q->type, &align), other_align;

	if (!q->name || !only_of(q->name, WORD, SKV_NAME_MAX))
		return refuse(err, err_len, "%s: parameter %u: name, expected 1 to %u of a-z, 0-9 and _",
		              p->name, i, SKV_NAME_MAX - 1);
	if (!q->help || !one_line(q->help, SKV_POLICY_MAX_TEXT))
		return refuse(err, err_len,
		              "%s: parameter %s: help, expected 1 to %u printable ASCII characters", p->name, q->name,
		              SKV_POLICY_MAX_TEXT - 1);
	if (!bytes)
		return refuse(err, err_len, "%s: parameter %s: type is %u, expected %u to %u", p->name,
		              q->name, q->type, SKV_PARAM_BUDGET, SKV_PARAM_CODEC);
	if (q->offset % align || bytes > p->config_size || q->offset > p->config_size - bytes)
		return refuse(err, err_len,
		              "%s: parameter %s: offset is %u, expected a multiple of %zu within the "
		              "%u bytes of the config",
		              p->name, q->name, q->offset, align, p->config_size);
	for (uint32_t j = 0; j < i; j++) {
		const struct skv_param *o = &p->params[j];

		if (!strcmp(o->name, q->name))
			return refuse(err, err_len, "%s: parameter %s: is there twice", p->name, q->name);
		if (o->type == SKV_PARAM_CODEC && q->type == SKV_PARAM_CODEC)
			return refuse(err, err_len, "%s: parameters %s and %s: two compressors, expected one at most", p->name,
			              o->name, q->name);
		if (q->offset < o->offset + param_bytes(o->type, &other_align) &&
		    o->offset < q->offset + bytes)
			return refuse(err, err_len, "%s: parameter %s: offset %u is inside parameter %s",
			              p->name, q->name, q->offset, o->name);
	}
	return 0;
}

static int check_default(const struct skv_policy *p, const struct skv_param *q, char *err, size_t err_len)
{
	/*
	 * room for a default value of any type that is parsed here; the offset is set to 0, because skv_spec_value()
	 * adds it
	 */
	struct skv_layer_set scratch;
	struct skv_param at_zero = *q;
	const char *expected;

	if (q->type == SKV_PARAM_CHOICE) {
		if (q->def && skv_spec_words(q->def))
			return 0;
		return refuse(err, err_len, "%s: parameter %s: its choices are \"%.40s\", expected words such as "
		              "paper,eval, each once", p->name, q->name, q->def ? q->def : "");
	}
	if (q->type == SKV_PARAM_PROFILE || q->type == SKV_PARAM_CODEC) {
		const char *only = q->type == SKV_PARAM_PROFILE ? "none" : "auto";

		if (q->def && !strcmp(q->def, only))
			return 0;
		return refuse(err, err_len, "%s: parameter %s: default is \"%.40s\", expected %s", p->name, q->name,
		              q->def ? q->def : "", only);
	}
	at_zero.offset = 0;
	expected = q->def ? skv_spec_value(&at_zero, q->def, &scratch) : NULL;
	if (expected)
		return refuse(err, err_len, "%s: parameter %s: default is \"%.40s\", expected %s", p->name,
		              q->name, q->def, expected);
	return 0;
}

int skv_policy_check(const struct skv_policy *p, char *err, size_t err_len)
{
	int r = check_geometry(p, err, err_len);

	if (r == 0)
		r = check_identity(p, err, err_len);
	if (r < 0)
		return r;
	if (p->n_params > SKV_POLICY_MAX_PARAMS || (p->n_params && !p->params))
		return refuse(err, err_len, "%s: n_params is %u%s, expected a table of at most %u", p->name,
		              p->n_params, p->params ? "" : " and params NULL", SKV_POLICY_MAX_PARAMS);
	if (p->config_size > CONFIG_MAX)
		return refuse(err, err_len, "%s: config_size is %u, expected at most %u", p->name,
		              p->config_size, CONFIG_MAX);
	for (uint32_t i = 0; i < p->n_params && r == 0; i++) {
		r = check_param(p, i, err, err_len);
		if (r == 0)
			r = check_default(p, &p->params[i], err, err_len);
	}
	return r;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Reads exactly `bytes` bytes of the plugin file from offset `at`. Returns 0, or a negative errno with a text. */
static int read_part(int fd, void *to, size_t bytes, uint64_t at, char *err, size_t err_len)
{
	const ssize_t n = pread(fd, to, bytes, (off_t)at);
	const int lacks = n < 0 ? -errno : 0;
	int r;

	if (n == (ssize_t)bytes)
		return 0;
	r = refuse(err, err_len, "plugin: %s", n < 0 ? strerror(-lacks) : "the file is truncated: its headers are not all there");
	return skv_is_shortage(lacks) ? lacks : r;
}

/*
 * Detects a truncated plugin file by its ELF headers. The dynamic loader does not notice: it maps the ranges that the
 * headers name, and access to a range beyond the end of the file raises SIGBUS.
 */
static int check_file(int fd, char *err, size_t err_len)
{
	Elf64_Ehdr h = {0};
	struct stat st;
	uint64_t size;
	int r;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return refuse(err, err_len, "plugin: not a regular file");
	size = (uint64_t)st.st_size;
	r = size < sizeof(h) ? 0 : read_part(fd, &h, sizeof(h), 0, err, err_len);
	if (r < 0)
		return r;
	if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
	    h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_type != ET_DYN || h.e_phentsize != sizeof(Elf64_Phdr))
		return refuse(err, err_len, "plugin: not a 64-bit ELF shared object");
	if (h.e_shoff > size || (uint64_t)h.e_shnum * h.e_shentsize > size - h.e_shoff || h.e_phoff > size)
		return refuse(err, err_len,
		              "plugin: the file is truncated: its headers end beyond its %llu bytes",
		              (unsigned long long)size);
	for (unsigned i = 0; i < h.e_phnum; i++) {
		Elf64_Phdr ph;

		r = read_part(fd, &ph, sizeof(ph), h.e_phoff + i * sizeof(ph), err, err_len);
		if (r < 0)
			return r;
		if (ph.p_type == PT_LOAD && (ph.p_offset > size || ph.p_filesz > size - ph.p_offset))
			return refuse(err, err_len,
			              "plugin: the file is truncated: a segment ends beyond its %llu bytes",
			              (unsigned long long)size);
	}
	return 0;
}

/*
 * Returns a path of fd that no earlier call has returned. The dynamic loader takes two objects with the same path for
 * one, but the number of a closed fd is soon reused for another file. So each call spells the path under /proc/self/fd
 * differently: every bit of a counter becomes "//" or "/.".
 */
static void unique_path(int fd, char *to, size_t len)
{
	static _Atomic uint32_t counter;
	uint32_t n = atomic_fetch_add(&counter, 1);
	char bits[65] = "";

	for (unsigned i = 0; i < 32; i++)
		memcpy(bits + 2 * i, n >> i & 1 ? "//" : "/.", 2);
	bits[64] = '\0';
	snprintf(to, len, "/proc/self/fd%s/%d", bits, fd);
}

int skv_policy_dlopen(int fd, const struct skv_policy **ret, void **ret_handle, char *err, size_t err_len)
{
	const struct skv_policy *(*entry)(void);
	const struct skv_policy *p;
	char path[128];
	void *handle;
	int r = check_file(fd, err, err_len);

	if (r < 0)
		return r;
	unique_path(fd, path, sizeof(path));
	errno = 0;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		/* if errno says that memory or descriptors were short, the file may still be valid */
		const int lacks = -errno;
		const char *text = dlerror();
		size_t n = strlen(path);

		/* leave out the path under /proc/self/fd, which tells users nothing */
		if (text && !strncmp(text, path, n))
			text += n + strspn(text + n, ": ");
		r = refuse(err, err_len, "plugin: %s", text ? text : "cannot be loaded");
		return skv_is_shortage(lacks) ? lacks : r;
	}
	entry = (const struct skv_policy *(*)(void))dlsym(handle, SKV_POLICY_SYMBOL);
	if (!entry) {
		r = refuse(err, err_len, "plugin: it does not export %s()", SKV_POLICY_SYMBOL);
	} else if (!(p = entry())) {
		r = refuse(err, err_len, "plugin: %s() returned NULL", SKV_POLICY_SYMBOL);
	} else if ((r = skv_policy_check(p, err, err_len)) == 0) {
		*ret = p;
		*ret_handle = handle;
		return 0;
	}
	dlclose(handle);
	return r;
}
