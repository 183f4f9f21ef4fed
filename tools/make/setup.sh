#!/bin/bash
# Find the compiler and libraries that a group of targets needs; install missing ones with apt.
#
#   tools/make/setup.sh build|python|test|ranks|nvcc|emulated|foreign|browser|slurm|cppcheck
#
# build: to compile;  python: to configure;  test: what the tests add;
# ranks: to run over several processes;  nvcc: what nvcc from PyPI needs;  emulated: to emulate a GPU;
# foreign: to compile for the other architecture and run it emulated;  browser: to test pages;
# slurm: to test with a cluster;  cppcheck: to check the sources.
# Prints the compiler and linker flags of the group's libraries (for python: the interpreter) on
# standard output, everything else on standard error.  Installs as root or through passwordless
# sudo; if it may not (or with NO_INSTALL=1, or where there is no apt) it prints the command that would install,
# with the names that the packages have there.  The Makefile
# passes CC, SANITIZE, BLAS, BLAS_CFLAGS, BLAS_LIBS, PYTHON and NO_INSTALL.
set -uo pipefail

CC=${CC:-gcc} BLAS=${BLAS:-openblas}
compiler=$(basename "${CC##* }") # "ccache gcc-13": the package is gcc-13

# Debian keeps each threading flavour of a BLAS in its own directory and points the plain name at
# one of them.  We name the OpenMP one: the threads of the others and those of our OpenMP loops
# would compete for the cores.
triplet=$(uname -m)-linux-gnu
blas_include=/usr/include/$triplet/$BLAS-openmp
blas_lib=/usr/lib/$triplet/$BLAS-openmp

say() { printf '%s\n' "$*" >&2; }
die() { say "kablate: $*"; exit 1; }

# ---------------------------------------------------------------- what is needed
missing=()

# need PACKAGES CHECK...: the packages are missing when the check fails.
need() {
	local packages=$1
	shift
	# shellcheck disable=SC2206 # several packages in one word
	"$@" >/dev/null 2>&1 || missing+=($packages)
}

compiler_packages() {
	case $compiler in
	clang-*) echo "$compiler libomp-${compiler#clang-}-dev" ;;
	clang) echo "clang libomp-dev" ;;
	cc) echo "gcc libc6-dev" ;;
	*) echo "$compiler libc6-dev" ;;
	esac
}

# compiles OPTIONS...
# shellcheck disable=SC2086 # CC may hold a wrapper or options
compiles() { echo 'int main(void) { return 0; }' | $CC -x c - -o /dev/null "$@"; }

sanitizer_package() {
	case $compiler in
	clang-*) echo "libclang-rt-${compiler#clang-}-dev" ;;
	*) echo "libclang-rt-dev" ;;
	esac
}

# Newer Debians package the sanitizers of clang separately: look for them once clang is installed.
sanitizer_works() {
	[ -z "${SANITIZE:-}" ] || ! compiles -fopenmp || compiles "-fsanitize=$SANITIZE"
}

has_openmp_blas() { [ -n "${BLAS_LIBS:-}" ] || [ -e "$blas_lib/lib$BLAS.so" ]; }
has_other_blas() { pkg-config --exists "$BLAS"; }
other_blas_will_do= # set when the OpenMP build cannot be had
has_blas() { has_openmp_blas || { [ $other_blas_will_do ] && has_other_blas; }; }

# An interpreter that has kconfiglib.  apt installs modules for the system's python3, which may not
# be the first one of the path.
find_python() {
	local python

	for python in ${PYTHON:-python3 /usr/bin/python3}; do
		"$python" -c 'import kconfiglib' 2>/dev/null && echo "$python" && return
	done
	return 1
}

foreign=aarch64 foreign_debian=arm64
[ "$(uname -m)" != aarch64 ] || foreign=x86_64 foreign_debian=amd64
foreign_compiles() { CC=$foreign-linux-gnu-gcc compiles -fopenmp; }

