#!/bin/sh
# Does a log of compute-sanitizer report nothing but races inside cuBLAS's kernels?  Those whose names begin
# with nvjet wait for copies by means that racecheck does not know.  The test itself must have passed.
#
#   tools/testing/foreign_races.sh LOG
grep -q '^\[  PASSED  \]' "$1" && ! grep -q '^\[  FAILED  \]' "$1" || exit 1
grep -q 'Race reported between .* at nvjet_' "$1" || exit 1
! grep -E '^=========.*(Error|Warning|access at)' "$1" | grep -vq ' at nvjet_[^ ]*'
