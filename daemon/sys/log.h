/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/log.h - the daemon's log: one line a message, to standard error.
 *
 * If standard error is the journal's stream ($JOURNAL_STREAM tells), a line begins with its priority, `<4>`, which
 * the journal removes; otherwise with the name of the level. A failure is logged once, where it happens; callers that
 * pass it on log nothing.
 *
 * Messages that peers can provoke at will use skv_log_peer(), which logs a burst and then only counts, so that a
 * hostile client cannot fill the disk.
 */
#ifndef SKV_LOG_H
#define SKV_LOG_H

#include <stdarg.h>
#include <syslog.h>

/* Messages above `level` (LOG_CRIT … LOG_DEBUG) are omitted; with $SPARSEKV_DEBUG set none are. */
void skv_log_open(int level);
int skv_log_level(void);

void skv_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void skv_log_peer(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "critical", "error", "warning", "notice", "info", "debug" ↔ LOG_…; -1 for another word. */
int skv_log_level_parse(const char *word);
const char *skv_log_level_name(int level);

#endif