look_for() {
	case $1 in
	build)
		need "$(compiler_packages)" compiles -fopenmp
		need "$(sanitizer_package)" sanitizer_works
		need pkg-config pkg-config --version
		need "lib$BLAS-openmp-dev" has_blas
		need libcjson-dev pkg-config --exists libcjson
		need libsqlite3-dev pkg-config --exists sqlite3
		need libpcre2-dev pkg-config --exists libpcre2-8
		;;
	python) need "python3 python3-kconfiglib" find_python ;;
	test)
		need pkg-config pkg-config --version
		need libcmocka-dev pkg-config --exists cmocka
		;;
	browser) need "chromium fonts-dejavu-core" chromium --version ;;
	ranks)
		need libopenmpi-dev "${MPICC:-mpicc}" --version
		need openmpi-bin mpirun --version
		;;
	nvcc)
		need g++ g++ --version
		need python3-venv /usr/bin/python3 -c 'import ensurepip'
		;;
	emulated) need g++ "${CXX:-g++}" --version ;;
	foreign)
		# The compiler only recommends its C library.
		need "gcc-${foreign//_/-}-linux-gnu libc6-dev-$foreign_debian-cross" foreign_compiles
		need qemu-user "qemu-$foreign" --version
		;;
	slurm)
		need slurm-wlm slurmctld -V
		need munge munged --version
		;;
	cppcheck) need cppcheck cppcheck --version ;;
	*) die "setup: no group '$1' (build, python, test, ranks, nvcc, emulated, foreign, browser, slurm or cppcheck)" ;;
	esac
}

# What a package contains, for systems whose names for it we do not know.
in_words() {
	case $1 in
	lib"$BLAS"-openmp-dev) echo "the $BLAS library with cblas.h (its OpenMP build, if there is one)" ;;
	libcjson-dev) echo "cJSON" ;;
	libsqlite3-dev) echo "SQLite 3" ;;
	libpcre2-dev) echo "PCRE2 (8 bit)" ;;
	libcmocka-dev) echo "cmocka" ;;
	libomp*-dev) echo "the OpenMP runtime of clang" ;;
	libc6-dev) echo "the headers of the C library" ;;
	python3) echo "Python 3" ;;
	python3-kconfiglib) echo "kconfiglib for ${PYTHON:-python3} (pip install kconfiglib)" ;;
	libopenmpi-dev) echo "MPI with its compiler mpicc" ;;
	openmpi-bin) echo "mpirun" ;;
	*) echo "$1" ;;
	esac
}

# Other systems: how their package manager installs, and one line per package of Debian with its name there.
# Empty: it is in no package of its own.
other_systems="dnf pacman zypper"
command_of() {
	case $1 in
	dnf) echo "dnf install -y" ;;
	pacman) echo "pacman -S --needed --noconfirm" ;;
	zypper) echo "zypper install -y" ;;
	esac
}
names_of() { # MANAGER PACKAGE
	local fedora arch suse

	case $2 in
	gcc) fedora=gcc arch=gcc suse=gcc ;;
	g++) fedora=gcc-c++ arch=gcc suse=gcc-c++ ;;
	clang) fedora=clang arch=clang suse=clang ;;
	libc6-dev) fedora=glibc-devel arch='' suse=glibc-devel ;;
	libomp-dev) fedora=libomp-devel arch=openmp suse=libomp-devel ;;
	pkg-config) fedora=pkgconf-pkg-config arch=pkgconf suse=pkg-config ;;
	libopenblas-openmp-dev) fedora=openblas-devel arch=openblas suse=openblas-devel ;;
	libblis-openmp-dev) fedora=blis-devel arch=blis suse=blis-devel ;;
	libcjson-dev) fedora=cjson-devel arch=cjson suse=cJSON-devel ;;
	libsqlite3-dev) fedora=sqlite-devel arch=sqlite suse=sqlite3-devel ;;
	libpcre2-dev) fedora=pcre2-devel arch=pcre2 suse=pcre2-devel ;;
	libcmocka-dev) fedora=libcmocka-devel arch=cmocka suse=libcmocka-devel ;;
	python3) fedora=python3 arch=python suse=python3 ;;
	python3-kconfiglib) fedora=python3-kconfiglib arch='' suse='' ;;
	libopenmpi-dev) fedora=openmpi-devel arch=openmpi suse=openmpi4-devel ;;
	openmpi-bin) fedora=openmpi arch=openmpi suse=openmpi4 ;;
	*) fedora=$2 arch=$2 suse=$2 ;;
	esac
	case $1 in
	dnf) echo "$fedora" ;;
	pacman) echo "$arch" ;;
	zypper) echo "$suse" ;;
	esac
}

other_manager() {
	local manager

	for manager in $other_systems; do
		command -v "$manager" >/dev/null && echo "$manager" && return
	done
	return 1
}

# ---------------------------------------------------------------- installing
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

as_root=(sudo -n)
[ "$(id -u)" != 0 ] || as_root=()

