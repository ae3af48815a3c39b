# SPDX-License-Identifier: Apache-2.0
# A test is one line here: its program has a single source with its name, is compiled with TEST_CPPFLAGS and TEST_CFLAGS
# (Makefile.am adds them for everything below tests/) and links LDADD. The slowest tests come first.
TEST_CPPFLAGS = -DSKV_BUILDDIR='"$(abs_top_builddir)"' -DSKV_SRCDIR='"$(abs_top_srcdir)"' $(JANSSON_CFLAGS)
# tests/support/child.h has the reason.
TEST_LINK = -Wl,--wrap=_mark_point,--wrap=_ck_assert_failed
TEST_CFLAGS = $(CHECK_CFLAGS) $(OPENMP_CFLAGS) -pthread
LDADD = tests/support/libskvtest.la tests/oracle/libskvoracle.la tests/ref/libskvref.la engine/libskvengine.la \
	libclient/libsparsekv-client.la daemon/libskvdaemon.la $(WORKER_LIBS) kernels/libskvkernels.la formats/libskvformats.la \
	formats/libskvtokenizer.la common/libskvcommon.la $(CHECK_LIBS) $(JANSSON_LIBS) -lpthread -lm

include tests/support/local.mk
include tests/emulate/local.mk
include tests/ref/local.mk
include tests/oracle/local.mk
include tests/fuzz/local.mk

E2E_TESTS = \
	tests/e2e/test-engine-eval tests/e2e/test-engine-calibrate tests/e2e/test-engine-generate tests/e2e/test-client-kill tests/e2e/test-prefix-store tests/e2e/test-prefix-nixl tests/e2e/test-ranks-kill tests/e2e/test-engine-ranks tests/e2e/test-oracle tests/e2e/test-golden \
	tests/e2e/test-engine-run tests/e2e/test-engine-text tests/e2e/gpu-client tests/e2e/gpu-replay tests/e2e/gpu-tables
KERNEL_TESTS = \
	tests/unit/kernels/test-append tests/unit/kernels/test-compress tests/unit/kernels/test-compress-decode \
	tests/unit/kernels/test-compress-quant tests/unit/kernels/test-decode tests/unit/kernels/test-decompress \
	tests/unit/kernels/test-decode-rows tests/unit/kernels/test-padding \
	tests/unit/kernels/test-evict tests/unit/kernels/test-evict-head-budgets tests/unit/kernels/test-decode-sketches tests/unit/kernels/test-evict-slots \
	tests/unit/kernels/test-prefill tests/unit/kernels/test-prefill-sparse tests/unit/kernels/test-prefill-tiles \
	tests/unit/kernels/test-replay tests/unit/kernels/test-row-strides tests/unit/kernels/test-select \
	tests/unit/kernels/test-select-page-bounds \
	tests/unit/kernels/test-select-recall tests/unit/kernels/test-select-stream tests/unit/kernels/test-select-topk tests/unit/kernels/test-sketch \
	tests/unit/kernels/test-threads
CLIENT_TESTS = \
	tests/unit/client/test-client tests/unit/client/test-client-any-order tests/unit/client/test-client-api tests/unit/client/test-client-broken \
	tests/unit/client/test-client-codec tests/unit/client/test-client-compress tests/unit/client/test-client-evict \
	tests/unit/client/test-client-fence tests/unit/client/test-client-fork tests/unit/client/test-client-forms tests/unit/client/test-client-fp8 \
	tests/unit/client/test-client-layers tests/unit/client/test-client-room \
	tests/unit/client/test-client-maintenance tests/unit/client/test-client-mixed \
	tests/unit/client/test-client-page-bounds tests/unit/client/test-client-policy \
	tests/unit/client/test-client-prefill tests/unit/client/test-client-prefix tests/unit/client/test-client-ranks tests/unit/client/test-client-rewind \
	tests/unit/client/test-client-steady tests/unit/client/test-client-stop tests/unit/client/test-codec \
	tests/unit/client/test-compress-layout
