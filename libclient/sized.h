/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/sized.h - structs that begin with their size, as the caller compiled them.
 *
 * A caller of an older library gives a shorter struct: its missing tail is zeros. A longer one is refused, as this
 * library does not know what its tail asks for.
 */
#ifndef SKV_CLIENT_SIZED_H
#define SKV_CLIENT_SIZED_H

#include <stddef.h>

/*
 * Copy such a struct to one of `known` bytes. `least`: bytes that the first version had; `name`: what the error is to
 * call it, e.g. "item 3". -EINVAL with a text. *to is then unchanged.
 */
int sized_get(void *to, size_t known, const void *from, size_t least, const char *name);

#endif
