#!/bin/bash
# Which logs of racecheck foreign_races.sh lets pass.
set -uo pipefail
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

race() { # KERNEL [OTHER]
	echo "========= Error: Race reported between Read access at $1+0xb00"
	echo "=========     and Write access at ${2:-$1}+0x2b40 [128 hazards]"
	echo '========='
}

passed='[  PASSED  ] 2 test(s).'
library='nvjet_sm90_tss_64x32_64x16_4x2_h_bz_NTT'

check() { # NAME STATUS, and a log on standard input
	cat >"$scratch/log"
	sh tools/testing/foreign_races.sh "$scratch/log"
	if [ $? -eq "$2" ]; then
		echo "ok $1"
	else
		echo "not ok $1"
	fi
}

{ race $library && echo "$passed"; } | check "races inside cuBLAS are not ours" 0
{ race $library && race each_kernel && echo "$passed"; } | check "one of ours is found among them" 1
{ race $library each_kernel && echo "$passed"; } | check "so is one that has a part in ours" 1
{ race $library && echo '[  FAILED  ] 1 test(s)'; } | check "a test must pass" 1
{ race $library && echo '========= Internal Sanitizer Error: ...' && echo "$passed"; } | check "other errors count" 1
echo "$passed" | check "a program that ended badly has to say why" 1