apt() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y -o DPkg::Lock::Timeout=60 "$@" </dev/null >"$log" 2>&1
}

# Another flavour of the BLAS is slower, not wrong: use it if we may not install.
accept_other_blas() {
	[[ " ${missing[*]} " == *" lib$BLAS-openmp-dev "* ]] && has_other_blas 2>/dev/null || return 1
	say "  NOTE    lib$BLAS-openmp-dev would be faster than $(pkg-config --libs "$BLAS")"
	other_blas_will_do=yes
}

# What all groups lack, so that the next target does not ask again.
miss_all() {
	local group

	for group in build python test; do
		look_for $group
	done
	mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
}

sudo='sudo '
[ "$(id -u)" != 0 ] || sudo=

tell_command() {
	local reason=$1

	miss_all
	say "kablate: $reason; to install what is missing:"
	say "    ${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends ${missing[*]}"
	exit 1
}

# Where there is no apt.
tell_names() {
	local manager package names=()

	manager=$(other_manager) || tell_in_words "this system has no apt-get"
	miss_all
	for package in "${missing[@]}"; do
		mapfile -t -O ${#names[@]} names < <(names_of "$manager" "$package" | grep .)
	done
	mapfile -t names < <(printf '%s\n' "${names[@]}" | sort -u | grep .)
	say "kablate: to install what is missing, then call make again:"
	[ ${#names[@]} -eq 0 ] || say "    $sudo$(command_of "$manager") ${names[*]}"
	[[ " ${missing[*]} " != *" python3-kconfiglib "* ]] || [ -n "$(names_of "$manager" python3-kconfiglib)" ] || {
		say "    python3 -m venv ~/kablate-python && ~/kablate-python/bin/pip install kconfiglib"
		say "    export PYTHON=~/kablate-python/bin/python"
	}
	exit 1
}

tell_in_words() {
	local package

	say "kablate: $1; this is missing:"
	for package in "${missing[@]}"; do
		say "    $(in_words "$package")"
	done
	exit 1
}

is_locked() { grep -q 'Could not get lock\|Unable to acquire\|Unable to lock' "$log"; }

explain_failure() {
	! is_locked ||
		die "another package manager holds the apt lock; wait for it, then call make again"
	! grep -q 'dpkg was interrupted' "$log" ||
		die "an earlier installation was interrupted; run 'dpkg --configure -a' as root first"
	grep '^[EW]:' "$log" >&2 || tail -n 5 "$log" >&2
	tell_command "apt-get failed"
}

# The package lists may be missing or old: fetch them only if installing fails.
install() {
	say "  APT     ${missing[*]}"
	apt install --no-install-recommends "${missing[@]}" && return
	! is_locked && apt update && apt install --no-install-recommends "${missing[@]}" && return
	explain_failure
}

install_or_explain() {
	if ! command -v apt-get >/dev/null; then
		accept_other_blas || tell_names
	elif [ -n "${NO_INSTALL:-}" ]; then
		accept_other_blas || tell_command "NO_INSTALL is set"
	elif [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
		accept_other_blas || tell_command "not root, and no sudo without a password"
	else
		install
	fi
}

# ---------------------------------------------------------------- flags
blas_flags() {
	if [ -n "${BLAS_LIBS:-}" ]; then
		echo "${BLAS_CFLAGS:-} $BLAS_LIBS"
	elif has_openmp_blas; then # BLIS warns in its header, hence -isystem
		echo "-isystem$blas_include -L$blas_lib -Wl,-rpath,$blas_lib -l$BLAS"
	else
		pkg-config --cflags --libs "$BLAS"
	fi
}

flags() {
	case $1 in
	build) echo "$(blas_flags) $(pkg-config --cflags --libs libcjson sqlite3 libpcre2-8)" ;;
	python) find_python ;;
	test) pkg-config --cflags --libs cmocka ;;
	ranks | nvcc | emulated | foreign | browser | slurm | cppcheck) ;;
	esac
}

# ---------------------------------------------------------------- main
group=${1:-build}
exec 9<"$0" && flock 9 # `make -j` may ask for two groups at once; apt cannot

tried=
while look_for "$group" && [ ${#missing[@]} -gt 0 ]; do
	[ "${missing[*]}" != "$tried" ] || tell_in_words "$tried installed, but cannot be used here"
	tried=${missing[*]}
	install_or_explain
	missing=()
done
flags "$group"
