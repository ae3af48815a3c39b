/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/config.c - the table of settings, and the functions that read, check and print settings by this table. See
 * config.h.
 */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "common/wire.h"
#include "daemon/sys/config.h"
#include "daemon/sys/log.h"

enum type { TEXT, GROUP, SIZE, SHARE, COUNT, SECONDS, MODE, LEVEL, CUDA, IPC };

/* Values of the settings of types CUDA and IPC, in the order of enum skv_config_cuda and enum skv_config_ipc. */
static const char *const cuda_words[] = {"auto", "off", "required", NULL};
static const char *const ipc_words[] = {"vmm", "legacy", NULL};

struct row {
	const char *name;
	enum type type;
	size_t offset;
	const char *def;
	uint64_t min, max;
	bool fixed; /* takes effect only at the start of the daemon */
	const char *help;
};

#define AT(field) offsetof(struct skv_config, field)
#define K ((uint64_t)1 << 10)
#define M ((uint64_t)1 << 20)
#define T ((uint64_t)1 << 40)

static const struct row rows[] = {
	{"socket", TEXT, AT(socket), SKV_DEFAULT_SOCKET, 1, 107, true,
	 "The socket to listen on. Under socket activation the unit's socket is used instead."},
	{"socket-mode", MODE, AT(socket_mode), "0666", 0, 0777, true,
	 "Permissions of the socket. Everyone may connect by default: accounts have quotas."},
	{"socket-group", GROUP, AT(socket_group), "", 0, 0, true,
	 "Group that owns the socket. Empty: the daemon's own."},
	{"operator-group", GROUP, AT(operator_group), "", 0, 0, true,
	 "Group that owns the operators' socket, whose users may load and swap policies and drop sequences of "
	 "others. Empty: it is the daemon's user's and root's alone. Under socket activation the unit says who."},
	{"policy-path", TEXT, AT(policy_path), SKV_POLICYDIR, 0, SKV_CONFIG_TEXT - 1, false,
	 "Directories of policy plugins, separated by ':'. Every *.so in them is loaded at start; of two "
	 "policies of one name the first counts."},
	{"probe-timeout", SECONDS, AT(probe_timeout), "5", 1, 600, false,
	 "Seconds that the probe of a policy plugin may take."},
	{"max-policies", COUNT, AT(max_policies), "64", 1, 1024, false,
	 "Policy files kept, replaced ones that sessions still run included."},

	{"recall-every", COUNT, AT(recall_every), "256", 0, 1000000000, false,
	 "Steps of a session for each one in which it measures the recall of its policy's selections; 0: never."},

	{"pool-bytes", SIZE, AT(pool_bytes), "8G", 1 * M, 64 * T, false,
	 "Limit of the host memory of all KV pools together. It is allocated as it is needed."},
	{"segment-bytes", SIZE, AT(segment_bytes), "64M", 64 * K, 16 * 1024 * M, true,
	 "Size of a segment, the unit in which pools get host memory."},
	{"account-bytes", SIZE, AT(account_bytes), "8G", 64 * K, 64 * T, false,
	 "Quota of one user: bytes of host memory, pages and what comes with them."},
	{"cuda", CUDA, AT(cuda), "auto", 0, 0, true,
	 "Memory of CUDA devices: for models that ask for it (auto), never, or looked for at start, which "
	 "then fails where there is none (required)."},
	{"cuda-pool-bytes", SHARE, AT(cuda_pool_bytes), "90%", 2 * M, 64 * T, false,
	 "Limit of the memory of all KV pools on one device. It is allocated as it is needed."},
	{"cuda-segment-bytes", SIZE, AT(cuda_segment_bytes), "64M", 2 * M, 16 * 1024 * M, true,
	 "Size of a segment of device memory."},
	{"account-cuda-bytes", SHARE, AT(account_cuda_bytes), "100%", 2 * M, 64 * T, false,
	 "Quota of one user: bytes of pages on one device. account-bytes is for host memory."},
	{"ipc", IPC, AT(ipc), "vmm", 0, 0, true,
	 "How memory of a device reaches engines: as file descriptors (vmm), or as the handles of "
	 "cudaIpcGetMemHandle where the platform has no such descriptors (legacy). A worker process owns "
	 "it then, and when that dies the sequences there are lost."},
	{"cuda-worker-timeout", SECONDS, AT(cuda_worker_timeout), "10", 1, 600, false,
	 "Seconds that the worker process of a device may take to start and for one segment."},
	{"cuda-worker-idle", SECONDS, AT(cuda_worker_idle), "30", 1, 86400, false,
	 "Seconds without work after which it ends, and gives back what its context takes of the device."},
	{"account-clients", COUNT, AT(account_clients), "64", 1, SKV_CONFIG_MOST_ROWS, false,
	 "Connections of one user."},
	{"account-sequences", COUNT, AT(account_sequences), "4096", 1, SKV_CONFIG_MOST_ROWS, false,
	 "Sequences of one user, detached ones included."},
	{"sequence-ttl", SECONDS, AT(sequence_ttl), "0", 0, 1000000000, false,
	 "Seconds after which a named sequence that no client holds is dropped; 0: it is kept."},
	{"parked-path", TEXT, AT(parked_path), "", 0, SKV_CONFIG_TEXT - 1, true,
	 "Folder for parked sequences: files that outlive the machine's memory. It must exist, and be the daemon's "
	 "alone. Empty: sequences are not parked, and under pressure dropped."},
	{"account-parked-bytes", SIZE, AT(account_parked_bytes), "256G", 0, 1024 * T, false,
	 "Quota of one user: bytes of the files of parked sequences."},
	{"park-after", SECONDS, AT(park_after), "0", 0, 1000000000, false,
	 "Seconds after which a named sequence that no client holds is parked; 0: only when its memory is needed, or "
	 "an operator says so."},
	{"disk-timeout", SECONDS, AT(disk_timeout), "60", 1, 86400, false,
	 "Seconds that the disk may say nothing while a sequence is written to it or read."},
	{"prefix-store", TEXT, AT(prefix_store), "", 0, SKV_CONFIG_TEXT - 1, true,
	 "Redis or Valkey, where daemons share sealed prefixes: redis://, rediss:// or unix://. Empty: they stay "
	 "here."},
	{"prefix-store-nixl", TEXT, AT(prefix_store_nixl), "", 0, SKV_CONFIG_TEXT - 1, true,
	 "NIXL's library, libnixl_capi.so: daemons that share a store read values from each other's memory. Empty: the "
	 "store has them all."},
	{"prefix-store-nixl-window", SIZE, AT(prefix_store_nixl_window), "1G", M, 1024 * T, true,
	 "Memory for values that others read by NIXL; the oldest make room for new ones. It is no part of pool-bytes."},
	{"prefix-secret-file", TEXT, AT(prefix_secret_file), "", 0, SKV_CONFIG_TEXT - 1, true,
	 "File with the secret of all daemons that share a store: 32 random bytes or more, which keys and values of "
	 "prefixes follow from."},
	{"prefix-store-ttl", SECONDS, AT(prefix_store_ttl), "86400", 0, 1000000000, false,
	 "Seconds after which the store forgets what was sent to it; 0: when it has no room."},
	{"prefix-store-wait", SECONDS, AT(prefix_store_wait), "5", 1, 600, false,
	 "Seconds that a new sequence waits for a prefix from disk and from the store. What has not come by then is "
	 "computed."},
	{"account-pools", COUNT, AT(account_pools), "8", 1, 64, false,
	 "Page sizes (shapes of model) that one user may have in use at a time; on each device anew."},
	{"client-sessions", COUNT, AT(client_sessions), "16", 1, 4096, false,
	 "Sessions (opened models) of one connection."},
	{"max-clients", COUNT, AT(max_clients), "1024", 1, SKV_CONFIG_MOST_ROWS, true,
	 "Connections of all users together."},
	{"max-sessions", COUNT, AT(max_sessions), "4096", 1, SKV_CONFIG_MOST_ROWS, true,
	 "Sessions of all users together."},
	{"max-sequences", COUNT, AT(max_sequences), "16384", 1, SKV_CONFIG_MOST_ROWS, true,
	 "Sequences of all users together."},
	{"max-pools", COUNT, AT(max_pools), "64", 1, 1024, true, "Pools: one a user, device and page size."},

	{"hello-timeout", SECONDS, AT(hello_timeout), "5", 1, 600, false,
	 "Seconds that a connection may take to say its first word."},
	{"log-level", LEVEL, AT(log_level), "info", 0, 0, false,
	 "What is logged: error, warning, notice, info or debug, and what is worse."},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static const struct row *find(const char *name, size_t len)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (strlen(rows[i].name) == len && !memcmp(rows[i].name, name, len))
			return &rows[i];
	return NULL;
}

