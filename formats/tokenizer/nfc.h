/* SPDX-License-Identifier: Apache-2.0 */
/*
 * formats/tokenizer/nfc.h - Unicode normalization form C (UAX 15): decomposes characters, sorts the combining marks
 * after each starter by combining class, and composes the characters again.
 */
#ifndef SKV_TOKENIZER_NFC_H
#define SKV_TOKENIZER_NFC_H

#include <stddef.h>
#include <stdint.h>

/* Entries of the tables in nfc-table.c; each table is sorted by the first fields of its entries. */
struct skv_nfc_class {
	uint32_t first, last, class; /* the characters [first, last] have this combining class, which is not 0 */
};
struct skv_nfc_decomposition {
	/*
	 * one step of canonical decomposition: `whole` becomes first and second; second 0: `whole` becomes a single
	 * character
	 */
	uint32_t whole, first, second;
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
 * it. *ret is NULL if the text is ASCII and thus normalized. Takes time O(n log n). Returns 0 or -ENOMEM.
 */
int skv_nfc(const char *text, size_t n, char **ret, size_t *ret_len);

#endif
