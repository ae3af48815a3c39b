/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/plugin/scan.h - what registry.c (the files) and scan.c (the directories) know of each other. */
#ifndef SKV_SCAN_H
#define SKV_SCAN_H

#include "daemon/plugin/registry.h"

struct skv_scan;

/* What scan.c remembers between scans; made by the first one. */
struct skv_scan **skv_registry_scan_state(struct skv_registry *);
void skv_scan_free(struct skv_scan *); /* NULL is fine */

/* As skv_registry_load, for scan number `scan`; failing at once: a positive errno, a text, no callback. */
int skv_registry_start_load(struct skv_registry *, int fd, const char *file, uint32_t scan,
                            skv_registry_fn done, void *ctx, char *text, size_t len);

#endif
