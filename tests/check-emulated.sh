#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of kernels, hurried, on a device that is none: the CUDA kernels' own sources, thread by thread (tests/emulate/). Those of them
# that depend on how work is divided run with few multiprocessors and with many, and with threads that take turns in the other direction.
set -u
log=$(mktemp) && trap 'rm -f "$log"' EXIT || exit 99
export SPARSEKV_CUDA_MODULE=$PWD/tests/emulate/sparsekv-cuda.so SPARSEKV_REQUIRE_GPU=1 SKV_SLOW=1
bad=0
run() {
	local start=$SECONDS
	tests/unit/kernels/test-$1 >"$log" 2>&1 || { bad=1; grep SKV_SEED= "$log"; tail -n 20 "$log"; }
	echo "$1, $2: $(tail -n 1 "$log"), $((SECONDS - start)) s"
}
for t in append compress compress-quant decode decode-rows decompress padding evict evict-head-budgets evict-slots prefill \
	replay row-strides select select-page-bounds select-recall select-stream select-topk sketch; do
	run $t "few multiprocessors"
done
export SKV_EMULATE_SMS=64
for t in decode decode-rows row-strides select-topk; do
	run $t "many multiprocessors"
done
export SKV_EMULATE_BACKWARDS=1
for t in append decode evict evict-slots select select-page-bounds select-topk; do
	run $t "backwards"
done
exit $bad
