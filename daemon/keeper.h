/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/keeper.h - sparsekvd --keeper: what a service manager does for a daemon, where there is none, as in a container.
 *
 * It makes the listening sockets, starts the daemon, keeps the descriptors that the daemon stores, and starts the next daemon with them,
 * whatever ended the one before. Its side of sd_notify(3) and sd_listen_fds(3) is systemd's, so a daemon needs to know nothing of it.
 */
#ifndef SKV_RUN_KEEPER_H
#define SKV_RUN_KEEPER_H

#include "daemon/sys/config.h"

/* Until it is told to stop, or daemons do not start any more. 0 after a stop; negative errno, which has been logged. */
int skv_run_keeper(const struct skv_config_sources *);

#endif
