/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/rkv.c - rkv: evicts as SnapKV does, but attention scores count with weight lambda; the rest is how
 * dissimilar a key is from all others.
 */
#include "tests/oracle/oracle.h"

const struct oracle_policy oracle_rkv = {.name = "rkv", .attend = oracle_kept_tokens, .evict = oracle_snap_evict,
                                         .granularity = 1, .prompt = oracle_snap_prompt};
