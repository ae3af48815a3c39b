# SPDX-License-Identifier: Apache-2.0
KERNEL_TESTS = tests/test-allot tests/test-append tests/test-bounds tests/test-chosen tests/test-codes tests/test-decode \
	tests/test-keep tests/test-low tests/test-pack tests/test-prefill tests/test-rebuild \
	tests/test-recall tests/test-replay tests/test-select tests/test-slots tests/test-sparse tests/test-tiles tests/test-topk
check_PROGRAMS += $(KERNEL_TESTS)
TESTS += $(KERNEL_TESTS)

check_LTLIBRARIES += tests/plugins/old-backend.la
tests_plugins_old_backend_la_SOURCES = tests/plugins/old-backend.c
tests_plugins_old_backend_la_LDFLAGS = $(TEST_PLUGIN_LDFLAGS)

KERNEL_TEST_SOURCES = \
	tests/kernel-backend.c tests/kernel-backend.h tests/kernel-case.c tests/kernel-case.h \
	tests/ref-attention.c tests/ref-attention.h tests/random.h
KERNEL_TEST_CPPFLAGS = $(AM_CPPFLAGS) -DSKV_BUILDDIR='"$(abs_top_builddir)"'
KERNEL_TEST_LIBS = kernels/libskvkernels.la $(CHECK_LIBS) -lm

tests_test_append_SOURCES = tests/test-append.c $(KERNEL_TEST_SOURCES)
tests_test_append_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_append_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_append_LDADD = $(KERNEL_TEST_LIBS)

tests_test_bounds_SOURCES = tests/test-bounds.c $(KERNEL_TEST_SOURCES)
tests_test_bounds_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_bounds_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_bounds_LDADD = $(KERNEL_TEST_LIBS)

tests_test_chosen_SOURCES = tests/test-chosen.c $(KERNEL_TEST_SOURCES)
tests_test_chosen_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_chosen_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_chosen_LDADD = $(KERNEL_TEST_LIBS)

tests_test_decode_SOURCES = tests/test-decode.c $(KERNEL_TEST_SOURCES)
tests_test_decode_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_decode_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_decode_LDADD = $(KERNEL_TEST_LIBS)

tests_test_prefill_SOURCES = tests/test-prefill.c $(KERNEL_TEST_SOURCES)
tests_test_prefill_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_prefill_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_prefill_LDADD = $(KERNEL_TEST_LIBS)

tests_test_replay_SOURCES = tests/test-replay.c $(KERNEL_TEST_SOURCES)
tests_test_replay_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_replay_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_replay_LDADD = $(KERNEL_TEST_LIBS)

tests_test_recall_SOURCES = tests/test-recall.c $(KERNEL_TEST_SOURCES)
tests_test_recall_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_recall_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_recall_LDADD = $(KERNEL_TEST_LIBS)

tests_test_select_SOURCES = tests/test-select.c $(KERNEL_TEST_SOURCES)
tests_test_select_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_select_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_select_LDADD = $(KERNEL_TEST_LIBS)

tests_test_topk_SOURCES = tests/test-topk.c $(KERNEL_TEST_SOURCES)
tests_test_topk_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_topk_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_topk_LDADD = $(KERNEL_TEST_LIBS)

tests_test_slots_SOURCES = tests/test-slots.c tests/ref-slots.c tests/ref-slots.h $(KERNEL_TEST_SOURCES)
tests_test_slots_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_slots_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_slots_LDADD = $(KERNEL_TEST_LIBS)

SPARSE_TEST_SOURCES = tests/sparse-case.c tests/sparse-case.h tests/ref-sparse.c tests/ref-sparse.h $(KERNEL_TEST_SOURCES)

tests_test_sparse_SOURCES = tests/test-sparse.c $(SPARSE_TEST_SOURCES)
tests_test_sparse_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_sparse_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_sparse_LDADD = $(KERNEL_TEST_LIBS)

tests_test_tiles_SOURCES = tests/test-tiles.c $(SPARSE_TEST_SOURCES)
tests_test_tiles_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_tiles_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_tiles_LDADD = $(KERNEL_TEST_LIBS)

NOTE_TEST_SOURCES = tests/note-case.c tests/note-case.h tests/ref-slots.c tests/ref-slots.h $(KERNEL_TEST_SOURCES)

tests_test_allot_SOURCES = tests/test-allot.c $(NOTE_TEST_SOURCES)
tests_test_allot_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_allot_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_allot_LDADD = $(KERNEL_TEST_LIBS)

tests_test_keep_SOURCES = tests/test-keep.c $(NOTE_TEST_SOURCES)
tests_test_keep_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_keep_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_keep_LDADD = $(KERNEL_TEST_LIBS)

CODE_TEST_SOURCES = tests/code-case.c tests/code-case.h tests/ref-codes.c tests/ref-codes.h $(KERNEL_TEST_SOURCES)

tests_test_low_SOURCES = tests/test-low.c tests/low-case.c tests/low-case.h $(KERNEL_TEST_SOURCES)
tests_test_low_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_low_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_low_LDADD = $(KERNEL_TEST_LIBS)

tests_test_pack_SOURCES = tests/test-pack.c $(CODE_TEST_SOURCES)
tests_test_pack_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_pack_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_pack_LDADD = $(KERNEL_TEST_LIBS)

tests_test_rebuild_SOURCES = tests/test-rebuild.c $(CODE_TEST_SOURCES)
tests_test_rebuild_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_rebuild_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_rebuild_LDADD = $(KERNEL_TEST_LIBS)

tests_test_codes_SOURCES = tests/test-codes.c $(CODE_TEST_SOURCES)
tests_test_codes_CPPFLAGS = $(KERNEL_TEST_CPPFLAGS)
tests_test_codes_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
tests_test_codes_LDADD = $(KERNEL_TEST_LIBS)
