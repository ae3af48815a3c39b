/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/privilege.h - what this process may do. Root in a container may lack capabilities, so tests check for
 * what they need instead of for the user.
 */
#ifndef SKV_TEST_PRIVILEGE_H
#define SKV_TEST_PRIVILEGE_H

#include <linux/capability.h>
#include <stdbool.h>

/* Returns whether this capability (such as CAP_SYS_NICE) is effective. */
bool has_capability(int capability);

/* Returns whether the process can change its user. */
bool can_change_user(void);

/*
 * Returns whether the process can mount file systems that other processes do not see. That needs CAP_SYS_ADMIN, and in
 * a chroot a root that is a mount point. Otherwise prints why; `what` names what is then not tested.
 */
bool can_mount(const char *what);

#endif
