/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/compress.h - tokens that layers have compressed: which, and how far off what is decompressed of them
 * may be.
 */
#ifndef SKV_ORACLE_PACKED_H
#define SKV_ORACLE_PACKED_H

#include "tests/oracle/oracle.h"
#include "tests/oracle/verify.h"
#include "tests/oracle/case.h"

/*
 * The policy of `spec` begins a step with the sequence's tokens, which are `step`'s, or has committed one: what it
 * does not want compressed is decompressed, and with `compresses` what it wants is.
 */
void compressed_follow(struct oracle_case_seq *, const struct oracle_step *, const struct oracle_policy *, const char *spec,
                   bool compresses);

/* May the layer's outputs be checked? Not where its rows went through a compressor that may lose anything. */
bool compressed_known(const struct verify *, const struct oracle_case_seq *, uint32_t layer);

/*
 * How far off each element of an output may be because rows of a kv head went through codes: slack[head_dim], for
 * q[head_dim] over the first n tokens, of which weight[t] falls on t, and which give expected[head_dim].
 */
void compressed_slack(const struct skv_model *, const struct oracle_case_seq *, uint32_t layer, uint32_t kv, const float *q,
                  uint32_t n, const double *weight, const double *expected, double *slack);

#endif
