/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/mute-proxy.h - a thread between this process's clients and a daemon, which passes all on, descriptors too, until it is
 * told to pass on requests alone. So they are carried out, and their answers are lost, as when a daemon dies at the right moment. The
 * daemon sees this process as its peer.
 */
#ifndef SKV_TEST_MUTE_PROXY_H
#define SKV_TEST_MUTE_PROXY_H

#include <stdbool.h>

/* Its own socket's path goes to ret_path (96 bytes). It lives as long as the process. `mute`: in memory that others may have as well. */
void mute_proxy_start(const char *daemon_socket, const _Atomic bool *mute, char *ret_path);

#endif
