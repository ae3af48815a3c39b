/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/report.h - prints results as a table, as CSV, and case by case.
 *
 * Shares are means over cases: exact (0 or 1), line, token, attended and kept share; recall is a mean over the cases
 * in which it was measured. Speed is decode tokens over decode time. There is a row for each task at each size, for
 * each task over all sizes, and for all tasks, per size and together.
 */
#ifndef ENG_REPORT_H
#define ENG_REPORT_H

#include <stdio.h>
#include "engine/evaluate.h"

/* Prints every row, aligned for reading. */
void eng_report_table(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints each policy's answer to each case as a JSON string; for results of free mode. */
void eng_report_answers(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints one line a policy: exact answers, share of tokens attended, share of KV kept, tokens/s. */
void eng_report_summary(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints every row as CSV (RFC 4180, with a header line). */
void eng_report_csv(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints one JSON object a line for each case and policy. */
void eng_report_dump(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

#endif
