/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/stats.h - counters of a session and its sequences. */
#ifndef SKV_CLIENT_STEP_STATS_H
#define SKV_CLIENT_STEP_STATS_H

#include <stdint.h>

#include <sparsekv/policy.h>

struct skv_seq;
struct skv_session;

/*
 * Add to the counters how many tokens the decoding rows of a committed step attended to. `tokens`: summed over the
 * rows, accepted or not, and over q heads. `first`: position of the first of these rows.
 */
void stats_attended(struct skv_seq *q, uint32_t first, uint32_t rows, uint64_t tokens);
/* Add the attention recall that was measured in a step's first n sequences to the counters. */
void stats_recall(struct skv_session *s, struct skv_seq *const *seqs, const float *share, uint32_t n,
                  const struct skv_layer_set *layers);
/* Add the counters of the step that is being committed to the session and its page. */
void stats_step(struct skv_session *s);

#endif
