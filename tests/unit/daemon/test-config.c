/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: their sources, their valid values, and the error messages. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/sys/config.h"
#include "daemon/sys/log.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static char file[64]; /* in memory: thousands of files on a disk take their time */
static int fd;
static char err[SKV_CONFIG_ERR];
static struct skv_config config;

static void setup(void)
{
	fd = memfd_create("config", MFD_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	snprintf(file, sizeof(file), "/proc/self/fd/%d", fd);
	memset(err, 0, sizeof(err));
}

static void teardown(void)
{
	close(fd);
}

static void write_bytes(const void *text, size_t len)
{
	FILE *f = fopen(file, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(text, 1, len, f), len);
	fclose(f);
}

static int load(const char *text, char *const *options)
{
	struct skv_config_sources from = {.file = file, .options = options};

	write_bytes(text, strlen(text));
	return skv_config_load(&from, &config, err);
}

/* Loading fails with this text after "FILE:". */
static void refuse(const char *text, const char *words)
{
	struct skv_config before;
	char expected[512];

	memset(&config, 0x5a, sizeof(config));
	before = config;
	ck_assert_int_eq(load(text, NULL), -EINVAL);
	snprintf(expected, sizeof(expected), "%s:%s", file, words);
	ck_assert_str_eq(err, expected);
	ck_assert_mem_eq(&config, &before, sizeof(config)); /* unchanged after an error */
}

START_TEST(values_are_read)
{
	ck_assert_int_eq(load("# a comment\n"
	                      "\n"
	                      "  pool-bytes =  2G  \n"
	                      "segment-bytes=512K\n"
	                      "account-clients = 7\n"
	                      "\tsocket = /tmp/a b\t\n"
	                      "socket-mode = 0660\n"
	                      "probe-timeout = 9\n"
	                      "operator-group = 0\n"
	                      "log-level = warning", /* no newline at the end */
	                      NULL),
	                 0);
	ck_assert_uint_eq(config.pool_bytes, 2147483648u);
	ck_assert_uint_eq(config.segment_bytes, 512 * 1024);
	ck_assert_uint_eq(config.account_clients, 7);
	ck_assert_str_eq(config.socket, "/tmp/a b");
	ck_assert_uint_eq(config.socket_mode, 0660);
	ck_assert_uint_eq(config.probe_timeout, 9000000000u);
	ck_assert_str_eq(config.operator_group, "0");
	ck_assert_int_eq(config.log_level, LOG_WARNING);
	ck_assert_uint_eq(config.max_clients, 1024); /* a default */
	ck_assert_int_eq(load("cuda = required\n"
	                      "ipc = legacy\n"
	                      "cuda-pool-bytes = 80%\n"
	                      "account-cuda-bytes = 1T\n",
	                      NULL),
	                 0);
	ck_assert_int_eq(config.cuda, SKV_CUDA_REQUIRED);
	ck_assert_int_eq(config.ipc, SKV_IPC_LEGACY);
	ck_assert_uint_eq(config.cuda_pool_bytes, 80);
	ck_assert_uint_eq(config.account_cuda_bytes, (uint64_t)1 << 40);
}
END_TEST

#define A_SHARE "1% to 100% of the device's memory, or bytes from 2M to 64T"

#define A_SIZE "bytes from 1M to 64T, as a number with or without K, M, G or T"

START_TEST(what_is_wrong_is_named_with_file_and_line)
{
	refuse("pool-bytes = lots\n",
	       "1: pool-bytes: got \"lots\", expected " A_SIZE);
	refuse("\n\npool-bytes = 1K\n",
	       "3: pool-bytes: got \"1K\", expected " A_SIZE);
	refuse("pool-bytes = 16777216T\n",
	       "1: pool-bytes: got \"16777216T\", expected " A_SIZE);
	refuse("pool-bytes = 5Mb\n",
	       "1: pool-bytes: got \"5Mb\", expected " A_SIZE);
	refuse("pool-bytes = -5\n",
	       "1: pool-bytes: got \"-5\", expected " A_SIZE);
	refuse("account-clients = 1.5\n",
	       "1: account-clients: got \"1.5\", expected a whole number from 1 to 65535");
	refuse("account-clients = \n",
	       "1: account-clients: got \"\", expected a whole number from 1 to 65535");
	refuse("probe-timeout = 0\n",
	       "1: probe-timeout: got \"0\", expected seconds, a whole number from 1 to 600");
	refuse("socket-mode = 0888\n",
	       "1: socket-mode: got \"0888\", expected permissions in octal, from 0 to 0777");
	refuse("socket-mode = 1777\n",
	       "1: socket-mode: got \"1777\", expected permissions in octal, from 0 to 0777");
	refuse("log-level = loud\n",
	       "1: log-level: got \"loud\", expected critical, error, warning, notice, info or debug");
	refuse("operator-group = no such group\n",
	       "1: operator-group: got \"no such group\", expected a group that exists, by name or number");
	refuse("cuda = yes\n", "1: cuda: got \"yes\", expected auto, off or required");
	refuse("ipc = fd\n", "1: ipc: got \"fd\", expected vmm or legacy");
	refuse("cuda-pool-bytes = 0%\n", "1: cuda-pool-bytes: got \"0%\", expected " A_SHARE);
	refuse("cuda-pool-bytes = 101%\n", "1: cuda-pool-bytes: got \"101%\", expected " A_SHARE);
	refuse("cuda-pool-bytes = 90\n", "1: cuda-pool-bytes: got \"90\", expected " A_SHARE);
	refuse("cuda-pool-bytes = 5%%\n", "1: cuda-pool-bytes: got \"5%%\", expected " A_SHARE);
	refuse("socket =\n", "1: socket: got \"\", expected a text of at most 107 bytes, not empty");
	refuse("# fine\nbogus = 1\n", "2: bogus: there is no such setting; --help-config lists them");
	refuse("pool-bytes\n", "1: got \"pool-bytes\", expected \"key = value\", or '#' and a comment");
	refuse("max-clients = 3\nmax-clients = 3\n",
	       "2: max-clients: is set twice in this file, expected once");
}
END_TEST

START_TEST(settings_must_fit_together)
{
	ck_assert_int_eq(load("pool-bytes = 1M\nsegment-bytes = 2M\n", NULL), -EINVAL);
	ck_assert_str_eq(err, "pool-bytes: got 1048576, expected at least segment-bytes (2097152)");
}
END_TEST

START_TEST(a_nul_byte_is_refused)
{
	struct skv_config_sources from = {.file = file};
	static const char text[] = "max-clients = 3\n\0\n";
	char expected[128];

	write_bytes(text, sizeof(text) - 1);
	ck_assert_int_eq(skv_config_load(&from, &config, err), -EINVAL);
	snprintf(expected, sizeof(expected), "%s:2: got a NUL byte, expected text", file);
	ck_assert_str_eq(err, expected);
}
END_TEST

START_TEST(options_go_before_the_file)
{
	char *const options[] = {(char *)"--max-clients=9", (char *)"--socket=/x=y", NULL};
	char *const bad[] = {(char *)"--max-clients=0", NULL};

	ck_assert_int_eq(load("max-clients = 3\nmax-pools = 4\n", options), 0);
	ck_assert_uint_eq(config.max_clients, 9);
	ck_assert_uint_eq(config.max_pools, 4);
	ck_assert_str_eq(config.socket, "/x=y");
	ck_assert_int_eq(load("", bad), -EINVAL);
	ck_assert_str_eq(err, "--max-clients: got \"0\", expected a whole number from 1 to 65535");
}
END_TEST

START_TEST(a_file_that_was_named_must_be_there)
{
	struct skv_config_sources named = {.file = "/nonexistent/sparsekvd.conf"}, folder = {.file = "/tmp"};

	ck_assert_int_eq(skv_config_load(&named, &config, err), -ENOENT);
	ck_assert_str_eq(err, "/nonexistent/sparsekvd.conf: No such file or directory");
	ck_assert_int_eq(skv_config_load(&folder, &config, err), -EISDIR);
	ck_assert_str_eq(err, "/tmp: Is a directory");
}
END_TEST

/* The output of --help-config is a configuration file: with the '#' before settings removed, it gives the defaults. */
START_TEST(the_printed_file_is_the_defaults)
{
	struct skv_config_sources from = {.file = file};
	struct skv_config defaults;
	char *text = NULL, *line, *rest;
	size_t len;
	FILE *f = open_memstream(&text, &len);
	unsigned settings = 0;

	ck_assert_int_eq(load("", NULL), 0);
	defaults = config;
	skv_config_help_file(f);
	fclose(f);
	ck_assert_int_eq(load(text, NULL), 0);
	ck_assert_mem_eq(&config, &defaults, sizeof(config));

	f = fopen(file, "w");
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		ck_assert_uint_le(strlen(line), 512);
		if (line[0] == '#' && line[1] != ' ') {
			fprintf(f, "%s\n", line + 1);
			settings++;
		}
	}
	fclose(f);
	free(text);
	ck_assert_uint_ge(settings, 20);
	memset(&config, 0, sizeof(config));
	ck_assert_msg(skv_config_load(&from, &config, err) == 0, "%s", err);
	ck_assert_mem_eq(&config, &defaults, sizeof(config));
}
END_TEST