ENGINE_TESTS = \
	tests/unit/engine/test-calibrate tests/unit/engine/test-checkpoint tests/unit/engine/test-codec-fit \
	tests/unit/engine/test-correction tests/unit/engine/test-engine-golden \
	tests/unit/engine/test-engine-backend tests/unit/engine/test-engine-files tests/unit/engine/test-engine-forward \
	tests/unit/engine/test-engine-math tests/unit/engine/test-identity tests/unit/engine/test-import tests/unit/engine/test-safetensors \
	tests/unit/engine/test-search tests/unit/engine/test-chat tests/unit/engine/test-jinja tests/unit/formats/test-tokenizer
DAEMON_TESTS = \
	tests/unit/daemon/test-charge tests/unit/daemon/test-config tests/unit/daemon/test-counters tests/unit/daemon/test-ctl tests/unit/daemon/test-descriptors tests/unit/daemon/test-disk-damage tests/unit/daemon/test-disk-file tests/unit/daemon/test-export tests/unit/daemon/test-fence tests/unit/daemon/test-handlers tests/unit/daemon/test-hostile \
	tests/unit/daemon/test-hostile-fds tests/unit/daemon/test-keeper tests/unit/daemon/test-loop tests/unit/daemon/test-memory tests/unit/daemon/test-neighbours tests/unit/daemon/test-parked-files tests/unit/daemon/test-parking tests/unit/daemon/test-prefix-disk tests/unit/daemon/test-prefix-keys tests/unit/daemon/test-prefix-room tests/unit/daemon/test-probe tests/unit/daemon/test-processes tests/unit/daemon/test-reconnect tests/unit/daemon/test-reconnect-raw tests/unit/daemon/test-reconnect-threads tests/unit/daemon/test-restart tests/unit/daemon/test-scale tests/unit/daemon/test-server \
	tests/unit/daemon/test-server-life tests/unit/daemon/test-store-client tests/unit/daemon/test-store-cluster tests/unit/daemon/test-store-failure \
	tests/unit/daemon/test-store-record tests/unit/daemon/test-store-tls tests/unit/daemon/test-store-values tests/unit/daemon/test-turns tests/unit/daemon/test-use-order tests/unit/daemon/test-worker
CORE_TESTS = \
	tests/unit/core/test-core tests/unit/core/test-core-age tests/unit/core/test-core-balance tests/unit/core/test-core-bitset tests/unit/core/test-core-block-index \
	tests/unit/core/test-core-charge tests/unit/core/test-core-cost tests/unit/core/test-core-fork tests/unit/core/test-core-parking \
	tests/unit/core/test-core-pending tests/unit/core/test-core-random tests/unit/core/test-core-segments \
	tests/unit/core/test-core-joint tests/unit/core/test-core-prefix tests/unit/core/test-core-prefix-room tests/unit/core/test-core-resume tests/unit/core/test-core-sequences tests/unit/core/test-core-undo tests/unit/core/test-core-untrusted \
	tests/unit/core/test-core-verify
COMMON_TESTS = \
	tests/unit/common/test-child tests/unit/common/test-common tests/unit/common/test-plugin \
	tests/unit/common/test-plugin-plan tests/unit/common/test-profile tests/unit/common/test-queue tests/unit/common/test-rope \
	tests/unit/common/test-seqmem tests/unit/common/test-spec tests/unit/common/test-wire \
	tests/unit/bench/test-scale \
	tests/unit/policies/test-plan-windows tests/unit/policies/test-policies tests/unit/policies/test-policy-files tests/unit/policies/test-prefill-plan
$(addsuffix .$(OBJEXT),$(filter tests/unit/policies/%,$(COMMON_TESTS))): policies/names.h
# Allocations and other calls are made to fail, which does not work with a sanitizer's own allocator.
if !SANITIZER
NTH_TESTS = tests/unit/client/test-client-nth-failure tests/unit/daemon/test-nth-failure tests/unit/daemon/test-nth-keeper \
	tests/unit/daemon/test-nth-parking
