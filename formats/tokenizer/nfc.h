/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/nfc.h - Unicode normalization form C (UAX 15): decomposes characters, sorts the marks of each by
 * combining class, and composes them again.
 */
#ifndef SKV_TOKENIZER_NFC_H
#define SKV_TOKENIZER_NFC_H

#include <stddef.h>
#include <stdint.h>

/* The tables of nfc-table.c, each sorted by its first fields. */
struct skv_nfc_class {
	uint32_t first, last, class; /* range of characters with a combining class other than 0 */
};
struct skv_nfc_decomposition {
	uint32_t whole, first, second; /* one step of canonical decomposition; second 0: to a single character */
};
struct skv_nfc_composition {
	uint32_t first, second, whole;
};
extern const struct skv_nfc_class skv_nfc_classes[];
extern const struct skv_nfc_decomposition skv_nfc_decompositions[];
extern const struct skv_nfc_composition skv_nfc_compositions[];
extern const uint32_t skv_nfc_classes_n, skv_nfc_decompositions_n, skv_nfc_compositions_n;

/*
 * Normalizes valid UTF-8 of less than 2^30 bytes. *ret is allocated, with *ret_len bytes and a NUL; the caller frees
 * it. *ret is NULL if the text is ASCII and thus normalized. O(n log n). -ENOMEM.
 */
int skv_nfc(const char *text, size_t n, char **ret, size_t *ret_len);

#endif
