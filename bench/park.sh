#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# park.sh BUILD FOLDER [OPTION...] - how fast sequences go to disk and come back, beside what fio writes and reads there in the same run: the table
# "Parked sequences" in RESULTS.md. FOLDER is on the disk that is meant; options are those of `sparsekv-bench park`. fio writes as much as $FIO_SIZE says (2G)
# before and after, in blocks as large and with as many in flight as the disk worker's, and reads so the file of every second sequence, before the next one
# is attached: a disk reads faster what it was just given, and slower while memory is short, so both read such files, in turns.
set -eu
build=$1 folder=$(mktemp -d "$2/sparsekv-park.XXXXXX")
shift 2
trap 'kill $daemon 2>/dev/null; wait; rm -rf "$folder"' EXIT

like_worker="--name=disk --bs=1M --direct=1 --ioengine=io_uring --iodepth=8 --output-format=terse"

disk_writes() {
	fio $like_worker --rw=write --size="${FIO_SIZE:-2G}" --end_fsync=1 --directory="$folder/fio" |
		awk -F';' '{ printf "fio write %.3f GB/s\n", $48 * 1024 / 1e9 }'
	rm -f "$folder"/fio/*
}

# KiB and milliseconds
cat >"$folder/read" <<END
set -eu
file=\$(echo $folder/parked/*/*-"\$SEQUENCE".parked)
fio $like_worker --rw=read --readonly --filename="\$file" --size=\$((\$(stat -c %s "\$file") >> 20))M | awk -F';' '{ print \$6, \$9 }' >>$folder/reads
END

mkdir -m 700 "$folder/parked" "$folder/fio"
"$build/daemon/sparsekvd" --socket "$folder/socket" --parked-path "$folder/parked" --policy-path "$build/policies/.libs" \
	--pool-bytes "${POOL_BYTES:-18G}" --account-bytes "${POOL_BYTES:-18G}" --cuda-pool-bytes "90%" --log-level warning &
daemon=$!
until [ -S "$folder/socket" ]; do sleep 0.1; done
disk_writes
"$build/bench/sparsekv-bench" park --socket "$folder/socket" --beside "bash $folder/read" "$@"
awk '{ kib += $1; ms += $2 } END { printf "fio read  %.3f GB/s\n", kib * 1024 / 1e6 / ms }' "$folder/reads"
disk_writes
