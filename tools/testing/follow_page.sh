# Do what a page of docs/ says, in a copy of the tree.  Sourced by the tests of these pages.
#
#   page=docs/PAGE.md; . tools/testing/follow_page.sh
#
# Blocks that follow "New file `PATH`:" become files, those that follow "A line in `PATH`, beside
# the others of its kind:" are put behind the last line that begins alike; the indented lines
# under "Using it", or the heading that $section names, are commands.
set -uo pipefail
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
O=$(realpath "${O:-build}")

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

# Objects are copied with their times, as sources are: only what the page
# changes is compiled again.
copy_tree() {
	local part

	mkdir -p "$tree/build/tools" "$scratch/blocks" &&
		cp -a Kconfig Makefile core data defconfigs docs models tools "$tree" || return 1
	for part in core data models generated setup-build setup-python setup-test toolchain flags \
		objects parts.a; do
		[ ! -e "$O/$part" ] || cp -a "$O/$part" "$tree/build" || return 1
	done
	cp -a "$O"/tools/kablate "$tree/build/tools"
}

# What the page says to do, as lines "ACTION PATH", the block in $scratch/blocks/NUMBER.
read_page() { # standard input: what is expected
	awk -v blocks="$scratch/blocks/" '
		/^New file `.*`:$/       { action = "create"; split($0, part, "`"); path = part[2] }
		/^A line in `.*`, beside/ { action = "insert"; split($0, part, "`"); path = part[2] }
		/^```/ && inside         { inside = 0; close(file); next }
		/^```/ && action         { inside = 1; file = blocks (++n); print action, path; action = ""; next }
		inside                   { print > file }
	' "$page" >"$scratch/actions"
	diff - "$scratch/actions"
}

insert_line() { # PATH BLOCK
	[ "$(wc -l <"$2")" -eq 1 ] &&
		line=$(cat "$2") awk '
			BEGIN { new = ENVIRON["line"] }
			{ line[NR] = $0 }
			substr($0, 1, 4) == substr(new, 1, 4) { last = NR }
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
			[ ! -e "$tree/$path" ] && cp "$scratch/blocks/$n" "$tree/$path" || return 1
			;;
		insert) insert_line "$tree/$path" "$scratch/blocks/$n" || return 1 ;;
		esac
	done <"$scratch/actions"
}

# As a user would call it: of the make that runs this test only the compiler and libraries are kept.
in_copy() { # COMMAND
	(cd "$tree" && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u KCONFIG_CONFIG -u T -u TIER O=build \
		bash -c "$1")
}

commands() { sed -n "/^## ${section:-Using it}/,/^## /s/^    //p" "$page"; }

# Every command, a test case each.
use_it() {
	local command

	while read -r command; do
		tap "$command" in_copy "$command"
	done < <(commands)
}
