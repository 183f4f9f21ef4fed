#!/bin/sh
# Run one test program; report it in one line, in full when it fails.
#
#   tools/testing/runtest.sh NAME RESULT COMMAND...
#
# Test cases are TAP lines: "ok NAME", "not ok NAME", either with "# SKIP why"; a program that
# prints none is one case, decided by its exit status.  Cases that were announced ("1..N") and
# never reported count as failed.  RESULT gets "PASSED FAILED SKIPPED".
name=$1 result=$2
shift 2
mkdir -p "$(dirname "$result")"
log=$result.log

CMOCKA_MESSAGE_OUTPUT=TAP timeout --kill-after=10 "${TEST_SECONDS:-600}" "$@" >"$log" 2>&1
status=$?

awk -v status=$status '
	/^1\.\.[0-9]+/               { plans++; planned += substr($0, 4); next }
	/^(not )?ok/ && /# SKIP/     { skipped++; next }
	/^ok/                        { passed++ }
	/^not ok/                    { failed++ }
	END {
		seen = passed + failed + skipped
		if (planned > seen)
			failed += planned - seen
		else if (status && !failed)
			failed++
		else if (!seen && plans)
			failed++	# a program that announces tests and has none proves nothing
		else if (!seen)
			passed++
		print passed + 0, failed + 0, skipped + 0
	}' "$log" >"$result"

read -r passed failed skipped <"$result"
line="$passed passed"
[ "$failed" -eq 0 ] || line="$line, $failed failed (exit status $status)"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
printf '  TEST    %-32s %s\n' "$name" "$line"
if [ "$failed" -gt 0 ]; then
	sed 's/^/          /' "$log"
else
	sed -n '/# SKIP/s/^/          /p' "$log"
fi
