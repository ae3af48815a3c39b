/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/compress.h - tokens that layers have packed: which, and how far off what is rebuilt of them may be. */
#ifndef SKV_ORACLE_PACKED_H
#define SKV_ORACLE_PACKED_H

#include "tests/oracle/oracle.h"
#include "tests/oracle/verify.h"
#include "tests/oracle/case.h"

/*
 * The policy of `spec` begins a step with the sequence's tokens, which are `step`'s, or has committed one: what it does not
 * want packed is unpacked, and with `packs` what it wants is.
 */
void packed_follow(struct oracle_case_seq *, const struct oracle_step *, const struct oracle_policy *, const char *spec,
                   bool packs);

/* May the layer's outputs be checked? Not where its rows went through a compressor that may lose anything. */
bool packed_known(const struct verify *, const struct oracle_case_seq *, uint32_t layer);

/*
 * How far off each element of an output may be because rows of a kv head went through codes: slack[head_dim], for
 * q[head_dim] over the first n tokens, of which weight[t] falls on t, and which give expected[head_dim].
 */
void packed_slack(const struct skv_model *, const struct oracle_case_seq *, uint32_t layer, uint32_t kv, const float *q,
                  uint32_t n, const double *weight, const double *expected, double *slack);

#endif
