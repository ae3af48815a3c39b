#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# emulated.sh tests/emulated/TEST[+many|+backwards].emulated: a test of kernels, hurried, on a device that is none: the CUDA kernels' own
# sources, thread by thread (tests/emulate/), with few multiprocessors. many: with many; backwards: with these, and threads that take
# turns in the other direction.
export SPARSEKV_CUDA_MODULE="$PWD/tests/emulate/sparsekv-cuda.so" SPARSEKV_REQUIRE_GPU=1 SKV_SLOW=1
test=$(basename "$1" .emulated)
case $test in
*+many) export SKV_EMULATE_SMS=64 ;;
*+backwards) export SKV_EMULATE_SMS=64 SKV_EMULATE_BACKWARDS=1 ;;
esac
exec "tests/unit/kernels/${test%+*}"
