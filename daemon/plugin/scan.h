/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/plugin/scan.h - loads the plugins of the policy directories into a registry. */
#ifndef SKV_SCAN_H
#define SKV_SCAN_H

#include "daemon/plugin/registry.h"

struct skv_scan;

/* returns 0 or -ENOMEM; the registry must outlive the scan */
int skv_scan_new(struct skv_registry *, struct skv_scan **ret);
struct skv_scan *skv_scan_free(struct skv_scan *);              /* after skv_loop_drain(); accepts NULL; returns NULL */

/*
 * Starts to load each file *.so in the directories of `path` (separated by ':') that is new or has changed since the
 * last scan. If two files have the same policy, the first one is loaded. Refused files are logged. Must not be called
 * while a scan is running.
 */
void skv_scan_start(struct skv_scan *, const char *path, void (*done)(void *ctx), void *ctx);
bool skv_scan_running(const struct skv_scan *);

#endif