if CUDA
NTH_TESTS += tests/unit/daemon/test-nth-device
endif
endif
EXTRA_tests_e2e_test_prefix_nixl_DEPENDENCIES = tests/support/fake-nixl.la
# With the fake driver, and on a real device.
if CUDA
DEVICE_TESTS = tests/unit/daemon/test-device tests/unit/daemon/test-device-life tests/unit/daemon/test-disk-device tests/e2e/gpu-daemon
EXTRA_tests_unit_daemon_test_device_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
EXTRA_tests_unit_daemon_test_device_life_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
EXTRA_tests_unit_daemon_test_disk_device_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
EXTRA_tests_unit_daemon_test_nth_device_DEPENDENCIES = tests/fake-cuda/libcuda.so.1 tests/support/fail-nth.la tests/support/fake-backend.la
EXTRA_tests_e2e_gpu_client_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
EXTRA_tests_e2e_gpu_replay_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
EXTRA_tests_e2e_gpu_tables_DEPENDENCIES = tests/fake-cuda/libcuda.so.1
endif

# Everything at the same time: see tests/soak/test-soak.c.
SOAK_TESTS = tests/soak/test-soak
tests_soak_test_soak_SOURCES = tests/soak/test-soak.c tests/soak/soak.h tests/soak/by-name.c tests/soak/compare.c tests/soak/disturb.c tests/soak/engine.c tests/soak/engine.h tests/soak/engine-seqs.c \
	tests/soak/life.c tests/soak/names.c tests/soak/prefixes.c tests/soak/quiet.c tests/soak/report.c tests/soak/step.c

UNIT_TESTS = $(CLIENT_TESTS) $(KERNEL_TESTS) $(ENGINE_TESTS) $(DEVICE_TESTS) $(DAEMON_TESTS) $(NTH_TESTS) $(CORE_TESTS) $(COMMON_TESTS)
SCRIPTED_TESTS = tests/check-man.sh tests/check-bench.sh tests/check-lexicon.sh tests/check-readme.sh tests/check-api.sh \
	tests/check-includes.sh tests/check-names.sh tests/check-sizes.sh tests/check-dist.sh
check_PROGRAMS += $(E2E_TESTS) $(SOAK_TESTS) $(UNIT_TESTS) tests/support/engine-logits
dist_check_SCRIPTS += $(SCRIPTED_TESTS)
TESTS += $(E2E_TESTS) $(SOAK_TESTS) $(SCRIPTED_TESTS) $(UNIT_TESTS)
# Tests that assert times: no other test runs at the same time.
ALONE_TESTS = tests/unit/daemon/test-hostile-fds tests/unit/daemon/test-server-life tests/unit/daemon/test-turns
if CUDA
# Tests of streams and recordings; the others run only at night.
FAKE_DEVICE_TESTS = \
	tests/fake-device/e2e/gpu-client.fake tests/fake-device/e2e/gpu-replay.fake tests/fake-device/e2e/gpu-tables.fake \
	tests/fake-device/unit/client/test-client.fake tests/fake-device/unit/client/test-client-evict.fake \
	tests/fake-device/unit/client/test-client-mixed.fake tests/fake-device/unit/client/test-client-prefill.fake \
	tests/fake-device/unit/client/test-client-steady.fake tests/fake-device/unit/client/test-client-stop.fake
FAKE_DEVICE_NIGHTLY = \
	tests/fake-device/e2e/test-client-kill.fake tests/fake-device/e2e/test-oracle.fake \
	tests/fake-device/unit/client/test-client+legacy.fake tests/fake-device/unit/client/test-client-any-order.fake \
	tests/fake-device/unit/client/test-client-codec.fake tests/fake-device/unit/client/test-client-compress.fake \
	tests/fake-device/unit/client/test-client-forms.fake tests/fake-device/unit/client/test-client-page-bounds.fake \
	tests/fake-device/unit/client/test-client-policy.fake tests/fake-device/unit/client/test-client-rewind.fake
