# SPDX-License-Identifier: Apache-2.0
# Tests of libclient/, on daemons of their own.
CLIENT_TEST_SOURCES = tests/client-test.h tests/fixture.c tests/fixture.h tests/place.c tests/place.h \
	tests/random.h tests/raw.c tests/world.c tests/world.h tests/world-ref.h tests/world-step.c
CODEC_TEST_SOURCES = tests/codec-file.c tests/codec-file.h tests/world-codec.c tests/world-codec.h
CLIENT_TEST_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
CLIENT_TEST_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS) $(OPENMP_CFLAGS)
CLIENT_TEST_LIBS = libclient/libsparsekv-client.la daemon/libskvdaemon.la kernels/libskvkernels.la $(CHECK_LIBS) $(JANSSON_LIBS) -lm

check_LTLIBRARIES += tests/plugins/few.la tests/plugins/fourth.la tests/plugins/heads.la tests/plugins/keys-first.la \
	tests/plugins/late-misuse.la
tests_plugins_fourth_la_SOURCES = tests/plugins/fourth.c tests/plugins/plugin.h
tests_plugins_fourth_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_heads_la_SOURCES = tests/plugins/heads.c
tests_plugins_heads_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_few_la_SOURCES = tests/plugins/few.c
tests_plugins_few_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_keys_first_la_SOURCES = tests/plugins/keys-first.c
tests_plugins_keys_first_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)
tests_plugins_late_misuse_la_SOURCES = tests/plugins/late-misuse.c tests/plugins/plugin.h
tests_plugins_late_misuse_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)

check_PROGRAMS += tests/test-packs
TESTS += tests/test-packs
tests_test_packs_SOURCES = tests/test-packs.c tests/random.h libclient/compress/lengths.c
tests_test_packs_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_packs_LDADD = $(COMMON_TEST_LIBS)

check_PROGRAMS += tests/test-client
TESTS += tests/test-client
tests_test_client_SOURCES = tests/test-client.c $(CLIENT_TEST_SOURCES)
tests_test_client_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-policy
TESTS += tests/test-client-policy
tests_test_client_policy_SOURCES = tests/test-client-policy.c $(CLIENT_TEST_SOURCES)
tests_test_client_policy_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_policy_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_policy_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-bounds
TESTS += tests/test-client-bounds
tests_test_client_bounds_SOURCES = tests/test-client-bounds.c $(CLIENT_TEST_SOURCES)
tests_test_client_bounds_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_bounds_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_bounds_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-keep
TESTS += tests/test-client-keep
tests_test_client_keep_SOURCES = tests/test-client-keep.c $(CLIENT_TEST_SOURCES)
tests_test_client_keep_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_keep_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_keep_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-prompt
TESTS += tests/test-client-prompt
tests_test_client_prompt_SOURCES = tests/test-client-prompt.c $(CLIENT_TEST_SOURCES)
tests_test_client_prompt_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_prompt_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_prompt_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-api
TESTS += tests/test-client-api
tests_test_client_api_SOURCES = tests/test-client-api.c $(CLIENT_TEST_SOURCES)
tests_test_client_api_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_api_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_api_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-stop
TESTS += tests/test-client-stop
tests_test_client_stop_SOURCES = tests/test-client-stop.c $(CLIENT_TEST_SOURCES)
tests_test_client_stop_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_stop_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_stop_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-kill
TESTS += tests/test-client-kill
tests_test_client_kill_SOURCES = tests/test-client-kill.c $(CODEC_TEST_SOURCES) $(CLIENT_TEST_SOURCES)
tests_test_client_kill_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_kill_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_kill_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-mixed
TESTS += tests/test-client-mixed
tests_test_client_mixed_SOURCES = tests/test-client-mixed.c $(CODEC_TEST_SOURCES) $(CLIENT_TEST_SOURCES)
tests_test_client_mixed_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_mixed_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_mixed_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-codes
TESTS += tests/test-client-codes
tests_test_client_codes_SOURCES = tests/test-client-codes.c $(CODEC_TEST_SOURCES) $(CLIENT_TEST_SOURCES)
tests_test_client_codes_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_codes_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_codes_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-codec
TESTS += tests/test-client-codec
tests_test_client_codec_SOURCES = tests/test-client-codec.c $(CODEC_TEST_SOURCES) $(CLIENT_TEST_SOURCES)
tests_test_client_codec_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_codec_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_codec_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-quiet
TESTS += tests/test-client-quiet
tests_test_client_quiet_SOURCES = tests/test-client-quiet.c $(CLIENT_TEST_SOURCES)
tests_test_client_quiet_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_quiet_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_quiet_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-client-broken
TESTS += tests/test-client-broken
tests_test_client_broken_SOURCES = tests/test-client-broken.c $(CLIENT_TEST_SOURCES)
tests_test_client_broken_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_client_broken_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_client_broken_LDADD = $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/test-oracle
TESTS += tests/test-oracle
tests_test_oracle_SOURCES = tests/test-oracle.c tests/codec-file.c tests/codec-file.h $(CLIENT_TEST_SOURCES)
tests_test_oracle_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_test_oracle_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_test_oracle_LDADD = tests/oracle/libskvoracle.la $(CLIENT_TEST_LIBS)

check_PROGRAMS += tests/gpu-client
TESTS += tests/gpu-client
tests_gpu_client_SOURCES = tests/gpu-client.c tests/kernel-backend.c tests/kernel-backend.h tests/kernel-case.h \
	$(CLIENT_TEST_SOURCES)
tests_gpu_client_CPPFLAGS = $(CLIENT_TEST_CPPFLAGS)
tests_gpu_client_CFLAGS = $(CLIENT_TEST_CFLAGS)
tests_gpu_client_LDADD = $(CLIENT_TEST_LIBS)

# A device that is none, for all of these; the daemon's half of it needs CUDA's headers (tests/server.mk).
if CUDA
check_LTLIBRARIES += tests/fake-backend.la
tests_fake_backend_la_SOURCES = tests/fake-backend.c tests/fake-backend.h tests/fake-codes.c tests/fake-keep.c \
	tests/fake-sparse.c
tests_fake_backend_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
tests_fake_backend_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS) $(OPENMP_CFLAGS)
tests_fake_backend_la_LIBADD = kernels/libskvkernels.la
EXTRA_tests_gpu_client_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
TESTS += tests/check-fake-device.sh
endif
EXTRA_DIST += tests/check-fake-device.sh tests/fake-backend.c tests/fake-backend.h tests/fake-codes.c tests/fake-keep.c \
	tests/fake-sparse.c

dist_check_SCRIPTS += tests/check-api.sh tests/check-readme.sh
TESTS += tests/check-api.sh tests/check-readme.sh
