#!/bin/sh
# Run one test program; report it in one line, in full when it fails.
#
#   tools/testing/runtest.sh NAME RESULT SECONDS COMMAND...
#
# Test cases are TAP lines: "ok NAME", "not ok NAME", either with "# SKIP why"; a program that
# prints none is one case, decided by its exit status.  Cases that were announced ("1..N") and
# never reported count as failed.  A program that takes longer than SECONDS is ended, and what it
# was doing is shown.  RESULT gets "PASSED FAILED SKIPPED", then the seconds that it took, by the
# clock and of the processors.  Until the program has ended there is no RESULT; its time is that of the
# beginning, so a file that changes while the program runs is newer.
name=$1 result=$2 limit=$3
shift 3
mkdir -p "$(dirname "$result")"
log=$result.log doing=$result.doing
rm -f "$doing" "$result"

# The processes of a group but its leader, a command line each.
group_members() { # LEADER
	cat /proc/[0-9]*/stat 2>/dev/null |
		sed -n "s/^\([0-9]*\) (.*) . [0-9]* $1 .*/\1/p" |
		while read -r process; do
			[ "$process" = "$1" ] || { tr '\0' ' ' <"/proc/$process/cmdline" | cut -c 1-200; }
		done
}

# A moment before the limit: what was said last, and what runs.
watch() { # LEADER
	trap 'kill $sleep; exit' TERM
	sleep "$(awk -v limit="$limit" 'BEGIN { print (limit > 30 ? limit - 5 : limit * 2 / 3) }')" &
	sleep=$!
	wait $sleep
	echo "last line: $(tail -n 1 "$log" | cut -c 1-200)" >"$doing"
	group_members "$1" | sed 's/^/running: /' >>"$doing"
}

# Threads that wait give their processor to the other tests.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

began=$(date +%s.%N)
CMOCKA_MESSAGE_OUTPUT=TAP timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 &
leader=$!
watch $leader >/dev/null 2>&1 &
watcher=$!
wait $leader
status=$?
ended=$(date +%s.%N)
kill $watcher 2>/dev/null
times >"$result.times" # not through a pipe: a subshell has other children
seconds=$(awk -v began="$began" -v ended="$ended" '
	NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, "[ms]"); used += 60 * part[1] + part[2] } }
	END { printf "%.1f %.1f", ended - began, used }' "$result.times")
rm -f "$result.times"

awk -v status=$status -v seconds="$seconds" '
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
		print passed + 0, failed + 0, skipped + 0, seconds
	}' "$log" >"$result.new" && touch -d "@$began" "$result.new" && mv "$result.new" "$result"

read -r passed failed skipped seconds <"$result"
line="$passed passed" how="exit status $status"
case $status in
124 | 137) [ ! -e "$doing" ] || how="longer than its limit of $limit s" ;;
*) rm -f "$doing" ;;
esac
[ "$failed" -eq 0 ] || line="$line, $failed failed ($how)"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
printf '  TEST    %-32s %s\n' "$name" "$line"
if [ "$failed" -gt 0 ]; then
	[ ! -e "$doing" ] || sed 's/^/          /' "$doing"
	sed 's/^/          /' "$log"
else
	# (cmocka prints "not ok N # SKIP NAME", and skip() of core/util/test.h the reason before it.)
	sed -nE -e '/^# why: /{s///;h}' \
		-e '/^(not )?ok [0-9]+ # SKIP (.*)/{s//          skipped: \2/;G;s/\n/, /p}' \
		-e 's/^ok ([0-9]+ - )?(.*) # SKIP (.*)/          skipped: \2, \3/p' "$log"
fi
