#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The public headers compile alone, as C11 and as C++17, without warnings; the library exports exactly the functions of
# client.h, and the manual page names each of them.
export LC_ALL=C.UTF-8 # elsewhere [a-z] may lack letters
srcdir=${srcdir:-$(dirname "$0")/..}
include=$srcdir/libclient/include
header=$include/sparsekv/client.h
failed=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT || exit 99

for name in types client policy; do
	for language in c c++; do
		compiler=${CC:-cc} standard=c11
		[ $language = c ] || { compiler=${CXX:-c++} standard=c++17; }
		echo "#include <sparsekv/$name.h>" > "$tmp/alone.$language"
		$compiler -x $language -std=$standard -I"$include" -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
			"$tmp/alone.$language" || { echo "$name.h does not compile alone as $standard"; failed=1; }
	done
done

sed -n 's/^SKV_API .*[ *]\(skv_[a-z_]*\)(.*/\1/p' "$header" | sort > "$tmp/declared"
nm -D --defined-only libclient/.libs/libsparsekv-client.so | sed -n 's/.* T \([a-z_]*\)@.*/\1/p' | sort > "$tmp/exported"
[ "$(wc -l < "$tmp/declared")" -ge 24 ] || { echo "found only some functions in $header"; failed=1; }
diff "$tmp/declared" "$tmp/exported" || { echo "client.h declares <, the library exports >"; failed=1; }
while read -r function; do
	grep -q "^\.F[no] $function\b" "$srcdir/man/libsparsekv-client.3" ||
		{ echo "libsparsekv-client(3) says nothing of $function"; failed=1; }
done < "$tmp/declared"
exit $failed
