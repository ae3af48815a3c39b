# SPDX-License-Identifier: Apache-2.0
# Fixtures, cases and helpers: a program links those that it uses.
check_LTLIBRARIES += tests/support/libskvtest.la
tests_support_libskvtest_la_SOURCES = \
	tests/support/client-test.h tests/support/policies.c tests/support/policies.h tests/support/policy-file.h \
	tests/support/output-hash.h tests/support/parked-chats.c tests/support/parked-chats.h \
	tests/support/random.c tests/support/random.h \
	tests/support/layer-forms.h tests/support/suite.h \
	tests/support/child.c tests/support/child.h tests/support/prefix-disk.c tests/support/prefix-disk.h tests/support/prefix-reader.c tests/support/prefix-reader.h tests/support/client-fixture.c tests/support/client-fixture.h \
	tests/support/codec-file.c tests/support/codec-file.h \
	tests/support/core-actor.c tests/support/core-actor.h tests/support/core-model.c tests/support/core-model.h \
	tests/support/manager.c tests/support/manager.h tests/support/core-peer.c tests/support/core-victim.c tests/support/core-victim.h tests/support/core-peer.h tests/support/core-prefix.c tests/support/core-prefix.h \
	tests/support/daemon-fixture.c tests/support/daemon-fixture.h tests/support/pauses.c tests/support/pauses.h tests/support/raw-client.c \
	tests/support/raw-engine.c tests/support/raw-engine.h \
	tests/support/device-fixture.c tests/support/device-fixture.h tests/support/disk-fixture.c tests/support/disk-fixture.h \
	tests/support/device-helper.c tests/support/device-helper.h tests/support/rank-group.c tests/support/rank-group.h \
	tests/support/engine-backends.c tests/support/engine-backends.h \
	tests/support/engine-daemon.c tests/support/engine-daemon.h \
	tests/support/engine-programs.c tests/support/engine-programs.h \
	tests/support/engine-fixture.c tests/support/engine-fixture.h tests/support/folder.c tests/support/folder.h \
	tests/support/hung-files.c tests/support/hung-files.h \
	tests/support/kernel-backend.c tests/support/kernel-backend.h \
	tests/support/kernel-case.c tests/support/kernel-case.h \
	tests/support/latent-case.c tests/support/latent-case.h tests/support/layers-case.c tests/support/layers-case.h \
	tests/support/memory-group.c \
	tests/support/memory-group.h tests/support/parked-case.c tests/support/parked-case.h tests/support/prefill-case.c tests/support/prefill-case.h \
	tests/support/privilege.c tests/support/privilege.h tests/support/prefix-case.c tests/support/prefix-case.h tests/support/prefix-hosts.c tests/support/prefix-hosts.h \
	tests/support/quant-case.c tests/support/quant-case.h tests/support/score-case.c tests/support/score-case.h \
	tests/support/slot-meta-case.c tests/support/slot-meta-case.h tests/support/slot-model.c tests/support/slot-model.h \
	tests/support/reference-attention.h tests/support/reference-codec.c tests/support/reference-codec.h \
	tests/support/reference-model.c tests/support/reference-model.h tests/support/reference-step.c \
	tests/support/store-fixture.c tests/support/store-fixture.h \
	tests/support/times.c tests/support/times.h tests/support/mute-proxy.c tests/support/mute-proxy.h tests/support/restart-engine.c tests/support/restart-engine.h tests/support/run-program.c tests/support/run-program.h

