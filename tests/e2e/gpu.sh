#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu.sh DIR - run in the build directory, after `make`: collects in DIR what the device tests need on a machine that
# has a device and perhaps no compiler, with the libraries that they link (except the C library). There,
#
#   DIR/run [memcheck|racecheck|synccheck|initcheck] [TEST...]
#   DIR/run bench attention --device cuda:0 [OPTION...]
#
# runs the tests (kernel tests under that tool of compute-sanitizer, if one is named), prints a line for each, and
# writes their output to DIR/logs (or $LOGS); or it runs sparsekv-bench. Models are not collected: tests find them in
# the source tree $SKV_SRCDIR, or in the current directory. cuBLAS must be installed on the machine.
set -eu
[ $# = 1 ] || { echo "usage: gpu.sh DIR" >&2; exit 2; }
[ -e config.status ] || { echo "gpu.sh: this is not a build directory" >&2; exit 1; }
dir=$1

kernels=$(for t in append compress compress-decode compress-quant decode decode-rows decompress evict evict-head-budgets evict-slots padding prefill \
	prefill-sparse prefill-tiles replay row-strides select select-page-bounds select-recall select-stream select-topk sketch; do
	echo tests/unit/kernels/test-$t
done)
client=$(for t in '' -any-order -page-bounds -codec -compress -evict -fence -forms -fp8 -layers -mixed -policy -prefill -prefix -maintenance -ranks -rewind; do echo tests/unit/client/test-client$t; done)
engine='tests/unit/engine/test-engine-backend tests/unit/engine/test-engine-forward tests/unit/engine/test-engine-golden'
e2e='tests/e2e/gpu-daemon tests/e2e/gpu-client tests/e2e/gpu-replay tests/e2e/gpu-tables tests/e2e/test-client-kill tests/e2e/test-prefix-store tests/e2e/test-oracle tests/e2e/test-engine-generate tests/e2e/test-engine-eval tests/e2e/test-engine-calibrate tests/e2e/test-golden'
restarts='tests/unit/daemon/test-restart tests/unit/daemon/test-reconnect tests/unit/daemon/test-keeper tests/unit/daemon/test-parking tests/unit/daemon/test-prefix-disk'
tests=$(echo $kernels $client $engine $restarts $e2e)
plugins=$(for p in few refuse-adopt fourth heads keys-first late-misuse unselected; do echo tests/support/plugins/$p; done)
programs="$tests daemon/sparsekvd daemon/sparsekv-probe daemon/sparsekv-worker daemon/ctl/sparsekvctl engine/sparsekv-generate engine/sparsekv-eval engine/sparsekv-calibrate bench/sparsekv-bench"
make -s all $tests $(printf '%s.la ' $plugins)
mkdir -p "$dir"/{tests/unit/{kernels,client,daemon,engine},tests/e2e,tests/support/plugins/.libs,daemon/ctl,engine/cuda,bench,lib,kernels/cuda,policies/.libs}
for p in $programs; do
	./libtool --mode=execute cp "$p" "$dir/$p"
done
cp engine/prose.txt "$dir/engine/"
cp kernels/cuda/libsparsekv-cuda.so "$dir/kernels/cuda/"
cp engine/cuda/libsparsekv-engine-cuda.so "$dir/engine/cuda/"
cp policies/.libs/*.so "$dir/policies/.libs/"
cp tests/support/plugins/.libs/*.so "$dir/tests/support/plugins/.libs/"
cp libclient/.libs/libsparsekv-client.so.0 "$dir/lib/"
(cd "$dir" && LD_LIBRARY_PATH=lib ldd $programs) | awk '$2 == "=>" { print $3 }' | sort -u |
	grep -vE '^lib/|/(libc|libm|libdl|librt|libpthread|libresolv)\.so' | xargs -I{} cp {} "$dir/lib/"

cat >"$dir/run" <<'END'
#!/bin/bash
# Made by tests/e2e/gpu.sh, which says how to use it.
set -u
here=$(dirname "$(readlink -f "$0")")
logs=${LOGS:-$here/logs}
export SKV_BUILDDIR=$here LD_LIBRARY_PATH=$here/lib:/usr/local/cuda/lib64 SPARSEKV_REQUIRE_GPU=1 OMP_WAIT_POLICY=passive
PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$logs"
tool=
export SPARSEKV_CUDA_MODULE=$here/kernels/cuda/libsparsekv-cuda.so SKV_SRCDIR=${SKV_SRCDIR:-$PWD}
export SPARSEKV_ENGINE_CUDA_MODULE=$here/engine/cuda/libsparsekv-engine-cuda.so
[ "${1-}" != bench ] || exec "$here/bench/sparsekv-bench" "${@:2}"
case ${1-} in memcheck | racecheck | synccheck | initcheck) tool=$1; shift ;; esac
# of several processes
processes='gpu-daemon gpu-client gpu-replay gpu-tables test-client test-client-any-order test-client-rewind test-client-page-bounds test-client-codec test-client-compress test-client-evict test-client-fence test-client-forms test-client-fp8 test-client-layers
	test-client-mixed test-client-legacy test-client-policy test-client-prefill test-client-prefix test-client-kill test-prefix-store test-client-maintenance test-client-ranks test-oracle
	test-engine-forward test-engine-golden test-engine-generate test-engine-eval test-engine-calibrate test-golden test-restart test-reconnect test-keeper test-parking test-prefix-disk'
processes=${processes//[[:space:]]/ }
[ $# -gt 0 ] || set -- $(cd "$here/tests/unit/kernels" && echo *) test-engine-backend $([ -n "$tool" ] || echo "$processes")
bad=0
for t; do
	command=("$here"/tests/{unit/*,e2e}/"${t%-legacy}")
	for c in "${command[@]}"; do [ ! -x "$c" ] || break; done
	command=("$c")
	unset SKV_TEST_DEVICE SKV_TEST_IPC SKV_SLOW CK_FORK
	case $t in gpu-* | test-client* | test-prefix-store | test-oracle | test-engine-generate | test-engine-eval | test-engine-calibrate | test-golden | test-restart | test-reconnect | test-keeper | test-parking | test-prefix-disk) export SKV_TEST_DEVICE=1 ;; esac
	case $t in *-legacy) export SKV_TEST_IPC=legacy ;; esac # the older kind of handles
	if [[ " $processes " != *" $t "* || -n "$tool" ]]; then # one process, so one context for all of its tests
		export CK_FORK=no
		[ -z "$tool" ] || export SKV_SLOW=1 # a tool makes it slow: less of all
		[ -z "$tool" ] || command=(compute-sanitizer --tool "$tool" --error-exitcode 99 "${command[@]}")
	fi
	begun=$SECONDS
	log=$logs/$t${tool:+.$tool}.log
	"${command[@]}" >"$log" 2>&1
	rc=$?
	line="$t${tool:+ under $tool} ($((SECONDS - begun)) s)"
	if [ $rc = 0 ]; then
		echo "PASS $line"
	else
		echo "FAIL $line: status $rc: $(grep -m 1 -E ':[FE]:|Invalid|ERROR' "$log" || tail -n 1 "$log")"
		bad=1
	fi
done
exit $bad
END
chmod +x "$dir/run"
