#!/bin/bash
# The README's two steps as a newcomer types them, at toy size: a defconfig, then plain `make`.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset MAKEFLAGS MAKELEVEL MFLAGS
export KCONFIG_CONFIG=$work/config
O=${O:-build}

run() {
	make --no-print-directory O="$O" PLAN="$work/plan" RUNS="$work/runs" "$@" >"$work/log" 2>&1
}
check() { # NAME COMMAND...
	name=$1
	shift
	if "$@"; then
		echo "ok $name"
	else
		echo "not ok $name"
		sed 's/^/# /' "$work/log"
	fi
}
fails() { ! "$@"; }

check "make without a configuration is refused" fails run
check "and names the command" grep -q 'make defconfig-gpt2-ra-mla-full && make' "$work/log"
check "make defconfig-smoke" run defconfig-smoke
check "make runs the experiment" run
check "and ends in its table" grep -q '5-mla+gate+cross+latent-again .* reproduced' "$work/log"
for form in md csv tex json html; do
	check "report.$form is written" test -s "$work/runs/smoke/report/report.$form"
done
check "make again" run
check "trains nothing" fails grep -q '  RUN ' "$work/log"
check "a wrong name is refused" fails run defconfig-smok
check "and near ones are named" grep -q smoke "$work/log"
