# SPDX-License-Identifier: Apache-2.0
# Parked sequences: the disk worker, and the format of its files.
noinst_LTLIBRARIES += daemon/disk/libskvdisk.la daemon/disk/libskvparked.la
daemon_disk_libskvparked_la_SOURCES = daemon/disk/crc32c.c daemon/disk/files.c daemon/disk/files.h daemon/disk/lock.c daemon/disk/lock.h daemon/disk/parked.c daemon/disk/parked.h daemon/disk/use-order.c daemon/disk/use-order.h
SKV_DISK_SOURCES = \
	daemon/disk/helpers.c daemon/disk/helpers.h daemon/disk/import.c daemon/disk/job.h daemon/disk/list.c daemon/disk/list.h daemon/disk/memory.c daemon/disk/memory.h \
	daemon/disk/pages.c daemon/disk/pages.h daemon/disk/park.c daemon/disk/reader.c daemon/disk/reader.h \
	daemon/disk/resume.c daemon/disk/send.c daemon/disk/transfer.c daemon/disk/transfer.h daemon/disk/run-job.c daemon/disk/run-job.h daemon/disk/worker.c \
	daemon/disk/writer.c daemon/disk/writer.h
daemon_disk_libskvdisk_la_SOURCES = $(SKV_DISK_SOURCES)
if CUDA
daemon_disk_libskvdisk_la_SOURCES += daemon/disk/pages-cuda.c
else
daemon_disk_libskvdisk_la_SOURCES += daemon/disk/pages-cuda-none.c
endif
daemon_disk_libskvdisk_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
daemon_disk_libskvdisk_la_CFLAGS = $(AM_CFLAGS) $(LIBURING_CFLAGS)
daemon_disk_libskvdisk_la_LIBADD = $(LIBURING_LIBS)