# With few multiprocessors. At night also with many, for tests that depend on how work is divided, and with threads in
# reverse order.
EMULATED_TESTS = \
	tests/emulated/test-append.emulated tests/emulated/test-compress.emulated tests/emulated/test-compress-quant.emulated \
	tests/emulated/test-decode.emulated tests/emulated/test-decode-rows.emulated tests/emulated/test-decompress.emulated \
	tests/emulated/test-evict.emulated tests/emulated/test-evict-head-budgets.emulated tests/emulated/test-evict-slots.emulated \
	tests/emulated/test-padding.emulated tests/emulated/test-prefill.emulated tests/emulated/test-replay.emulated \
	tests/emulated/test-row-strides.emulated tests/emulated/test-select.emulated tests/emulated/test-select-page-bounds.emulated \
	tests/emulated/test-select-recall.emulated tests/emulated/test-select-stream.emulated tests/emulated/test-select-topk.emulated \
	tests/emulated/test-sketch.emulated
EMULATED_NIGHTLY = \
	tests/emulated/test-decode+many.emulated tests/emulated/test-decode-rows+many.emulated \
	tests/emulated/test-row-strides+many.emulated tests/emulated/test-select-topk+many.emulated \
	tests/emulated/test-append+backwards.emulated tests/emulated/test-decode+backwards.emulated \
	tests/emulated/test-evict+backwards.emulated tests/emulated/test-evict-slots+backwards.emulated \
	tests/emulated/test-select+backwards.emulated tests/emulated/test-select-page-bounds+backwards.emulated \
	tests/emulated/test-select-topk+backwards.emulated
TESTS += $(FAKE_DEVICE_TESTS) $(EMULATED_TESTS)
CLEANFILES += $(FAKE_DEVICE_TESTS) $(FAKE_DEVICE_NIGHTLY) $(EMULATED_TESTS) $(EMULATED_NIGHTLY)
endif
EXTRA_DIST += tests/timed.sh tests/fake-device.sh tests/emulated.sh tests/check-table.sh tests/sample-prose.sh tests/compare-transformers.py $(GOLDEN_MODELS)
GOLDEN_MODELS = \
	tests/unit/engine/golden/biases/config.json tests/unit/engine/golden/biases/golden.safetensors \
	tests/unit/engine/golden/biases/model.safetensors tests/unit/engine/golden/linear/config.json \
	tests/unit/engine/golden/linear/golden.safetensors tests/unit/engine/golden/linear/model.safetensors \
	tests/unit/engine/golden/llama3/config.json tests/unit/engine/golden/llama3/golden.safetensors \
	tests/unit/engine/golden/llama3/model.safetensors tests/unit/engine/golden/qwen2/config.json \
	tests/unit/engine/golden/qwen2/golden.safetensors \
	tests/unit/engine/golden/qwen2/model-00001-of-00004.safetensors \
	tests/unit/engine/golden/qwen2/model-00002-of-00004.safetensors \
	tests/unit/engine/golden/qwen2/model-00003-of-00004.safetensors \
	tests/unit/engine/golden/qwen2/model-00004-of-00004.safetensors \
	tests/unit/engine/golden/qwen2/model.safetensors.index.json tests/unit/engine/golden/qwen3/config.json \
	tests/unit/engine/golden/qwen3/golden.safetensors tests/unit/engine/golden/qwen3/model.safetensors \
	tests/unit/engine/golden/window/config.json tests/unit/engine/golden/window/golden.safetensors \
	tests/unit/engine/golden/window/model.safetensors tests/unit/engine/golden/windows/config.json \
	tests/unit/engine/golden/windows/golden.safetensors tests/unit/engine/golden/windows/model.safetensors \
	tests/unit/engine/golden/yarn/config.json tests/unit/engine/golden/yarn/golden.safetensors \
	tests/unit/engine/golden/yarn/model.safetensors

