/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/privilege.h - what this process may do. Root in a container may have few capabilities, so a test asks for what it needs
 * and not for its user.
 */
#ifndef SKV_TEST_PRIVILEGE_H
#define SKV_TEST_PRIVILEGE_H

#include <linux/capability.h>
#include <stdbool.h>

/* Is this capability (CAP_SYS_NICE, say) effective? */
bool has_capability(int capability);

/* Can it become another user? */
bool can_change_user(void);

/*
 * Can it mount file systems that others do not see? Not without CAP_SYS_ADMIN, nor in a chroot whose root is no mount point. If not,
 * prints why; `what` names what is not tested then.
 */
bool can_mount(const char *what);

#endif
