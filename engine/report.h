/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/report.h - results as a table, as CSV, and case by case.
 *
 * Shares are means over cases: of exact (0 or 1), line, token, attended and kept share alike; of recall over the cases
 * that it was measured of, where there are any. Speed is decode tokens over decode time. Rows are each task at each
 * size, each task over all sizes, and all tasks, per size and together.
 */
#ifndef ENG_REPORT_H
#define ENG_REPORT_H

#include <stdio.h>
#include "engine/evaluate.h"

/* Every row, aligned for reading. */
void eng_report_table(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* What each policy answers to each case, in quotes as JSON has them; results of free mode. */
void eng_report_answers(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* One line a policy: exact answers, share of tokens attended, share of KV kept, tokens/s. */
void eng_report_summary(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Every row as CSV (RFC 4180, with a header line). */
void eng_report_csv(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* One JSON object a line for each case and policy. */
void eng_report_dump(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

#endif
