/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/sys/log.h"

#define PEER_BURST 20             /* maximum of lines about clients ... */
#define PEER_WINDOW 5000000000ull /* ... in this number of nanoseconds */

static struct {
	int level;
	bool journal;
	uint64_t window_start;
	unsigned in_window, left_out;
} the = {.level = LOG_INFO};

static const char *const names[] = {
	[LOG_CRIT] = "critical", [LOG_ERR] = "error", [LOG_WARNING] = "warning",
	[LOG_NOTICE] = "notice", [LOG_INFO] = "info", [LOG_DEBUG] = "debug",
};

const char *skv_log_level_name(int level)
{
	return level >= LOG_CRIT && level <= LOG_DEBUG ? names[level] : "?";
}

int skv_log_level_parse(const char *word)
{
	for (int i = LOG_CRIT; i <= LOG_DEBUG; i++)
		if (!strcmp(word, names[i]))
			return i;
	return -1;
}

void skv_log_open(int level)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	the.level = getenv("SPARSEKV_DEBUG") ? LOG_DEBUG : level;
	the.journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
	              fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

int skv_log_level(void)
{
	return the.level;
}

/*
 * Writes a log line with one write(), so that lines of several processes do not mix. Control characters become blanks.
 */
static void put(int level, const char *fmt, va_list ap)
{
	char line[2048];
	int n;

	n = the.journal ? snprintf(line, sizeof(line), "<%d>", level)
	                : snprintf(line, sizeof(line), "sparsekvd: %s: ", skv_log_level_name(level));
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	for (int i = 0; i < n; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = ' ';
	line[n] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n + 1) < 0)
		return; /* standard error has no reader any more, so the line is lost */
}

void skv_log(int level, const char *fmt, ...)
{
	va_list ap;

	if (level > the.level)
		return;
	va_start(ap, fmt);
	put(level, fmt, ap);
	va_end(ap);
}

void skv_log_peer(int level, const char *fmt, ...)
{
	uint64_t now = skv_now_ns();
	va_list ap;

	if (level > the.level)
		return;
	if (now - the.window_start > PEER_WINDOW) {
		if (the.left_out)
			skv_log(level, "%u more messages about clients were left out", the.left_out);
		the.window_start = now;
		the.in_window = the.left_out = 0;
	}
	if (the.in_window++ >= PEER_BURST) {
		the.left_out++;
		return;
	}
	va_start(ap, fmt);
	put(level, fmt, ap);
	va_end(ap);
}
