/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/snapkv.c - snapkv: the tokens with the best scores by the last `window` queries are retained with their
 * neighbours, and so are the tokens of these queries. Evicts at the end of a prompt, and whenever `interval` tokens
 * have come on top of the budget, which every layer has.
 */
#include "tests/oracle/oracle.h"

const struct oracle_policy oracle_snapkv = {.name = "snapkv", .attend = oracle_kept_tokens, .evict = oracle_snap_evict,
                                            .granularity = 1, .prompt = oracle_snap_prompt};
