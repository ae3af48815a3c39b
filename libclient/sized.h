/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/sized.h - structs that begin with their size, as the caller compiled them.
 *
 * A caller built with an older header passes a shorter struct; its missing tail is taken as zeros. A longer one is
 * refused, because this library does not know what its tail asks for.
 */
#ifndef SKV_CLIENT_SIZED_H
#define SKV_CLIENT_SIZED_H

#include <stddef.h>

/*
 * Copy such a struct to one of `known` bytes. `least`: bytes of the first version; `name`: what errors call it, e.g.
 * "item 3". -EINVAL with a text; then *to is unchanged.
 */
int sized_get(void *to, size_t known, const void *from, size_t least, const char *name);

#endif
