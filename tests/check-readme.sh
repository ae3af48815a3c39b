#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The two programs in README.md compile as they stand, and run: the engine on a daemon, the policy in it.
srcdir=${srcdir:-$(dirname "$0")/..}
tmp=$(mktemp -d) || exit 99
daemon=
trap '[ -z "$daemon" ] || kill "$daemon"; rm -rf "$tmp"' EXIT

# block N: the Nth block of C in the README.
block() {
	awk -v n="$1" '/^```/ { on = /^```c$/ && ++seen == n; next } on' "$srcdir/README.md"
}
fail() {
	echo "$*" >&2
	exit 1
}

block 1 >"$tmp/engine.c"
block 2 >"$tmp/recent.c"
include=$srcdir/libclient/include libs=$PWD/libclient/.libs
flags="-O2 -Wall -Wextra -Werror -D_DEFAULT_SOURCE -I$include"
nm -D "$libs/libsparsekv-client.so" | grep -q __asan_init && flags+=" -fsanitize=address,undefined"
${CC:-cc} $flags "$tmp/engine.c" -L"$libs" -Wl,-rpath,"$libs" -lsparsekv-client -o "$tmp/engine" || fail "the engine does not compile"
${CC:-cc} $flags -shared -fPIC -o "$tmp/recent.so" "$tmp/recent.c" || fail "the policy does not compile"

daemon/sparsekvd --config=/dev/null --log-level=warning --socket="$tmp/socket" --policy-path="$PWD/policies/.libs" &
daemon=$!
export SPARSEKV_SOCKET=$tmp/socket
for _ in $(seq 100); do
	[ -S "$tmp/socket" ] && break
	sleep 0.1
done
text=$("$tmp/engine") || fail "the engine failed"
case $text in "10 tokens, out[0] = "*) ;; *) fail "the engine printed: $text" ;; esac
ctl=(daemon/ctl/sparsekvctl --socket "$tmp/socket")
"${ctl[@]}" policy load "$tmp/recent.so" || fail "the policy was refused"
"${ctl[@]}" policy list | grep -q "^recent" || fail "the policy is not in the list"