# Tokenizers and their golden ids; against-package.py uses the program to compare.
check_PROGRAMS += tests/tokenizer/tokenize
tests_tokenizer_tokenize_LDADD = formats/libskvtokenizer.la formats/libskvformats.la
EXTRA_DIST += tests/tokenizer/against-package.py tests/tokenizer/golden.jsonl tests/tokenizer/gpt2.json \
	tests/tokenizer/llama3.json tests/tokenizer/qwen.json tests/tokenizer/smollm.json

# Chat templates and jinja2's output for them; against-package.py uses the program to compare.
check_PROGRAMS += tests/jinja/render
EXTRA_DIST += tests/jinja/against-package.py tests/jinja/golden.jsonl

# It simulates a kernel without newer system calls.
tests_unit_daemon_test_hostile_fds_LDADD = $(LDADD) $(LIBSECCOMP_LIBS)

# These compile private sources of what they test.
tests_unit_client_test_codec_SOURCES = tests/unit/client/test-codec.c libclient/compress/codec.c libclient/compress/codec.h
tests_unit_client_test_compress_layout_SOURCES = tests/unit/client/test-compress-layout.c libclient/compress/compressed-lengths.c
tests_unit_engine_test_codec_fit_SOURCES = tests/unit/engine/test-codec-fit.c libclient/compress/codec.c libclient/compress/codec.h
tests_unit_engine_test_correction_SOURCES = tests/unit/engine/test-correction.c bench/fidelity.c bench/fidelity.h \
	bench/synthetic-layers.c bench/synthetic-layers.h bench/util.c bench/bench.h bench/options.h
tests_unit_bench_test_scale_SOURCES = tests/unit/bench/test-scale.c bench/scale-cache.c bench/scale-cache.h \
	bench/scale-trace.c bench/scale-trace.h bench/scale-trace-file.c bench/util.c bench/bench.h bench/options.h

# These link only the part of the project that they test, and need no daemon.
STORE_LDADD = tests/support/libskvtest.la daemon/store/libskvstore.la daemon/store/libskvstoreconfig.la $(CHECK_LIBS) -lpthread -lm
tests_unit_daemon_test_store_client_LDADD = $(STORE_LDADD)
tests_unit_daemon_test_store_cluster_LDADD = $(STORE_LDADD)
tests_unit_daemon_test_store_failure_LDADD = $(STORE_LDADD)
tests_unit_daemon_test_store_tls_LDADD = $(STORE_LDADD)

# Engines with failing calls.
NTH_SOURCES = tests/support/fail-nth.c tests/support/fail-nth.h tests/support/nth-engine.c tests/support/nth-engine.h
tests_unit_client_test_client_nth_failure_SOURCES = tests/unit/client/test-client-nth-failure.c tests/support/client-fixture.h $(NTH_SOURCES)
NTH_CASE_SOURCES = $(NTH_SOURCES) tests/support/nth-case.c tests/support/nth-case.h \
	tests/support/nth-parked.c tests/support/nth-parked.h tests/support/nth-world.c tests/support/nth-world.h
tests_unit_daemon_test_nth_failure_SOURCES = tests/unit/daemon/test-nth-failure.c $(NTH_CASE_SOURCES)
tests_unit_daemon_test_nth_keeper_SOURCES = tests/unit/daemon/test-nth-keeper.c $(NTH_CASE_SOURCES)
tests_unit_daemon_test_nth_parking_SOURCES = tests/unit/daemon/test-nth-parking.c $(NTH_CASE_SOURCES)
tests_unit_daemon_test_nth_device_SOURCES = tests/unit/daemon/test-nth-device.c $(NTH_CASE_SOURCES)
EXTRA_tests_unit_daemon_test_nth_failure_DEPENDENCIES = tests/support/fail-nth.la
EXTRA_tests_unit_daemon_test_nth_keeper_DEPENDENCIES = tests/support/fail-nth.la
EXTRA_tests_unit_daemon_test_nth_parking_DEPENDENCIES = tests/support/fail-nth.la

include tests/targets.mk
