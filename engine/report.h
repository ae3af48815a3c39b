/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/report.h - prints results of an evaluation as a table, as CSV, and case by case.
 *
 * The figures of a row are means over its cases: exact (0 or 1), line and token accuracy, and the attended and kept
 * shares. Recall is the mean over the cases in which recall was measured. Speed is the number of decoded tokens divided
 * by the time of decoding. Each policy has a row for each task at each size, for each task over all sizes, for all
 * tasks at each size, and for all cases.
 */
#ifndef ENG_REPORT_H
#define ENG_REPORT_H

#include <stdio.h>
#include "engine/evaluate.h"

/* Prints every row as a table with aligned columns. */
void eng_report_table(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints each policy's answer to each case as a JSON string. The results must be of free mode. */
void eng_report_answers(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/*
 * Prints one line for each policy: number of exact answers, share of tokens attended to, share of K and V kept,
 * tokens/s.
 */
void eng_report_summary(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints every row as CSV (RFC 4180, with a header line). */
void eng_report_csv(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

/* Prints one JSON object a line for each case and policy. */
void eng_report_dump(FILE *to, const struct eng_eval *eval, const struct eng_result *results);

#endif