bool skv_config_known(const char *name, size_t len)
{
	return find(name, len) != NULL;
}

int skv_config_group(const char *name, gid_t *ret)
{
	char *end;
	unsigned long n;
	struct group *g;

	if (!isdigit((unsigned char)*name)) {
		g = getgrnam(name);
		if (!g)
			return 1;
		*ret = g->gr_gid;
		return 0;
	}
	errno = 0;
	n = strtoul(name, &end, 10);
	if (*end || errno || n >= UINT32_MAX)
		return -EINVAL;
	*ret = (gid_t)n;
	return 0;
}

/* ---- one value ---- */

/*
 * Parses a whole text as digits in `base` and an optional suffix, one of the letters in `units`, each of which means
 * 1024 times the one before it.
 */
static bool parse_number(const char *value, int base, const char *units, uint64_t *ret)
{
	const char *unit;
	char *end;
	uint64_t x;

	if (!isdigit((unsigned char)*value))
		return false;
	errno = 0;
	x = strtoull(value, &end, base);
	if (errno)
		return false;
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit || end[1])
			return false;
		for (const char *u = units; u <= unit; u++) {
			if (x > UINT64_MAX / 1024)
				return false;
			x *= 1024;
		}
	}
	*ret = x;
	return true;
}

static void print_size(char *to, size_t len, uint64_t x)
{
	const char *units = "KMGT";
	int u = -1;

	while (x && x % 1024 == 0 && u < 3) {
		x /= 1024;
		u++;
	}
	snprintf(to, len, u < 0 ? "%llu" : "%llu%c", (unsigned long long)x, u < 0 ? 0 : units[u]);
}

