# SPDX-License-Identifier: Apache-2.0
# Test runs beside `make check`; HACKING.md says when to use which.
EXTRA_DIST += tests/lsan-suppressions tests/e2e/debootstrap.sh tests/e2e/environments.sh tests/e2e/mount-root.sh tests/e2e/chroot.sh tests/e2e/gpu.sh tests/e2e/scale.sh \
	tests/e2e/systemd/run.sh tests/e2e/systemd/boot.sh tests/e2e/systemd/guest.sh tests/e2e/systemd/hello.pl tests/e2e/systemd/engine.c tests/e2e/systemd/skv-test.service \
	tests/e2e/systemd/checks.sh tests/e2e/systemd/guest-reboot.sh tests/e2e/systemd/machine.sh tests/e2e/packages.sh tests/e2e/packages-guest.sh

# Threads of a pool that spin while they wait for each other are slow on a machine with other work: seconds become
# minutes. The tests are not about speed, so threads sleep while they wait. Tests that take too long for each run are
# divided into shares: a number derived from the commit selects one (tests/support/random.h).
SKV_SHARE := $(or $(SKV_SHARE),$(shell git -c safe.directory='*' -C $(srcdir) rev-parse --short=7 HEAD 2>/dev/null | sed 's/^/0x/'),0)
AM_TESTS_ENVIRONMENT = \
	OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY; \
	SKV_SHARE=$(SKV_SHARE); export SKV_SHARE; \
	RUN_ALONE='$(ALONE_TESTS)'; export RUN_ALONE;
TIMED = bash $(srcdir)/tests/timed.sh
LOG_COMPILER = $(TIMED)

# Tests without a device: tests/fake-device/unit/client/test-client.fake is tests/unit/client/test-client with a fake
# driver, and tests/emulated/test-decode.emulated is a kernel test with the sources of the CUDA kernels. The files are
# empty.
TEST_EXTENSIONS = .fake .emulated
FAKE_LOG_COMPILER = $(TIMED) $(SHELL) $(srcdir)/tests/fake-device.sh
EMULATED_LOG_COMPILER = $(TIMED) $(SHELL) $(srcdir)/tests/emulated.sh
$(FAKE_DEVICE_TESTS) $(FAKE_DEVICE_NIGHTLY) $(EMULATED_TESTS) $(EMULATED_NIGHTLY):
	$(AM_V_at)$(MKDIR_P) $(@D) && : >$@

# Runs the same tests, or the TESTS named, with a build of its own: $(call sub_check,FOLDER,CONFIGURE ARGUMENTS,TESTS).
# A recipe has + before it: otherwise make does not recognize the other makes in it, and they run one job at a time.
# TESTS are those of that build, which may have no CUDA: $$(...) is expanded there.
sub_check = $(MKDIR_P) $(1) && cd $(1) && \
	{ test -e config.status || $(abs_top_srcdir)/configure -q $(2); } && \
	$(MAKE) $(AM_MAKEFLAGS) && $(MAKE) $(AM_MAKEFLAGS) check $(3)

# For each push: the unit tests in one build with clang's warnings, ASan and UBSan, and host kernels of one ISA.
SANITIZE = --with-sanitizer=address,undefined
# GNU's OpenMP, without parallel regions: clang's runtime leaves a file in /dev/shm, named by its pid, when a process is
# killed, and a later process with that pid takes itself for a duplicate and dies.
CLANG = --enable-werror CC=clang CXX=clang++ ac_cv_prog_c_openmp=-fopenmp=libgomp
# CUDA takes long to compile, and no sanitizer checks it. Loops that are not vectorized at -O1 are no defects; nor is
# NULL + 0 here, which clang's check of pointers rejects (gcc's, in check-asan, does not).
check-sanitized:
	+export LSAN_OPTIONS=suppressions=$(abs_top_srcdir)/tests/lsan-suppressions:print_suppressions=0; $(call sub_check,check-sanitized.d,$(CLANG) $(SANITIZE) --without-cuda --with-host-isa=avx2 CFLAGS='-O1 -g -Wno-pass-failed -fno-sanitize=pointer-overflow',TESTS='$$(UNIT_TESTS)')
