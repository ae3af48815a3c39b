/* SPDX-License-Identifier: Apache-2.0 */
/* delta with a mistake: it adds up the heads' weights, but the paper takes the largest. */
#include <sparsekv/policy.h>

#define SKV_REDUCE_MAX SKV_REDUCE_SUM
#include "policies/delta.c"
