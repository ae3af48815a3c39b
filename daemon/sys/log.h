/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/log.h - the daemon's log, one line for each message, written to standard error.
 *
 * If standard error is the systemd journal ($JOURNAL_STREAM tells), a line begins with its priority, such as `<4>`,
 * which the journal removes; otherwise a line begins with the name of its level. A failure is logged once, where it
 * happens; callers that return the error log nothing.
 *
 * Messages that clients can cause as often as they like are logged with skv_log_peer(). After a burst of messages that
 * function only counts further ones, so that a hostile client cannot fill the disk.
 */
#ifndef SKV_LOG_H
#define SKV_LOG_H

#include <stdarg.h>
#include <syslog.h>

/*
 * Opens the log. Messages less important than `level` (LOG_CRIT … LOG_DEBUG) are left out, unless $SPARSEKV_DEBUG is
 * set.
 */
void skv_log_open(int level);
int skv_log_level(void);

void skv_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void skv_log_peer(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Convert between the name of a level ("critical", "error", "warning", "notice", "info" or "debug") and its number
 * LOG_…. skv_log_level_parse() returns -1 for any other word.
 */
int skv_log_level_parse(const char *word);
const char *skv_log_level_name(int level);

#endif
