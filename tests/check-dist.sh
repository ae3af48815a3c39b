#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-dist.sh - checks that a tarball has every file that git has; run in the build directory, it uses `make distdir`.
# Files that only a checkout needs are listed here. Skipped if there is no git, or the source is a tarball itself.
srcdir=${srcdir:-$(dirname "$0")/..}
tmp=$(mktemp -d) || exit 99
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
git=(git -c safe.directory='*' -C "$srcdir")

"${git[@]}" rev-parse --show-toplevel >"$tmp/top" 2>/dev/null && [ "$(readlink -f "$(cat "$tmp/top")")" = "$(readlink -f "$srcdir")" ] || {
	echo "check-dist: skipped, this is no checkout"
	exit 77
}
make -s --no-print-directory distdir distdir="$tmp/dist" >"$tmp/log" 2>&1 || { tail -n 5 "$tmp/log" >&2; exit 1; }
"${git[@]}" ls-files | grep -vE '(^|/)\.gitignore$|^\.ci/' | sort >"$tmp/tracked"
(cd "$tmp/dist" && find . -type f -o -type l) | sed 's@^\./@@' | sort >"$tmp/there"
comm -23 "$tmp/tracked" "$tmp/there" >"$tmp/missing"
[ ! -s "$tmp/missing" ] || { sed 's/$/ is in no EXTRA_DIST/' "$tmp/missing"; exit 1; }
