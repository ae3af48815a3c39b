/* SPDX-License-Identifier: Apache-2.0 */
/* formats/tokenizer/tokenizer-priv.h - the struct that load.c fills in and tokenizer.c uses. */
#ifndef SKV_TOKENIZER_PRIV_H
#define SKV_TOKENIZER_PRIV_H

#include "formats/tokenizer/added.h"
#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/pieces.h"
#include "formats/tokenizer/tokenizer.h"

struct skv_tokenizer {
	struct skv_bpe bpe;
	struct skv_added_set added;            /* added tokens that the original text is searched for */
	struct skv_added_set added_normalized; /* added tokens that the normalized text is searched for */
	bool nfc;
	struct skv_rules rules;
	struct skv_ids before, behind; /* ids that the post-processor's template puts before and after a text */
};

#endif
