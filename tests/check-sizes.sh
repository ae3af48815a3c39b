#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# check-sizes.sh [ROOT] - what is read at one go stays readable: no file of source has more than 600 lines, no function more
# than 70, and no header is needed by more than 12 files of other folders, but for the ones that a folder is for.
# A test of the test comes first: what is too long must be found.
set -eu
export LC_ALL=C