# Plugins: tests/support/plugins/.libs/NAME.so, each with a single source of its name. -rpath makes libtool build a
# shared object although it is not installed.
TEST_PLUGIN_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
TEST_PLUGINS = \
	tests/support/plugins/bad-abi.la tests/support/plugins/bad-crash.la tests/support/plugins/bad-hang.la \
	tests/support/plugins/bad-hooks.la tests/support/plugins/bad-params.la tests/support/plugins/bad-symbol.la \
	tests/support/plugins/early-misuse.la tests/support/plugins/escape.la \
	tests/support/plugins/few.la tests/support/plugins/fourth.la tests/support/plugins/greedy.la \
	tests/support/plugins/heads.la tests/support/plugins/keys-first.la tests/support/plugins/late-misuse.la \
	tests/support/plugins/old-backend.la tests/support/plugins/old-engine.la tests/support/plugins/refuse-adopt.la \
	tests/support/plugins/unselected.la tests/support/plugins/wrong-delta.la
check_LTLIBRARIES += $(TEST_PLUGINS)
EXTRA_DIST += tests/support/plugins/plugin.h tests/support/layer-forms.py

# Failing calls, preloaded into programs; test programs that link it also name the source.
check_LTLIBRARIES += tests/support/fail-nth.la
tests_support_fail_nth_la_SOURCES = tests/support/fail-nth.c tests/support/fail-nth.h
tests_support_fail_nth_la_CFLAGS = $(AM_CFLAGS) $(LIBURING_CFLAGS)
tests_support_fail_nth_la_LDFLAGS = $(AM_LDFLAGS) $(TEST_PLUGIN_LDFLAGS)
tests_support_fail_nth_la_LIBADD = -ldl

# A wrong system clock, preloaded.
check_LTLIBRARIES += tests/support/fake-clock.la
tests_support_fake_clock_la_SOURCES = tests/support/fake-clock.c
tests_support_fake_clock_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
tests_support_fake_clock_la_LDFLAGS = $(AM_LDFLAGS) $(TEST_PLUGIN_LDFLAGS)
tests_support_fake_clock_la_LIBADD = -ldl
check_LTLIBRARIES += tests/support/record-files.la
tests_support_record_files_la_SOURCES = tests/support/record-files.c
tests_support_record_files_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
tests_support_record_files_la_LDFLAGS = $(AM_LDFLAGS) $(TEST_PLUGIN_LDFLAGS)
tests_support_record_files_la_LIBADD = -ldl

# NIXL's library without UCX.
check_LTLIBRARIES += tests/support/fake-nixl.la
tests_support_fake_nixl_la_SOURCES = tests/support/fake-nixl.c
tests_support_fake_nixl_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default -pthread
tests_support_fake_nixl_la_LDFLAGS = $(AM_LDFLAGS) $(TEST_PLUGIN_LDFLAGS)

# A CUDA driver and a backend that need no device. The daemon finds the driver by name, like the real one.
FAKE_BACKEND_SOURCES = tests/support/fake-backend.c tests/support/fake-backend.h tests/support/fake-ipc.h \
	tests/support/fake-compress.c tests/support/fake-decode.c tests/support/fake-evict.c \
	tests/support/fake-kernels.c tests/support/fake-prefill.c tests/support/fake-select.c tests/support/fake-streams.c
if CUDA
check_LTLIBRARIES += tests/support/fake-backend.la
tests_support_fake_backend_la_SOURCES = $(FAKE_BACKEND_SOURCES)
tests_support_fake_backend_la_LDFLAGS = $(AM_LDFLAGS) $(TEST_PLUGIN_LDFLAGS) $(OPENMP_CFLAGS)
tests_support_fake_backend_la_LIBADD = kernels/libskvkernels.la

tests/fake-cuda/libcuda.so.1: tests/support/fake-libcuda.c
	$(AM_V_CC)$(MKDIR_P) tests/fake-cuda && $(CC) $(DEFS) $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) $(CPPFLAGS) \
		$(AM_CFLAGS) -fvisibility=default $(CFLAGS) -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ \
		$(srcdir)/tests/support/fake-libcuda.c
CLEANFILES += tests/fake-cuda/libcuda.so.1
endif
EXTRA_DIST += $(FAKE_BACKEND_SOURCES) tests/support/fake-libcuda.c
