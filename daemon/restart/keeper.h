/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/keeper.h - sparsekvd --keeper: the keeper, a process that replaces the service manager where there is
 * none, as in a container.
 *
 * The keeper creates the listening sockets, starts the daemon, keeps the descriptors that the daemon stores, and
 * starts the next daemon with them, however the previous one ended. It implements systemd's side of sd_notify(3) and
 * sd_listen_fds(3), so the daemon needs no special case.
 */
#ifndef SKV_RUN_KEEPER_H
#define SKV_RUN_KEEPER_H

#include "daemon/sys/config.h"

/*
 * Runs until the keeper is told to stop, or until too many starts of the daemon in a row have failed. Returns 0 after a
 * stop, or a negative errno, logged.
 */
int skv_run_keeper(const struct skv_config_sources *);

#endif
