# Prints the directory of a make's plan: BASE, or BASE.2, BASE.3, ... while makes with other
# configurations use the ones before it.  So no make changes the plan of another one that trains.
#
#   sh claim_plan.sh BASE CONFIGURATION PID     PID: of the make
#
# BASE.claims has a line for each make: its PID, when that process started, the hash of its configuration,
# its directory.  A claim ends with its process.
base=$1 configuration=$2 pid=$3
most=9

started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

others() { # claims of makes that still run
	local owner since hash directory

	while read -r owner since hash directory; do
		[ "$owner" != "$pid" ] && [ "$(started "$owner")" = "$since" ] &&
			echo "$owner $since $hash $directory"
	done <"$base.claims"
}

claimed() { # HASH or nothing, DIRECTORY
	echo "$claims" | grep -q "$1.* $2\$"
}

directories() {
	echo "$base"
	for n in $(seq 2 $most); do echo "$base.$n"; done
}

# First a directory that another make uses with this configuration, then one that was made for it, then any.
choose() {
	for directory in $(directories); do
		claimed " $own" "$directory" && echo "$directory"
	done
	for directory in $(directories); do
		! claimed "" "$directory" && cmp -s "$configuration" "$directory/configuration" && echo "$directory"
	done
	for directory in $(directories); do
		! claimed "" "$directory" && echo "$directory"
	done
}

mkdir -p "$(dirname "$base")" && exec 9>>"$base.claims" && flock 9 || exit
own=$(sha256sum <"$configuration" | cut -c1-64)
claims=$(others)
chosen=$(choose | sed -n 1p)   # not head: dash would complain of a closed pipe where SIGPIPE is ignored
{
	[ -z "$claims" ] || echo "$claims"
	[ -z "$chosen" ] || echo "$pid $(started "$pid") $own $chosen"
} >"$base.claims"
echo "$chosen"
