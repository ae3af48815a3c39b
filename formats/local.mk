# SPDX-License-Identifier: Apache-2.0
# File formats that the engine and the client library both read.
noinst_LTLIBRARIES += formats/libskvformats.la
formats_libskvformats_la_SOURCES = formats/safetensors.c formats/safetensors-write.c formats/safetensors.h \
	formats/checkpoint.c formats/checkpoint.h formats/json.c formats/json.h
formats_libskvformats_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
formats_libskvformats_la_LIBADD = $(JANSSON_LIBS)

# Used only by the engine, with libraries that the client library does not need.
noinst_LTLIBRARIES += formats/libskvtokenizer.la
formats_libskvtokenizer_la_SOURCES = \
	formats/tokenizer/added.c formats/tokenizer/added.h \
	formats/tokenizer/bpe.c formats/tokenizer/bpe.h \
	formats/tokenizer/ids.h \
	formats/tokenizer/load.c formats/tokenizer/load.h \
	formats/tokenizer/load-model.c \
	formats/tokenizer/nfc.c formats/tokenizer/nfc.h formats/tokenizer/nfc-table.c \
	formats/tokenizer/pieces.c formats/tokenizer/pieces.h \
	formats/tokenizer/tokenizer.c formats/tokenizer/tokenizer.h formats/tokenizer/tokenizer-priv.h
formats_libskvtokenizer_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) $(PCRE2_CFLAGS)
formats_libskvtokenizer_la_LIBADD = $(JANSSON_LIBS) $(PCRE2_LIBS)
EXTRA_DIST += formats/tokenizer/nfc-table.py
