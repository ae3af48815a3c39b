#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# specs.sh LIST BUDGET - prints names and specs of the rows of bench/policies.txt that are in the list, at a budget such
# as 0.25. $PROFILE is the file of calibrated layers and $DIR the folder of compressors, for specs that have one; $ONLY
# is a pattern for names of rows.
set -eu
export PROFILE="${PROFILE-}" DIR="${DIR-}" ONLY="${ONLY-}"
exec perl -lane '
	BEGIN { ($list, $budget) = splice @ARGV, 0, 2 }
	my ($name, undef, $lists, $spec) = @F;
	next if /^#/ || !grep({ $_ eq $list } split /,/, $lists) || $name !~ /(?:$ENV{ONLY})/;
	$spec =~ s/@(?:\*([0-9.]+))?/$budget * ($1 || 1)/e;
	$spec =~ s/([0-9]+)-([0-9]+)/join ",", $1 .. $2/e;
	$spec =~ s/PROFILE/$ENV{PROFILE}/;
	$spec =~ s/\bfile=\K[a-z-]+/$ENV{DIR}\/$&.safetensors/;
	print "$name $spec"' "$1" "$2" "$(dirname "$(readlink -f "$0")")/policies.txt"
