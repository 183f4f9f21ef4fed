#!/bin/bash
# What runtest.sh and summary.sh make of programs that pass, fail, skip, die early or never end.
set -uo pipefail
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

run() { # NAME SECONDS SCRIPT: what runtest.sh says
	sh tools/testing/runtest.sh "$1" "$scratch/$1.result" "$2" bash -c "$3"
}

check() { # NAME PATTERN TEXT
	if grep -qE -- "$2" <<<"$3"; then
		echo "ok $1"
	else
		printf 'not ok %s: no %s in\n' "$1" "$2"
		sed 's/^/# /' <<<"$3"
	fi
}

check "cases are counted" "passes +2 passed, 1 skipped$" \
	"$(run passes 20 'echo "1..3"; echo "ok 1 - a"; echo "ok 2 - b"; echo "ok 3 - c # SKIP why"')"
check "a skipped case is named, and why" "^ +skipped: a, why$" \
	"$(run skips 20 'echo "ok 1 - a # SKIP why"')"
check "a skipped case of cmocka does not look like a failed one" "^ +skipped: a, why$" \
	"$(run skips 20 'echo "# why: why"; echo "not ok 1 # SKIP a"')"
check "a failed case is shown with the log" "not ok 2 - b" \
	"$(run fails 20 'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1')"
check "announced cases that never came have failed" "dies +1 passed, 2 failed \(exit status 3\)" \
	"$(run dies 20 'echo "1..3"; echo "ok 1 - a"; exit 3')"
endless=$(run endless 3 'echo "ok 1 - a"; echo "# at the second"; sleep 600')
check "the limit is named" "endless +1 passed, 1 failed \(longer than its limit of 3 s\)" "$endless"
check "so is what was said last" "last line: # at the second" "$endless"
check "so is what was running" "running: sleep 600" "$endless"
check "the time is kept" "^1 1 0 ([3-9]|[1-9][0-9]+)\.[0-9] [0-9]+\.[0-9]$" "$(cat "$scratch/endless.result")"

summary=$(sh tools/testing/summary.sh "$scratch" passes fails dies endless)
[ $? -eq 1 ] && echo "ok a failed test fails the whole" || echo "not ok a failed test fails the whole"
check "the slowest is the first" "endless" "$(sed -n 2p <<<"$summary")"
check "the failed cases are repeated" "not ok 2 - b" "$(grep -A 1 '^  FAILED  fails$' <<<"$summary")"
check "the count is the last line" "^5 passed, 4 failed, 1 skipped$" "$(tail -n 1 <<<"$summary")"
