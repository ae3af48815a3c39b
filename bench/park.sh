#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# park.sh BUILD FOLDER [OPTION...] - how fast sequences go to disk and come back, beside what fio writes and reads there in the same run: the table
# "Parked sequences" in RESULTS.md. FOLDER is on the disk that is meant; options are those of `sparsekv-bench park`. fio writes and reads as much as
# $FIO_SIZE says (2G), in blocks as large and with as many in flight as the disk worker's.
set -eu
build=$1 folder=$(mktemp -d "$2/sparsekv-park.XXXXXX")
shift 2
trap 'kill $daemon 2>/dev/null; wait; rm -rf "$folder"' EXIT

disk() {
	fio --name=disk --rw="$1" --bs=1M --size="${FIO_SIZE:-2G}" --direct=1 --ioengine=io_uring --iodepth=8 --end_fsync=1 \
		--directory="$folder/fio" --output-format=terse | awk -F';' -v rw="$1" '{ printf "fio %-6s %.3f GB/s\n", rw, ($7 + $48) * 1024 / 1e9 }'
}

mkdir -m 700 "$folder/parked" "$folder/fio"
"$build/daemon/sparsekvd" --socket "$folder/socket" --parked-path "$folder/parked" --policy-path "$build/policies/.libs" \
	--pool-bytes "${POOL_BYTES:-18G}" --account-bytes "${POOL_BYTES:-18G}" --cuda-pool-bytes "90%" --log-level warning &
daemon=$!
until [ -S "$folder/socket" ]; do sleep 0.1; done
disk write
disk read
rm -rf "$folder/fio"
mkdir "$folder/fio"
"$build/bench/sparsekv-bench" park --socket "$folder/socket" "$@"
disk write
disk read
