#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu.sh DIR - in the build directory, after `make`: collect in DIR what the tests of devices need on a machine that
# has a device and perhaps no compiler, with the libraries that they name (the C library aside). There,
#
#   DIR/run [memcheck|racecheck|synccheck|initcheck] [TEST...]
#   DIR/run bench attention --device cuda:0 [OPTION...]
#
# runs the tests, the kernels' under that tool of compute-sanitizer if one is named, with a line for each and what they
# print in DIR/logs (or $LOGS); or sparsekv-bench.
set -eu
[ $# = 1 ] || { echo "usage: gpu.sh DIR" >&2; exit 2; }
[ -e config.status ] || { echo "gpu.sh: this is not a build directory" >&2; exit 1; }
dir=$1

tests='tests/test-append tests/test-decode tests/test-prefill tests/test-replay tests/test-select tests/gpu-daemon'
programs="$tests daemon/sparsekvd bench/sparsekv-bench"
make -s all $tests
mkdir -p "$dir"/{tests,daemon,bench,lib,kernels/cuda,policies/.libs}
for p in $programs; do
	./libtool --mode=execute cp "$p" "$dir/$p"
done
cp kernels/cuda/libsparsekv-cuda.so "$dir/kernels/cuda/"
cp policies/.libs/*.so "$dir/policies/.libs/"
(cd "$dir" && ldd $programs) | awk '$2 == "=>" { print $3 }' | sort -u |
	grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv)\.so' | xargs -I{} cp {} "$dir/lib/"

cat >"$dir/run" <<'END'
#!/bin/bash
# Made by tests/gpu.sh, which says how to use it.
set -u
here=$(dirname "$(readlink -f "$0")")
logs=${LOGS:-$here/logs}
export SKV_BUILDDIR=$here LD_LIBRARY_PATH=$here/lib SPARSEKV_REQUIRE_GPU=1 OMP_WAIT_POLICY=passive
PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$logs"
tool=
export SPARSEKV_CUDA_MODULE=$here/kernels/cuda/libsparsekv-cuda.so
[ "${1-}" != bench ] || exec "$here/bench/sparsekv-bench" "${@:2}"
case ${1-} in memcheck | racecheck | synccheck | initcheck) tool=$1; shift ;; esac
[ $# -gt 0 ] || set -- test-append test-decode test-prefill test-replay test-select $([ -n "$tool" ] || echo gpu-daemon)
bad=0
for t; do
	command=("$here/tests/$t")
	if [ "$t" != gpu-daemon ]; then # one process, so one context for all of its tests
		export CK_FORK=no
		[ -z "$tool" ] || command=(compute-sanitizer --tool "$tool" --error-exitcode 99 "${command[@]}")
	else
		unset CK_FORK
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
