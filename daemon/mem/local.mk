# SPDX-License-Identifier: Apache-2.0
# Allocation of segments.
noinst_LTLIBRARIES += daemon/mem/libskvmem.la
daemon_mem_libskvmem_la_SOURCES = daemon/mem/host.c daemon/mem/mem.h daemon/mem/cuda.h daemon/mem/driver.h
if CUDA
daemon_mem_libskvmem_la_SOURCES += daemon/mem/cuda.c daemon/mem/cuda-worker.c daemon/mem/driver.c
else
daemon_mem_libskvmem_la_SOURCES += daemon/mem/cuda-none.c
endif
daemon_mem_libskvmem_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
daemon_mem_libskvmem_la_LIBADD = -ldl
