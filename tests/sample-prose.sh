#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# sample-prose.sh SEED [ROOT] - draw ten sentences of comments, ten log lines and ten file names at random. Behind
# a sentence stands the line of code that its comment is at.
#
# For a reader without context: each is to be paraphrased rightly at the first reading. The same seed draws the same ones from the same tree.
set -eu
seed=${1:?a seed}
cd "${2:-.}"
draw() { # N lines of standard input
	shuf -n "$1" --random-source=<(openssl enc -aes-256-ctr -pass "pass:$seed" -nosalt -pbkdf2 </dev/zero 2>/dev/null)
}
sources() {
	git ls-files -- '*.c' '*.h' '*.cu' '*.cuh'
}
echo "# ten sentences of comments"
sources | grep -v '^tests/' | xargs perl -0777 -ne '
	while (m{(/\*.*?\*/|//[^\n]*)}gs) {
		my ($text, $line) = ($1, 1 + (substr($_, 0, $-[0]) =~ tr/\n//));
		my ($code) = substr($_, 0, $-[0]) =~ m{([^\n]*\S)[ \t]*\z} ? $1 : substr($_, $+[0]) =~ m{\A\s*([^\n]*)};
		$code =~ s{^\s+}{};
		$text =~ s{^/\*|\*/$|^//}{}g;
		$text =~ s{\n\s*\*?\s*}{ }g;
		$text =~ s{^\s+|\s+$}{}g;
		next if $text =~ /SPDX|^-+/;
		for (split /(?<=[.;:])\s+(?=[A-Z*])/, $text) { print "$ARGV:$line: $_   <- $code\n" if 4 <= split ; }
	}' | draw 10
echo
echo "# ten log lines"
git ls-files -- 'daemon/*.c' | xargs perl -0777 -ne '
	while (m{\bskv_log(_peer)?\((LOG_\w+,.*?)\);}gs) {
		my ($text, $line) = ($2, 1 + (substr($_, 0, $-[0]) =~ tr/\n//));
		$text =~ s{\s+}{ }g;
		$text =~ s{" "}{}g;
		print "$ARGV:$line: $text\n";
	}' | draw 10
echo
echo "# ten file names"
sources | grep -v '^tests/' | draw 10