# All tests with gcc's sanitizers (gcc gives false warnings for sanitized code, so they are not errors there), and with
# clang.
check-asan:
	+$(call sub_check,check-asan.d,$(SANITIZE) CFLAGS='-O1 -g')
check-clang:
	+$(call sub_check,check-clang.d,$(CLANG))

# The client library's locks and atomics. TSan does not see OpenMP's own synchronization, so it has one thread here.
TSAN = --with-sanitizer=thread --without-cuda CC=clang CXX=clang++ CFLAGS='-O1 -g'
check-tsan:
	+export OMP_NUM_THREADS=1 OMP_TOOL=disabled TSAN_OPTIONS=die_after_fork=0; $(call sub_check,check-tsan.d,$(TSAN),TESTS='$$(CLIENT_TESTS)')

# Every C test program under valgrind, without AVX-512, which valgrind does not support. It follows the processes that
# Check forks, so a leak or an error fails only its own test.
VALGRIND = valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
	--show-leak-kinds=definite --num-callers=25
check-valgrind: all
	SPARSEKV_ISA=avx2 SKV_VALGRIND=1 CK_TIMEOUT_MULTIPLIER=20 $(MAKE) $(AM_MAKEFLAGS) check \
		TESTS='$(VALGRIND_TESTS)' TEST_SUITE_LOG=valgrind-suite.log \
		LOG_COMPILER='$(LIBTOOL) --mode=execute $(VALGRIND)'
VALGRIND_TESTS = $(check_PROGRAMS)

# All policies against the oracle with many cases; SKV_SEED repeats a run.
ORACLE_CASES = 500
check-oracle: all
	$(MAKE) $(AM_MAKEFLAGS) tests/e2e/test-oracle
	SKV_ORACLE_CASES=$(ORACLE_CASES) OMP_WAIT_POLICY=passive tests/e2e/test-oracle

# Compressed sequences: random operations, full length.
CODES_OPS = 10000
check-codes: all
	$(MAKE) $(AM_MAKEFLAGS) tests/unit/client/test-client-compress
	SKV_CODES_OPS=$(CODES_OPS) OMP_WAIT_POLICY=passive tests/unit/client/test-client-compress

# Sequences that are truncated: random operations, full length.
REWIND_OPS = 10000
check-rewind: all
	$(MAKE) $(AM_MAKEFLAGS) tests/unit/client/test-client-any-order
	SKV_REWIND_OPS=$(REWIND_OPS) OMP_WAIT_POLICY=passive tests/unit/client/test-client-any-order

# Everything at the same time, with eight engines. After a failure it prints where all files are.
SOAK_SECONDS = 120
soak: all
	$(MAKE) $(AM_MAKEFLAGS) tests/soak/test-soak
	SOAK_SECONDS=$(SOAK_SECONDS) OMP_WAIT_POLICY=passive tests/soak/test-soak

# Failing calls, all of them; NTH_JOBS: number of parallel processes, at most one for each processor.
NTH_JOBS = 1
check-nth: all
	$(MAKE) $(AM_MAKEFLAGS) $(NTH_TESTS) tests/support/fail-nth.la
	SKV_NTH=all OMP_WAIT_POLICY=passive tests/unit/client/test-client-nth-failure
	for t in $(filter tests/unit/daemon/%,$(NTH_TESTS)); do for k in $$(seq 0 63); do echo $$t $$k/64; done; done | \
		SKV_NTH=all OMP_WAIT_POLICY=passive xargs -P$(NTH_JOBS) -L1 sh -c 'SKV_NTH_PART=$$1 $$0'

# All 200 cases, with fp32 and with bf16 pages; and the table of models/reference/README.md: minutes each.
check-golden: all
	$(MAKE) $(AM_MAKEFLAGS) tests/e2e/test-golden
	SKV_SHARE=all tests/e2e/test-golden
check-table: all
	bash $(srcdir)/tests/check-table.sh $(abs_top_builddir)

# Faults that tests must find, each in a copy of the sources; MUTATIONS names some of them.
check-mutations:
	bash $(srcdir)/tests/check-mutations.sh $(abs_top_builddir) $(MUTATIONS)
