/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/plugin/scan.h - loads the plugins of the policy directories into a registry. */
#ifndef SKV_SCAN_H
#define SKV_SCAN_H

#include "daemon/plugin/registry.h"

struct skv_scan;

int skv_scan_new(struct skv_registry *, struct skv_scan **ret); /* -ENOMEM; the registry outlives it */
struct skv_scan *skv_scan_free(struct skv_scan *);              /* after skv_loop_drain(); NULL is fine; returns NULL */

/*
 * Loads each *.so of the directories of `path` (separated by ':') that is new or has changed since the last scan. Of
 * two files with the same policy the first one counts. Refusals are logged. Not while a scan is running.
 */
void skv_scan_start(struct skv_scan *, const char *path, void (*done)(void *ctx), void *ctx);
bool skv_scan_running(const struct skv_scan *);

#endif
