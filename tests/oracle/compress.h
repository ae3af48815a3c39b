/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/compress.h - tokens that layers have compressed: which ones, and the possible error of what is
 * decompressed.
 */
#ifndef SKV_ORACLE_PACKED_H
#define SKV_ORACLE_PACKED_H

#include "tests/oracle/oracle.h"
#include "tests/oracle/verify.h"
#include "tests/oracle/case.h"

/*
 * The policy of `spec` begins a step with the sequence's tokens (those of `step`), or has committed one: tokens that it
 * does not want compressed are decompressed; with `compresses`, tokens that it wants compressed are compressed.
 */
void compressed_follow(struct oracle_case_seq *, const struct oracle_step *, const struct oracle_policy *, const char *spec,
                   bool compresses);

/* Can the layer's outputs be checked? Not if its rows went through a lossy compressor. */
bool compressed_known(const struct verify *, const struct oracle_case_seq *, uint32_t layer);

/*
 * Returns the possible error of each element of an output because rows of a kv head went through codes:
 * slack[head_dim], for q[head_dim] over the first n tokens with the weights weight[n], whose output is
 * expected[head_dim].
 */
void compressed_slack(const struct skv_model *, const struct oracle_case_seq *, uint32_t layer, uint32_t kv, const float *q,
                  uint32_t n, const double *weight, const double *expected, double *slack);

#endif