START_TEST(help_names_every_setting)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	skv_config_help(f);
	fclose(f);
	for (const char *p = text; (p = strstr(p, "\n  --")); p++)
		ck_assert(skv_config_known(p + 5, strcspn(p + 5, "=")));
	ck_assert(skv_config_known("pool-bytes", 10));
	ck_assert(!skv_config_known("pool-byte", 9));
	ck_assert(!skv_config_known("pool-bytess", 11));
	free(text);
}
END_TEST

START_TEST(what_is_fixed_at_start_is_kept)
{
	struct skv_config now;
	char kept[128];

	ck_assert_int_eq(load("max-clients = 3\naccount-clients = 3\nsocket = /a\nlog-level = info\n", NULL),
	                 0);
	now = config;
	ck_assert_int_eq(load("max-clients = 4\naccount-clients = 4\nsocket = /b\nlog-level = debug\n", NULL),
	                 0);
	skv_config_apply(&now, &config, kept, sizeof(kept));
	ck_assert_str_eq(kept, "socket, max-clients");
	ck_assert_str_eq(now.socket, "/a");
	ck_assert_uint_eq(now.max_clients, 3);
	ck_assert_uint_eq(now.account_clients, 4);
	ck_assert_int_eq(now.log_level, LOG_DEBUG);
	skv_config_apply(&now, &now, kept, sizeof(kept));
	ck_assert_str_eq(kept, "");
}
END_TEST

