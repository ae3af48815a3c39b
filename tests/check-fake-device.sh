#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the client library on a device that is none: tests/support/fake-backend.c with the memory of
# tests/support/fake-libcuda.c.
set -u
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT || exit 99
export SKV_TEST_DEVICE=1 FAKE_CUDA_DIR=$dir LD_LIBRARY_PATH=$PWD/tests/fake-cuda
export SPARSEKV_CUDA_MODULE=$PWD/tests/support/.libs/fake-backend.so
export SKV_ORACLE_CASES=16 # test-oracle itself has more of them, on the host, whose kernels these are
bad=0
run() {
	CK_EXCLUDE_TAGS=real tests/$1 >"$dir/log" 2>&1 || { bad=1; grep SKV_SEED= "$dir/log"; tail -n 20 "$dir/log"; }
	tail -n 1 "$dir/log"
}
for t in e2e/gpu-client e2e/gpu-replay e2e/gpu-tables e2e/test-client-kill e2e/test-oracle \
	unit/client/test-client{,-any-order,-page-bounds,-codec,-compress,-evict,-forms,-mixed,-policy,-prefill,-rewind,-steady,-stop}; do
	run "$t"
done
SKV_TEST_IPC=legacy run unit/client/test-client # the older kind of handles
exit $bad
