# SPDX-License-Identifier: Apache-2.0
# Files of others that the engine and the client library both read.
noinst_LTLIBRARIES += formats/libskvformats.la
formats_libskvformats_la_SOURCES = formats/safetensors.c formats/safetensors-write.c formats/safetensors.h \
	formats/checkpoint.c formats/checkpoint.h
formats_libskvformats_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
formats_libskvformats_la_LIBADD = $(JANSSON_LIBS)