START_TEST(groups_have_names_and_numbers)
{
	gid_t gid;

	ck_assert_int_eq(skv_config_group("root", &gid), 0);
	ck_assert_uint_eq(gid, 0);
	ck_assert_int_eq(skv_config_group("1234", &gid), 0);
	ck_assert_uint_eq(gid, 1234);
	ck_assert_int_eq(skv_config_group("no such group", &gid), 1);
	ck_assert_int_eq(skv_config_group("12x", &gid), -EINVAL);
	ck_assert_int_eq(skv_config_group("4294967295", &gid), -EINVAL); /* -1: no group */
}
END_TEST

/* Any bytes in the file give a configuration, or one line that says what is wrong. */
START_TEST(any_bytes_give_a_configuration_or_a_reason)
{
	static const char *const words[] = {"pool-bytes",
	                                    "=",
	                                    " ",
	                                    "\n",
	                                    "\n",
	                                    "#",
	                                    "1",
	                                    "G",
	                                    "18446744073709551615",
	                                    "socket",
	                                    "log-level",
	                                    "debug",
	                                    "operator-group",
	                                    "\t",
	                                    "-",
	                                    "0x10",
	                                    "\r"};
	unsigned good = 0, bad = 0;

	for (int i = 0; i < 20000; i++) {
		struct skv_config_sources from = {.file = file};
		char text[256];
		size_t len = 0;

		for (uint32_t n = rnd_below(16); n; n--) {
			const char *w = words[rnd_below(sizeof(words) / sizeof(words[0]))];

			if (rnd_below(20) == 0)
				rnd_bytes(text + len++, 1);
			memcpy(text + len, w, strlen(w));
			len += strlen(w);
			if (len > 200)
				break;
		}
		write_bytes(text, len);
		memset(err, 0, sizeof(err));
		if (skv_config_load(&from, &config, err) == 0) {
			good++;
			ck_assert_str_eq(err, "");
		} else {
			bad++;
			ck_assert_ptr_nonnull(strchr(err, ':'));
		}
	}
	ck_assert_uint_gt(good, 100);
	ck_assert_uint_gt(bad, 100);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-config");

	add_case(s, "config", 30, setup, teardown, values_are_read, what_is_wrong_is_named_with_file_and_line,
	         settings_must_fit_together, a_nul_byte_is_refused, options_go_before_the_file,
	         a_file_that_was_named_must_be_there, the_printed_file_is_the_defaults,
	         help_names_every_setting, what_is_fixed_at_start_is_kept, groups_have_names_and_numbers,
	         any_bytes_give_a_configuration_or_a_reason, NULL);
	return run_suite(s);
}
