#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# decode.sh BUILD DEVICE PART... - what a device takes for decode attention, in parts, each of which takes minutes: the tables of
# "Few sequences, fp8, and peers" in RESULTS.md. BUILD is the build directory, DEVICE as in --device.
#
#   cells     dense, a tenth of the tokens and an anchor: one sequence to sixty-four, one kv head to eight
#   shapes    dense for other head_dims and groups
#   rows      eight and four rows of each sequence at once
#   ragged    one long sequence among short ones
#   fp8       fp8 pages against bf16
#   policies  whole steps under each policy, and all of them in one batch
#   traffic   requests that come and go
set -eu
bench="$1/bench/sparsekv-bench" device=$2
shift 2

# attention BATCH TOKENS HEADS DIM OPTION...
attention() {
	"$bench" attention --device "$device" --dtype bf16 --prefill 0 --repeat 7 --batch "$1" --tokens "$2" --heads "$3" --dim "$4" "${@:5}"
}

cells() {
	local only=window,anchor,pages/head,tokens/head batch tokens
	for batch in 1 2 4 8; do
		for tokens in 4096 32768 131072; do
			attention $batch $tokens 32/8 128 --only $only
			attention $batch $tokens 4/1 128 --only $only
		done
	done
	attention 64 8192 32/8 128 --only $only
	attention 64 32768 32/8 128 --only $only
	attention 16 131072 32/8 128 --only $only
	attention 1 1048576 8/2 128 --only $only
}

shapes() {
	local heads
	for heads in 8/8 64/8 32/2; do # groups of 1, 8 and 16
		attention 1 32768 $heads 128 --only window
		attention 8 32768 $heads 128 --only window
	done
	attention 1 32768 32/8 64 --only window
	attention 1 32768 16/8 256 --only window
	attention 8 32768 16/8 256 --only window
}

rows() {
	local tokens
	for tokens in 4096 32768 131072; do
		attention 1 $tokens 32/8 128 --only rows --rows 4
		attention 1 $tokens 32/8 128 --only rows --rows 8
	done
	attention 16 32768 32/8 128 --only rows --rows 8
}

ragged() {
	attention 64 131072 32/8 128 --only rows --rest 1024
}

fp8() {
	"$bench" attention --device "$device" --dtype bf16,fp8 --prefill 0 --repeat 7 --batch 64 --tokens 32768 --heads 32/8 --dim 128 \
		--only scores,bounds,window
}

policies() {
	local tokens
	for tokens in 32768 131072; do
		"$bench" policies --device "$device" --heads 32/8 --layers 32 --repeat 10 --batch 1 --tokens $tokens
	done
	"$bench" policies --device "$device" --heads 32/8 --layers 32 --repeat 10 --batch 16 --tokens 32768
	"$bench" policies --device "$device" --heads 32/8 --layers 16 --repeat 10 --batch 16 --tokens 8192 --mixed
}

traffic() {
	"$bench" traffic --device "$device" --steps 600
}

for part in "$@"; do
	case $part in
	cells | shapes | rows | ragged | fp8 | policies | traffic) "$part" ;;
	*)
		echo "decode.sh: $part: expected cells, shapes, rows, ragged, fp8, policies or traffic" >&2
		exit 2
		;;
	esac
done
