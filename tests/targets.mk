# SPDX-License-Identifier: Apache-2.0
# Test runs beside `make check`; HACKING.md says when to use which.
dist_check_SCRIPTS += tests/check-includes.sh tests/check-bench.sh tests/check-lexicon.sh
TESTS += tests/check-includes.sh tests/check-bench.sh tests/check-lexicon.sh
EXTRA_DIST += tests/debootstrap.sh tests/mount-root.sh tests/chroot.sh tests/gpu.sh \
	tests/systemd/run.sh tests/systemd/boot.sh tests/systemd/guest.sh tests/systemd/hello.pl tests/systemd/skv-test.service

# Threads of a pool that wait for each other by spinning are slow on a machine with other work: seconds
# become minutes. The tests are not about speed, so they wait asleep.
AM_TESTS_ENVIRONMENT = OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY;

# The same tests from a build of its own: $(call sub_check,FOLDER,CONFIGURE ARGUMENTS)
sub_check = $(MKDIR_P) $(1) && cd $(1) && \
	{ test -e config.status || $(abs_top_srcdir)/configure -q $(2); } && \
	$(MAKE) $(AM_MAKEFLAGS) && $(MAKE) $(AM_MAKEFLAGS) check

# (gcc's warnings see ghosts in sanitized code, so there they stay warnings.)
check-asan:
	$(call sub_check,check-asan.d,--with-sanitizer=address$(comma)undefined CFLAGS='-O1 -g')
check-clang:
	$(call sub_check,check-clang.d,--enable-werror CC=clang CXX=clang++)
comma = ,

# Every C test program under valgrind, without AVX-512, which valgrind does not know. It follows the
# processes that Check forks, so a leak or an error fails the one test that has it.
VALGRIND = valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
	--show-leak-kinds=definite --num-callers=25
check-valgrind: all
	SPARSEKV_ISA=avx2 SKV_VALGRIND=1 CK_TIMEOUT_MULTIPLIER=20 $(MAKE) $(AM_MAKEFLAGS) check \
		TESTS='$(VALGRIND_TESTS)' TEST_SUITE_LOG=valgrind-suite.log \
		LOG_COMPILER='$(LIBTOOL) --mode=execute $(VALGRIND)'
VALGRIND_TESTS = $(check_PROGRAMS)

# Policies against the oracle in full; of a seed, SKV_SEED repeats it.
ORACLE_CASES = 500
check-oracle: all
	$(MAKE) $(AM_MAKEFLAGS) tests/test-oracle
	SKV_ORACLE_CASES=$(ORACLE_CASES) OMP_WAIT_POLICY=passive tests/test-oracle

# Sequences that pack, in any order of operations, in full.
CODES_OPS = 10000
check-codes: all
	$(MAKE) $(AM_MAKEFLAGS) tests/test-client-codes
	SKV_CODES_OPS=$(CODES_OPS) OMP_WAIT_POLICY=passive tests/test-client-codes

# Root and debootstrap needed.
check-systemd: all
	$(SHELL) $(srcdir)/tests/systemd/run.sh
check-chroot:
	$(SHELL) $(srcdir)/tests/chroot.sh $(abs_builddir)/check-chroot.d

.PHONY: check-asan check-clang check-codes check-oracle check-valgrind check-systemd check-chroot
AM_DISTCHECK_CONFIGURE_FLAGS = --enable-werror --with-systemdsystemunitdir='$${prefix}/lib/systemd/system'
distclean-local:
	rm -rf check-asan.d check-clang.d tests/systemd/work tests/systemd/out tests/systemd/stage
