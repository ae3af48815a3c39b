#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fake-device.sh tests/fake-device/PATH[+legacy].fake: runs the test tests/PATH on a fake device:
# tests/support/fake-backend.c with the memory of tests/support/fake-libcuda.c. legacy: with CUDA IPC handles.
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT || exit 99
export SKV_TEST_DEVICE=1 FAKE_CUDA_DIR="$dir" LD_LIBRARY_PATH="$PWD/tests/fake-cuda"
export SPARSEKV_CUDA_MODULE="$PWD/tests/support/.libs/fake-backend.so"
export SKV_ORACLE_CASES=16 # the test itself runs more cases on the host, which has the same kernels
test=${1#*tests/fake-device/}
test=${test%.fake}
case $test in
*+legacy) export SKV_TEST_IPC=legacy ;;
esac
CK_EXCLUDE_TAGS=real "tests/${test%+*}"
