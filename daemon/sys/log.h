/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/log.h - the daemon's log: one line a message, to standard error.
 *
 * When standard error is the journal's stream ($JOURNAL_STREAM says so) a line begins with its
 * priority, `<4>`, which the journal takes off again; elsewhere with the level's name. A failure is
 * logged once, where it happens; callers that pass it on log nothing.
 *
 * What peers can provoke at will is logged with skv_log_peer(), which lets a burst through and then
 * counts, so that a hostile client cannot fill the disk.
 */
#ifndef SKV_LOG_H
#define SKV_LOG_H

#include <stdarg.h>
#include <syslog.h>

/* Messages above `level` (LOG_ERR … LOG_DEBUG) are left out; none are with $SPARSEKV_DEBUG set. */
void skv_log_open(int level);
int skv_log_level(void);

void skv_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void skv_log_peer(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "error", "warning", "notice", "info", "debug" ↔ LOG_…; -1 for another word. */
int skv_log_level_parse(const char *word);
const char *skv_log_level_name(int level);

#endif