# Programs and modules that test programs start and load.
mutations-need: $(sbin_PROGRAMS) $(pkglibexec_PROGRAMS) daemon/ctl/sparsekvctl $(policy_LTLIBRARIES) $(check_LTLIBRARIES) $(MUTATIONS_CUDA)
mutations-need-programs: $(bin_PROGRAMS) engine/prose.txt
if CUDA
MUTATIONS_CUDA = tests/fake-cuda/libcuda.so.1
endif
EXTRA_DIST += tests/check-mutations.sh $(MUTATION_PATCHES)
MUTATION_PATCHES = \
	tests/mutations/closed-sequence-waits.patch tests/mutations/draft-ids-lost.patch tests/mutations/full-device-has-room.patch \
	tests/mutations/policy-of-last-sequence.patch tests/mutations/prompt-tables-grow.patch tests/mutations/segments-never-trimmed.patch \
	tests/mutations/asan-bpe-leak.patch tests/mutations/asan-heap-one-less.patch tests/mutations/avx2-round-zero.patch \
	tests/mutations/bpe-stale-candidates.patch tests/mutations/branches-not-joined.patch tests/mutations/cgroup-room-unlimited.patch \
	tests/mutations/charge-pages-alone.patch tests/mutations/commit-without-form.patch tests/mutations/config-count-unbounded.patch \
	tests/mutations/core-includes-loop.patch tests/mutations/cuda-append-odd-element.patch \
	tests/mutations/cuda-evict-first-barrier.patch tests/mutations/cuda-evict-half-warp.patch \
	tests/mutations/cuda-first-block-merges.patch tests/mutations/cuda-fp8-masked-scales.patch \
	tests/mutations/cuda-rows-unmasked.patch tests/mutations/cuda-run-slots-in-turns.patch \
	tests/mutations/export-waits-for-reader.patch tests/mutations/fence-attach-at-once.patch tests/mutations/fence-not-read.patch \
	tests/mutations/fetch-first-turn.patch \
	tests/mutations/fork-undo-entries.patch tests/mutations/fp8-ties-away.patch tests/mutations/generic-fold.patch \
	tests/mutations/h2o-quarter-recent.patch tests/mutations/hook-runs-twice.patch tests/mutations/joint-commit-lengths-only.patch \
	tests/mutations/key-norm-left-out.patch tests/mutations/layout-without-room.patch tests/mutations/nothing-selected.patch \
	tests/mutations/nth-hmac-allocates.patch \
	tests/mutations/nth-import-leaves-file.patch tests/mutations/page-lacks-message.patch tests/mutations/page-named-twice.patch \
	tests/mutations/pages-after-holes.patch tests/mutations/parked-page-sum.patch tests/mutations/parked-remove-unsynced.patch \
	tests/mutations/newest-charged-late.patch tests/mutations/parking-all-at-once.patch tests/mutations/parking-leaks-list.patch tests/mutations/partial-page-by-tokens.patch \
	tests/mutations/prefix-key-without-codec.patch tests/mutations/prefix-keys-free.patch \
	tests/mutations/prefix-longer-than-sequence.patch tests/mutations/prefix-to-last-entry.patch tests/mutations/prompt-sees-next.patch \
	tests/mutations/quest-recent-of-sglang.patch tests/mutations/raas-younger-ties.patch tests/mutations/read-prefix-awaited.patch \
	tests/mutations/reconnect-keeps-unnamed.patch tests/mutations/room-without-given-up.patch tests/mutations/rope-half-swapped.patch \
	tests/mutations/rope-llama3-passage.patch tests/mutations/safetensors-beyond-data.patch tests/mutations/scores-tail.patch \
	tests/mutations/seal-compresses-more.patch tests/mutations/seal-foreign-policy.patch tests/mutations/sends-at-once.patch \
	tests/mutations/status-tells-totals.patch tests/mutations/store-tag-not-compared.patch \
	tests/mutations/store-value-without-place.patch tests/mutations/stored-by-name-alone.patch tests/mutations/tasks-by-client.patch \
	tests/mutations/tenant-without-uid.patch tests/mutations/topk-later-ties.patch tests/mutations/truncate-without-floor.patch \
	tests/mutations/ubsan-signed-hash.patch tests/mutations/undo-seen-before.patch tests/mutations/window-start-masked.patch \
	tests/mutations/wire-quoted-text.patch tests/mutations/wire-run-beyond-ids.patch tests/mutations/worker-dumpable.patch \
	tests/mutations/worker-jobs-in-order.patch tests/mutations/worker-not-awaited.patch

