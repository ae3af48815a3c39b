/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokens.h"

#include <errno.h>

int eng_tokens_check(const struct eng_config *c, struct eng_error *err)
{
	if (c->vocab <= 256 || c->bos < 256 || c->eos < 256)
		return eng_fail(err, -EINVAL,
		                "the model's vocabulary is not bytes: %u ids, bos %d, eos %d; ids 0 to 255 for "
		                "the bytes and bos, eos above them expected",
		                c->vocab, c->bos, c->eos);
	if (c->vocab > 512)
		return eng_fail(err, -EINVAL, "%u ids need a tokenizer, this engine reads bytes", c->vocab);
	return 0;
}

size_t eng_tokens_prompt(const struct eng_config *c, const char *bytes, size_t n, int32_t *to)
{
	*to++ = c->bos;
	for (size_t i = 0; i < n; i++)
		*to++ = (unsigned char)bytes[i];
	return n + 1;
}
