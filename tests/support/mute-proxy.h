/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/mute-proxy.h - a thread between this process's clients and a daemon. It passes on all packets, with
 * their descriptors, until `mute` is set: then it passes on requests only. The requests are carried out and their
 * replies are lost, as when a daemon dies at the worst moment. The daemon sees this process as its peer.
 */
#ifndef SKV_TEST_MUTE_PROXY_H
#define SKV_TEST_MUTE_PROXY_H

#include <stdbool.h>

/*
 * ret_path (96 bytes) gets the path of the proxy's socket. The proxy lives as long as the process. `mute` may be in
 * shared memory.
 */
void mute_proxy_start(const char *daemon_socket, const _Atomic bool *mute, char *ret_path);

#endif
