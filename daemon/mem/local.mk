# SPDX-License-Identifier: Apache-2.0
# Where segments come from.
noinst_LTLIBRARIES += daemon/mem/libskvmem.la
daemon_mem_libskvmem_la_SOURCES = daemon/mem/host.c daemon/mem/mem.h
