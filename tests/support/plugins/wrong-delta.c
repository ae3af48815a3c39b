/* SPDX-License-Identifier: Apache-2.0 */
/* delta as somebody may get it wrong: heads add their weights up, where the paper takes the largest. */
#include <sparsekv/policy.h>

#define SKV_REDUCE_MAX SKV_REDUCE_SUM
#include "policies/delta.c"
