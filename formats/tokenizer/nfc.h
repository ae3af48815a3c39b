/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/nfc.h - normalization form C of Unicode (UAX 15): characters are taken apart, marks of each put into
 * the order of their combining classes, and put together again.
 */
#ifndef SKV_TOKENIZER_NFC_H
#define SKV_TOKENIZER_NFC_H

#include <stddef.h>
#include <stdint.h>

/* What nfc-table.c has, each sorted by what comes first. */
struct skv_nfc_class {
	uint32_t first, last, class; /* characters of a combining class other than 0 */
};
struct skv_nfc_decomposition {
	uint32_t whole, first, second; /* canonical, one step; second 0: it is one character */
};
struct skv_nfc_composition {
	uint32_t first, second, whole;
};
extern const struct skv_nfc_class skv_nfc_classes[];
extern const struct skv_nfc_decomposition skv_nfc_decompositions[];
extern const struct skv_nfc_composition skv_nfc_compositions[];
extern const uint32_t skv_nfc_classes_n, skv_nfc_decompositions_n, skv_nfc_compositions_n;

/*
 * Normalize valid UTF-8 of less than 2^30 bytes. *ret: memory to be freed with *ret_len bytes and a NUL, or NULL where the text is
 * ASCII, which is normalized already. O(n log n). -ENOMEM.
 */
int skv_nfc(const char *text, size_t n, char **ret, size_t *ret_len);

#endif
