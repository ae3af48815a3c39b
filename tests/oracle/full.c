/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/full.c - full: everything in memory. */
#include "tests/oracle/oracle.h"

const struct oracle_policy oracle_full = {.name = "full", .attend = oracle_attend_all};