/*
 * Parses a size in bytes, or a percentage of a size that is known later. For N%, *ret is N, which is below any valid
 * size.
 */
static bool parse_share(const struct row *row, const char *value, uint64_t *ret)
{
	char *end;
	unsigned long percent;

	if (!strchr(value, '%'))
		return parse_number(value, 10, "KMGT", ret) && *ret >= row->min && *ret <= row->max;
	if (!isdigit((unsigned char)*value))
		return false;
	percent = strtoul(value, &end, 10);
	*ret = percent;
	return !strcmp(end, "%") && percent >= 1 && percent <= 100;
}

static bool parse_word(const char *const *words, const char *value, int *ret)
{
	for (int i = 0; words[i]; i++)
		if (!strcmp(words[i], value)) {
			*ret = i;
			return true;
		}
	return false;
}

static void print_expected(const struct row *row, char *to, size_t len)
{
	char lo[24], hi[24];

	switch (row->type) {
	case TEXT:
		snprintf(to, len, "a text of at most %u bytes%s", (unsigned)row->max,
		         row->min ? ", not empty" : "");
		break;
	case GROUP:
		snprintf(to, len, "a group that exists, by name or number");
		break;
	case SIZE:
		print_size(lo, sizeof(lo), row->min);
		print_size(hi, sizeof(hi), row->max);
		snprintf(to, len, "bytes from %s to %s, as a number with or without K, M, G or T", lo, hi);
		break;
	case SHARE:
		print_size(lo, sizeof(lo), row->min);
		print_size(hi, sizeof(hi), row->max);
		snprintf(to, len, "1%% to 100%% of the device's memory, or bytes from %s to %s", lo, hi);
		break;
	case CUDA:
		snprintf(to, len, "auto, off or required");
		break;
	case IPC:
		snprintf(to, len, "vmm or legacy");
		break;
	case COUNT:
		snprintf(to, len, "a whole number from %u to %u", (unsigned)row->min, (unsigned)row->max);
		break;
	case SECONDS:
		snprintf(to, len, "seconds, a whole number from %u to %u", (unsigned)row->min,
		         (unsigned)row->max);
		break;
	case MODE:
		snprintf(to, len, "permissions in octal, from 0 to 0777");
		break;
	case LEVEL:
		snprintf(to, len, "critical, error, warning, notice, info or debug");
		break;
	}
}

