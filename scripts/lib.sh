# Sourced by the scripts beside it: where the tree is, how to speak, how to find or install a tool.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/srpoll-vm
# Debian's administrator tools are not on an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# The number of workers for anything that compiles.
jobs_wanted() { nproc 2>/dev/null || echo 2; }

# missing_packages NAME... : those of Debian's packages that are not installed, one a line.
missing_packages() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

# need_packages NAME... : installs what is missing. Without root it uses sudo where that asks nothing,
# else it says what an administrator has to install and fails.
need_packages() {
    local missing as_root=()
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        if sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            die "not root, and these packages are missing: ${missing}(as root: apt-get install ${missing% })"
        fi
    fi
    say "installing: $missing"
    # Another apt-get may hold the lock for a moment: wait for it. What it prints matters only if it fails.
    local output
    output=$("${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update 2>&1) || say "$output"
    # shellcheck disable=SC2086 # a list of words
    output=$("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Use-Pty=0 install --no-install-recommends $missing 2>&1 </dev/null) ||
        die "could not install: $missing"$'\n'"$output"
}

# version_at_least HAVE WANT : dotted numbers.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" = "$2" ]; }

# use_rust : puts a toolchain that is new enough for Cargo.toml first on PATH; false if there is none.
use_rust() {
    local want dir
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    for dir in $(dirname "$(command -v cargo || echo /usr/bin/cargo)") "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/local/bin /usr/bin; do
        [ -x "$dir/cargo" ] && [ -x "$dir/rustc" ] || continue
        if version_at_least "$(cd "$ROOT" && "$dir/rustc" --version 2>/dev/null | awk '{print $2}')" "$want"; then
            PATH=$dir:$PATH
            return 0
        fi
    done
    return 1
}
