#!/bin/sh
# Carries prepared token files to another machine: compressed parts of a limited size, with their hashes.
#
#     pack.sh pack FROM PARTS MEGABYTES     PARTS/part-000 and on, PARTS/SHA256SUMS
#     pack.sh unpack TO PARTS               checks every part, then puts the files below TO
set -eu

fail()
{
	echo "data-$command: $*" >&2
	exit 1
}

pack()
{
	from=$1 parts=$2 megabytes=$3
	case $megabytes in ''|*[!0-9]*|0*) fail "MEGABYTES=$megabytes: expected a whole number" ;; esac
	test -f "$from/data.json" || fail "$from/data.json is not there: run make data first"
	test -z "$(ls -A "$parts")" || fail "$parts is not empty"
	# The names are sorted and owners left out, so that the same files give the same parts.
	tar -C "$from" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . |
		xz -T2 -6 | split -b "${megabytes}000000" -a 3 -d - "$parts/part-" ||
		fail "could not write all parts: remove $parts"
	(cd "$parts" && sha256sum part-* >SHA256SUMS.tmp && mv SHA256SUMS.tmp SHA256SUMS)
	echo "$parts: $(ls "$parts" | grep -c part-) parts, $(du -sm "$parts" | cut -f1) MB"
}

unpack()
{
	to=$1 parts=$2
	test -f "$parts/SHA256SUMS" || fail "$parts/SHA256SUMS is not there"
	test ! -e "$to" || fail "$to is there already: remove it first"
	# Nothing but our parts is named there.
	! grep -vqE '^[0-9a-f]{64}  part-[0-9]{3}$' "$parts/SHA256SUMS" || fail "$parts/SHA256SUMS: not a list of parts"
	(cd "$parts" && sha256sum --quiet -c SHA256SUMS) || fail "$parts: a part is missing or damaged; nothing was unpacked"
	mkdir -p "$to.tmp"
	(cd "$parts" && cut -d' ' -f3 SHA256SUMS | xargs cat) | xz -dc | tar -C "$to.tmp" --no-same-owner --no-same-permissions -xf - ||
		{ rm -rf "$to.tmp"; fail "could not unpack $parts"; }
	# Links, devices and the like; names that a terminal obeys.
	strange=$(LC_ALL=C find "$to.tmp" -mindepth 1 \( ! -type f ! -type d -o -name '*[[:cntrl:]]*' \) -printf '%P' -quit |
		LC_ALL=C tr '[:cntrl:]' '?')
	test -z "$strange" || { rm -rf "$to.tmp"; fail "$parts: $strange is no plain file; nothing was unpacked"; }
	mv "$to.tmp" "$to"
	echo "$to: $(ls "$to" | wc -l) files"
}

command=$1
shift
"$command" "$@"
