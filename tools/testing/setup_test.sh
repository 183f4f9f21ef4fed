#!/bin/bash
# What the set-up says where there is no apt: the commands of that system.  Each system is a PATH without a
# compiler, with the package manager's name in it.  Where there is apt, it says first what apt will install.
set -uo pipefail
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

system() { # NAME [MANAGER]: a directory of programs
	local program

	mkdir -p "$scratch/$1"
	for program in awk basename bash cat cut dirname env find flock git grep head id mktemp nproc printf rm sed \
		sh sha256sum sort tr uname xargs; do
		ln -sf "$(type -P "$program")" "$scratch/$1/$program"
	done
	[ $# -eq 1 ] || printf '#!/bin/sh\nexit 1\n' >"$scratch/$1/$2"
	chmod +x "$scratch/$1"/*
}

says() { # NAME PATTERN...: all of them
	local name=$1 pattern
	shift
	PATH=$scratch/$name PYTHON=no-such-python bash tools/make/setup.sh build >"$scratch/said" 2>&1 && return 1
	for pattern in "$@"; do
		grep -qE -- "$pattern" "$scratch/said" || { sed 's/^/# /' "$scratch/said"; return 1; }
	done
	! grep -q 'apt-get install\|libcjson-dev\|command not found' "$scratch/said"
}

case_of() { # NAME COMMAND...
	local name=$1
	shift
	if "$@"; then echo "ok $name"; else echo "not ok $name"; fi
}

mac() {
	printf '#!/bin/sh\necho Darwin\n' >"$scratch/mac/uname"
	! PATH=$scratch/mac:$PATH make -n >"$scratch/said" 2>&1 &&
		grep -qF 'brew install podman' "$scratch/said" &&
		grep -qF 'podman build -t kablate -f tools/container/Dockerfile .' "$scratch/said" &&
		grep -qF 'macOS is not supported' "$scratch/said"
}

debian() { # a user with sudo; sudo and apt-get say that they are called
	printf '#!/bin/sh\necho 1000\n' >"$scratch/debian/id.new"
	mv "$scratch/debian/id.new" "$scratch/debian/id"
	printf '#!/bin/sh\nshift\n"$@"\n' >"$scratch/debian/sudo"
	printf '#!/bin/sh\necho "called apt-get $*" >>"%s"\n' "$scratch/said" >"$scratch/debian/apt-get"
	chmod +x "$scratch/debian"/{id,sudo,apt-get}
	: >"$scratch/said"
	! PATH=$scratch/debian PYTHON=no-such-python bash tools/make/setup.sh build >>"$scratch/said" 2>&1 &&
		sed -n 1p "$scratch/said" | grep -qE '^  APT     gcc .*libcjson-dev' &&
		sed -n 2p "$scratch/said" | grep -qE '^called apt-get .* install --no-install-recommends gcc .*libcjson-dev' &&
		return
	sed 's/^/# /' "$scratch/said"
	return 1
}

echo 1..6
system fedora dnf
system arch pacman
system suse zypper
system other
system debian apt-get
mkdir "$scratch/mac" && : >"$scratch/mac/uname" && chmod +x "$scratch/mac/uname"
case_of "Fedora" says fedora 'dnf install -y .*cjson-devel .*gcc .*libcmocka-devel .*python3-kconfiglib .*sqlite-devel'
case_of "Arch" says arch 'pacman -S .*cjson cmocka gcc .*pcre2 .*python sqlite' \
	'bin/pip install kconfiglib' 'export PYTHON='
case_of "openSUSE" says suse 'zypper install -y .*cJSON-devel .*gcc .*sqlite3-devel'
case_of "another system" says other 'this system has no apt-get; this is missing' '^    cJSON$'
case_of "macOS" mac
case_of "what apt will install is said first" debian