static bool set(const struct row *row, const char *value, struct skv_config *c)
{
	void *at = (char *)c + row->offset;
	uint64_t x = 0;
	gid_t gid;

	switch (row->type) {
	case GROUP:
		if (strlen(value) >= SKV_CONFIG_TEXT || (*value && skv_config_group(value, &gid) != 0))
			return false;
		/* strncpy() fills the rest with zeros, since settings are compared as bytes */
		strncpy(at, value, SKV_CONFIG_TEXT);
		return true;
	case TEXT:
		if (strlen(value) < row->min || strlen(value) > row->max)
			return false;
		strncpy(at, value, SKV_CONFIG_TEXT);
		return true;
	case LEVEL:
		*(int *)at = skv_log_level_parse(value);
		return *(int *)at >= 0;
	case SIZE:
		if (!parse_number(value, 10, "KMGT", &x) || x < row->min || x > row->max)
			return false;
		*(uint64_t *)at = x;
		return true;
	case SHARE:
		if (!parse_share(row, value, &x))
			return false;
		*(uint64_t *)at = x;
		return true;
	case CUDA:
		return parse_word(cuda_words, value, at);
	case IPC:
		return parse_word(ipc_words, value, at);
	case SECONDS:
		if (!parse_number(value, 10, "", &x) || x < row->min || x > row->max)
			return false;
		*(uint64_t *)at = x * 1000000000u;
		return true;
	case COUNT:
	case MODE:
		if (!parse_number(value, row->type == MODE ? 8 : 10, "", &x) || x < row->min || x > row->max)
			return false;
		*(uint32_t *)at = (uint32_t)x;
		return true;
	}
	return false;
}

/* Sets the setting of this name. `where` is "FILE:LINE: " or "--", the beginning of an error text. */
static int set_named(const char *where, const char *name, size_t name_len, const char *value,
                     struct skv_config *c, char err[SKV_CONFIG_ERR])
{
	const struct row *row = find(name, name_len);
	char expected[128];

	if (!row) {
		snprintf(err, SKV_CONFIG_ERR,
		         "%.512s%.*s: there is no such setting; --help-config lists them", where,
		         name_len < 64 ? (int)name_len : 64, name);
		return -EINVAL;
	}
	if (!set(row, value, c)) {
		print_expected(row, expected, sizeof(expected));
		snprintf(err, SKV_CONFIG_ERR, "%.512s%s: got \"%.256s\", expected %s", where, row->name,
		         value, expected);
		return -EINVAL;
	}
	return 0;
}

/* ---- files and options ---- */

static char *strip(char *s)
{
	char *end = s + strlen(s);

	while (end > s && isspace((unsigned char)end[-1]))
		end--;
	*end = 0;
	while (isspace((unsigned char)*s))
		s++;
	return s;
}

static int load_line(const char *file, unsigned number, char *line, struct skv_config *c, uint64_t *seen,
                     char err[SKV_CONFIG_ERR])
{
	char where[600], *key = strip(line), *value = strchr(key, '=');
	const struct row *row;
	int r;

	if (!*key || *key == '#')
		return 0;
	snprintf(where, sizeof(where), "%.500s:%u: ", file, number);
	if (!value) {
		snprintf(err, SKV_CONFIG_ERR,
		         "%sgot \"%.256s\", expected \"key = value\", or '#' and a comment", where, key);
		return -EINVAL;
	}
	*value = 0;
	key = strip(key);
	value = strip(value + 1);
	r = set_named(where, key, strlen(key), value, c, err);
	if (r < 0)
		return r;
	row = find(key, strlen(key));
	if (*seen & (uint64_t)1 << (row - rows)) {
		snprintf(err, SKV_CONFIG_ERR, "%s%s: is set twice in this file, expected once", where,
		         row->name);
		return -EINVAL;
	}
	*seen |= (uint64_t)1 << (row - rows);
	return 0;
}

