#!/bin/bash
# docs/add-a-variant.md works as it stands: its blocks are put into a copy of the tree, which then
# is configured, audited and trained.
set -uo pipefail

page=docs/add-a-variant.md
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tap() { # NAME COMMAND...: one test case
	local name=$1
	shift
	if "$@" >"$scratch/log" 2>&1; then
		echo "ok $name"
	else
		echo "not ok $name"
		sed 's/^/# /' "$scratch/log"
		exit 1
	fi
}

copy_tree() {
	mkdir "$scratch/tree" &&
		cp -a Kconfig Makefile core data defconfigs docs models tools "$scratch/tree"
}

# What the page says to do, as lines "ACTION PATH", the block in $scratch/blocks/NUMBER.
read_page() {
	mkdir "$scratch/blocks"
	awk -v blocks="$scratch/blocks/" '
		/^New file `.*`:$/       { action = "create"; split($0, part, "`"); path = part[2] }
		/^A line in `.*`, beside/ { action = "insert"; split($0, part, "`"); path = part[2] }
		/^```/ && inside         { inside = 0; close(file); next }
		/^```/ && action         { inside = 1; file = blocks (++n); print action, path; action = ""; next }
		inside                   { print > file }
	' "$page" >"$scratch/actions"
	diff - "$scratch/actions" <<-END
		create models/attention/cos.c
		create models/attention/cos.kconfig
		insert models/attention/Kconfig
		insert models/Makefile
	END
}

# A line goes behind the last one that begins alike.
insert_line() { # PATH BLOCK
	[ "$(wc -l <"$2")" -eq 1 ] &&
		awk -v new="$(cat "$2")" '
			{ line[NR] = $0 }
			substr($0, 1, 6) == substr(new, 1, 6) { last = NR }
			END {
				for (i = 1; i <= NR; i++) {
					print line[i]
					if (i == last)
						print new
				}
				exit !last
			}' "$1" >"$1.new" && mv "$1.new" "$1"
}

follow_page() {
	local action path n=0

	while read -r action path; do
		n=$((n + 1))
		case $action in
		create)
			[ ! -e "$scratch/tree/$path" ] &&
				cp "$scratch/blocks/$n" "$scratch/tree/$path" || return 1
			;;
		insert) insert_line "$scratch/tree/$path" "$scratch/blocks/$n" || return 1 ;;
		esac
	done <"$scratch/actions"
}

# As a user would call it: nothing of the make that runs this test but compiler and libraries.
in_copy() {
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u KCONFIG_CONFIG \
		make -C "$scratch/tree" O=build RUNS=runs CFLAGS=-O2 -j2 "$@"
}

configure() {
	in_copy defconfig-smoke &&
		in_copy set CONFIG_PLAN_SINGLE=y CONFIG_ATTENTION_COS=y CONFIG_GPT2_MAX_ITERS=2 &&
		grep -qx 'CONFIG_ATTENTION_COS=y' "$scratch/tree/.config"
}

audit() {
	in_copy audit >"$scratch/audit"
	local status=$?
	cat "$scratch/audit"
	[ $status -eq 0 ] && grep -q 'audits, passed$' "$scratch/audit"
}

# The weights that were trained are the variant's.
train() {
	in_copy runs &&
		grep -q 'h\.1\.attn\.q_norm\.weight' "$scratch"/tree/runs/smoke/*/*.safetensors &&
		ls "$scratch"/tree/runs/smoke/*/done
}

echo 1..6
tap "the tree is copied" copy_tree
tap "the page names two new files and two lines, none in core/" read_page
tap "they fit into the tree" follow_page
tap "the variant can be chosen" configure
tap "its audits pass" audit
tap "it trains" train
