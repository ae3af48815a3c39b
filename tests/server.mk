# SPDX-License-Identifier: Apache-2.0
# The daemon: its loop, its settings, and the whole of it through its socket.
SERVER_TEST_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
SERVER_TEST_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS) -pthread
SERVER_TEST_LIBS = daemon/libskvdaemon.la $(CHECK_LIBS) $(JANSSON_LIBS) -lpthread
SERVER_FIXTURE = tests/fixture.c tests/raw.c tests/fixture.h

check_PROGRAMS += tests/test-loop tests/test-config
TESTS += tests/test-loop tests/test-config

tests_test_loop_SOURCES = tests/test-loop.c
tests_test_loop_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_loop_LDADD = $(SERVER_TEST_LIBS)

tests_test_config_SOURCES = tests/test-config.c
tests_test_config_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_config_LDADD = $(SERVER_TEST_LIBS)

check_PROGRAMS += tests/test-server
TESTS += tests/test-server
tests_test_server_SOURCES = tests/test-server.c $(SERVER_FIXTURE)
tests_test_server_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_server_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_server_LDADD = $(SERVER_TEST_LIBS)

check_PROGRAMS += tests/test-server-life
TESTS += tests/test-server-life
tests_test_server_life_SOURCES = tests/test-server-life.c $(SERVER_FIXTURE)
tests_test_server_life_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_server_life_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_server_life_LDADD = $(SERVER_TEST_LIBS)

# Devices, on a driver that is not one: the daemon finds it as it finds the real one, by name.
if CUDA
DEVICE_FIXTURE = tests/device-fixture.c tests/device-fixture.h $(SERVER_FIXTURE)
check_PROGRAMS += tests/test-device tests/test-device-life
TESTS += tests/test-device tests/test-device-life
tests_test_device_SOURCES = tests/test-device.c $(DEVICE_FIXTURE)
tests_test_device_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_device_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_device_LDADD = $(SERVER_TEST_LIBS)
EXTRA_tests_test_device_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
tests_test_device_life_SOURCES = tests/test-device-life.c tests/random.h $(DEVICE_FIXTURE)
tests_test_device_life_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_device_life_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_device_life_LDADD = $(SERVER_TEST_LIBS)
EXTRA_tests_test_device_life_DEPENDENCIES = tests/fake-cuda/libcuda.so.1

tests/fake-cuda/libcuda.so.1: tests/fake-libcuda.c
	$(AM_V_CC)$(MKDIR_P) tests/fake-cuda && $(CC) $(DEFS) $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) $(CPPFLAGS) \
		$(AM_CFLAGS) -fvisibility=default $(CFLAGS) -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ \
		$(srcdir)/tests/fake-libcuda.c
CLEANFILES += tests/fake-cuda/libcuda.so.1

# On a real one; skipped where there is none.
check_PROGRAMS += tests/gpu-daemon
TESTS += tests/gpu-daemon
tests_gpu_daemon_SOURCES = tests/gpu-daemon.c $(SERVER_FIXTURE)
tests_gpu_daemon_CPPFLAGS = $(SERVER_TEST_CPPFLAGS) $(CUDA_CPPFLAGS)
tests_gpu_daemon_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_gpu_daemon_LDADD = $(SERVER_TEST_LIBS)
endif
EXTRA_DIST += tests/fake-libcuda.c

check_PROGRAMS += tests/test-hostile
TESTS += tests/test-hostile
tests_test_hostile_SOURCES = tests/test-hostile.c $(SERVER_FIXTURE)
tests_test_hostile_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_hostile_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_hostile_LDADD = $(SERVER_TEST_LIBS)

check_PROGRAMS += tests/test-probe
TESTS += tests/test-probe
tests_test_probe_SOURCES = tests/test-probe.c $(SERVER_FIXTURE)
tests_test_probe_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_probe_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_probe_LDADD = $(SERVER_TEST_LIBS)

check_PROGRAMS += tests/test-ctl
TESTS += tests/test-ctl
tests_test_ctl_SOURCES = tests/test-ctl.c $(SERVER_FIXTURE)
tests_test_ctl_CPPFLAGS = $(SERVER_TEST_CPPFLAGS)
tests_test_ctl_CFLAGS = $(SERVER_TEST_CFLAGS)
tests_test_ctl_LDADD = $(SERVER_TEST_LIBS)