static int load_file(const char *file, bool must_exist, struct skv_config *c, char err[SKV_CONFIG_ERR])
{
	FILE *f = fopen(file, "re");
	uint64_t seen = 0;
	unsigned number = 0;
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;
	int r = 0;

	if (!f && errno == ENOENT && !must_exist)
		return 0;
	if (!f) {
		r = -errno;
		snprintf(err, SKV_CONFIG_ERR, "%.512s: %s", file, strerror(errno));
		return r;
	}
	errno = 0;
	while (r == 0 && (len = getline(&line, &cap, f)) >= 0) {
		number++;
		if (strlen(line) != (size_t)len) {
			snprintf(err, SKV_CONFIG_ERR, "%.512s:%u: got a NUL byte, expected text", file,
			         number);
			r = -EINVAL;
		} else {
			r = load_line(file, number, line, c, &seen, err);
		}
	}
	if (r == 0 && ferror(f)) {
		r = errno ? -errno : -EIO;
		snprintf(err, SKV_CONFIG_ERR, "%.512s: %s", file, strerror(-r));
	}
	free(line);
	fclose(f);
	return r;
}

int skv_config_load(const struct skv_config_sources *from, struct skv_config *ret, char err[SKV_CONFIG_ERR])
{
	struct skv_config c = {0};
	int r = 0;

	_Static_assert(N_ROWS <= 64, "load_line keeps a bit a row");
	for (size_t i = 0; i < N_ROWS; i++)
		(void)set(&rows[i], rows[i].def, &c);
	r = load_file(from->file ? from->file : SKV_CONFIG_FILE, from->file != NULL, &c, err);
	for (char *const *o = from->options; r == 0 && o && *o; o++) {
		const char *key = *o + 2, *value = strchr(key, '=');

		r = set_named("--", key, (size_t)(value - key), value + 1, &c, err);
	}
	if (r == 0 && c.segment_bytes > c.pool_bytes) {
		snprintf(err, SKV_CONFIG_ERR, "pool-bytes: got %llu, expected at least segment-bytes (%llu)",
		         (unsigned long long)c.pool_bytes, (unsigned long long)c.segment_bytes);
		r = -EINVAL;
	}
	if (r == 0)
		*ret = c;
	return r;
}

static size_t width(enum type type)
{
	return type == TEXT || type == GROUP     ? SKV_CONFIG_TEXT
	       : type == SIZE || type == SHARE || type == SECONDS ? sizeof(uint64_t)
	                                                          : sizeof(uint32_t);
}

void skv_config_apply(struct skv_config *now, const struct skv_config *next, char *kept, size_t len)
{
	size_t n = 0;

	*kept = 0;
	for (size_t i = 0; i < N_ROWS; i++) {
		void *to = (char *)now + rows[i].offset;
		const void *from = (const char *)next + rows[i].offset;
		bool differs = memcmp(to, from, width(rows[i].type)) != 0;

		if (!rows[i].fixed)
			memcpy(to, from, width(rows[i].type));
		else if (differs && n < len)
			n += (size_t)snprintf(kept + n, len - n, "%s%s", n ? ", " : "", rows[i].name);
	}
}

/* ---- help ---- */

/* Prints `text` in lines of at most 80 columns, each of which begins with `indent`. */
static void wrap(FILE *to, const char *indent, const char *text)
{
	size_t room = 80 - strlen(indent);

	while (*text) {
		size_t n = strlen(text);

		if (n > room)
			for (n = room; n && text[n] != ' '; n--)
				;
		fprintf(to, "%s%.*s\n", indent, (int)n, text);
		text += n;
		while (*text == ' ')
			text++;
	}
}

void skv_config_help(FILE *to)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		fprintf(to, "  --%s=%s\n", rows[i].name, *rows[i].def ? rows[i].def : "\"\"");
		wrap(to, "        ", rows[i].help);
	}
}

void skv_config_help_file(FILE *to)
{
	fprintf(to,
	        "# %s: settings of sparsekvd(8), with their defaults. See sparsekvd.conf(5).\n"
	        "# A '#' at the start of a line makes it a comment. Sizes take K, M, G and T.\n",
	        SKV_CONFIG_FILE);
	for (size_t i = 0; i < N_ROWS; i++) {
		char expected[128];

		fputc('\n', to);
		wrap(to, "# ", rows[i].help);
		print_expected(&rows[i], expected, sizeof(expected));
		fprintf(to, "# Expected: %s.%s\n", expected,
		        rows[i].fixed ? " Takes effect at start only." : "");
		fprintf(to, "#%s = %s\n", rows[i].name, rows[i].def);
	}
}
