#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# emulated.sh tests/emulated/TEST[+many|+backwards].emulated: runs a kernel test, shortened, without a device: it runs
# the sources of the CUDA kernels thread by thread (tests/emulate/), with few multiprocessors. many: with many
# multiprocessors; backwards: with many, and threads take turns in reverse order.
export SPARSEKV_CUDA_MODULE="$PWD/tests/emulate/sparsekv-cuda.so" SPARSEKV_REQUIRE_GPU=1 SKV_SLOW=1
test=$(basename "$1" .emulated)
case $test in
*+many) export SKV_EMULATE_SMS=64 ;;
*+backwards) export SKV_EMULATE_SMS=64 SKV_EMULATE_BACKWARDS=1 ;;
esac
exec "tests/unit/kernels/${test%+*}"
