#!/bin/sh
# The slowest tests, the failed cases, then the count of all as the last line; fails where a test failed.
#
#   tools/testing/summary.sh BUILD NAME...
#
# BUILD/NAME.result holds what runtest.sh wrote: PASSED FAILED SKIPPED SECONDS PROCESSOR_SECONDS.
shown=10
build=$1
shift
[ $# -gt 0 ] || { echo '0 passed, 0 failed'; exit; }

results() {
	for name in "$@"; do
		printf '%s %s\n' "$(cat "$build/$name.result")" "$name"
	done
}

if [ $# -gt 1 ]; then
	echo '  The slowest tests: wall time and processor time in seconds'
	results "$@" | sort -k 4,4nr | head -n $shown |
		awk '{ printf "          %7.1f %7.1f  %s\n", $4, $5, $6 }'
fi
results "$@" | awk '$2 > 0 { print $6 }' | while read -r name; do
	printf '  FAILED  %s\n' "$name"
	sed -n '/# SKIP/d; s/^not ok/          not ok/p' "$build/$name.result.log"
done
results "$@" | awk '{ p += $1; f += $2; s += $3 }
	END { printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 }'