# Attacks at full size; `make check` runs small ones. Needs root and an idle machine.
HOSTILE_SECONDS = 600
check-hostile: all
	$(MAKE) $(AM_MAKEFLAGS) tests/unit/daemon/test-hostile tests/unit/daemon/test-hostile-fds tests/unit/daemon/test-neighbours \
		tests/unit/daemon/test-turns tests/unit/client/test-client-fence
	TURNS=full tests/unit/daemon/test-turns
	HOSTILE_FDS=1000 tests/unit/daemon/test-hostile-fds
	HOSTILE_SECONDS=$(HOSTILE_SECONDS) tests/unit/daemon/test-hostile
	HOSTILE_SECONDS=$(HOSTILE_SECONDS) tests/unit/daemon/test-neighbours
	HOSTILE_SECONDS=$$(($(HOSTILE_SECONDS) / 10)) HOSTILE_MEMORY=128 tests/unit/daemon/test-hostile
	HOSTILE_SECONDS=$$(($(HOSTILE_SECONDS) / 10)) HOSTILE_MEMORY=512 tests/unit/daemon/test-hostile
	FENCE_ROUNDS=10000 OMP_WAIT_POLICY=passive tests/unit/client/test-client-fence

# Ranks, and prefixes between hosts, at full size; as root in network namespaces.
check-scale: all
	$(MAKE) $(AM_MAKEFLAGS) tests/unit/client/test-client-ranks tests/e2e/test-engine-ranks tests/e2e/test-ranks-kill \
		tests/unit/client/test-client-prefix tests/e2e/test-prefix-store tests/e2e/test-prefix-nixl
	bash $(srcdir)/tests/e2e/scale.sh

# Everything, one after the other, also after failures: takes hours. Tests that need root say so if they lack it.
NIGHTLY = check-all-shares check-golden check-oracle check-codes check-rewind check-nth check-table check-asan check-clang check-tsan \
	check-mutations check-hostile check-scale $(notdir $(FUZZERS)) soak
check-nightly: all
	@failed=; for t in $(NIGHTLY); do \
		start=$$(date +%s); $(MAKE) $(AM_MAKEFLAGS) $$t || failed="$$failed $$t"; \
		echo "check-nightly: $$t: $$(($$(date +%s) - start)) s"; done; \
	test -z "$$failed" || { echo "check-nightly: failed:$$failed"; exit 1; }
check-all-shares:
	$(MAKE) $(AM_MAKEFLAGS) check SKV_SHARE=all TESTS='$(TESTS) $(FAKE_DEVICE_NIGHTLY) $(EMULATED_NIGHTLY)'

# These need root and debootstrap.
check-systemd: all
	bash $(srcdir)/tests/e2e/systemd/run.sh
check-chroot:
	bash $(srcdir)/tests/e2e/chroot.sh $(abs_builddir)/check-chroot.d
check-environments:
	bash $(srcdir)/tests/e2e/environments.sh $(abs_builddir)/check-environments.d
check-packages:
	bash $(srcdir)/tests/e2e/packages.sh $(abs_builddir)/check-packages.d

.PHONY: check-asan check-sanitized check-clang check-nightly check-tsan check-codes check-golden check-mutations mutations-need mutations-need-programs check-nth check-oracle check-rewind check-scale check-table check-valgrind check-hostile check-systemd check-chroot check-environments check-packages soak
AM_DISTCHECK_CONFIGURE_FLAGS = --enable-werror --with-systemdsystemunitdir='$${prefix}/lib/systemd/system'
distclean-local:
	rm -rf tests/cache check-asan.d check-sanitized.d check-clang.d check-mutations.d check-tsan.d tests/e2e/systemd/work tests/e2e/systemd/out tests/e2e/systemd/stage \
		check-packages.d/work check-packages.d/out check-packages.d/stage
