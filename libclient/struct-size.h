/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/struct-size.h - reads structs whose first field is their size, as the caller compiled them.
 *
 * A caller built with an older header passes a shorter struct; the missing tail is taken as zeros. A struct longer than
 * this library's is refused, because the library does not know the meaning of the tail.
 */
#ifndef SKV_CLIENT_STRUCT_SIZE_H
#define SKV_CLIENT_STRUCT_SIZE_H

#include <stddef.h>

/*
 * Copy the caller's struct to `to`, a struct of `known` bytes. `least`: size of the struct's first version; `name`: how
 * error texts call the struct, e.g. "item 3". Returns -EINVAL with a text if the size is wrong; then *to is unchanged.
 */
int sized_get(void *to, size_t known, const void *from, size_t least, const char *name);

#endif
