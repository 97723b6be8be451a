#!/usr/bin/env bash
# Installs a package of `cargo xtask deb` as a user does, uses what it brings, and removes it again:
#
#     packaging/try-deb.sh PACKAGE           in a copy of this machine
#     packaging/try-deb.sh PACKAGE FOLDER    in a fresh Debian, where it also runs `onramp demo`
#
# In the first form, an overlay of the machine's own root takes all changes, and vanishes at the
# end. In the second form, FOLDER has a Debian as debootstrap makes it; if FOLDER does not exist,
# the script has debootstrap fetch one. FOLDER is not changed either.
#
# Needs root. Exits with 0 if all is well, with 1 if the package has a fault, and with 3, after a
# line that begins with `SKIP:`, if something could not be tried.
set -euo pipefail

# Programs that find what a package brings, with the Debian package of each.
tools=(man:man-db systemd-analyze:systemd zsh:zsh fish:fish)
completion=/usr/share/bash-completion/bash_completion

say() { echo "try-deb: $*" >&2; }
fail() { say "FAILED: $*"; exit 1; }
cannot() { echo "SKIP: try-deb: $*" >&2; exit 3; }

# Runs a script in the trial's root, with nothing of this shell's environment but proxies.
inside() {
    chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/tmp TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+"http_proxy=$http_proxy"} bash -euo pipefail -c "$1" bash "${@:2}" </dev/null
}

# Prints what the trial's root has and its base has not, but for what apt and dpkg keep for
# themselves, and for caches. Files that the base has with other content are printed, too.
changes() {
    (cd "$upper" && find . -path ./var/lib/dpkg -prune -o -path ./var/lib/apt -prune -o \
        -path ./var/cache -prune -o -path ./var/log -prune -o -print) |
        while read -r path; do
            [ -d "$base/$path" ] || echo "$path"
        done | sort
}

# Installs the package, calls a function that uses it, and purges it: nothing may remain.
round() {
    changes >"$work/before"
    inside 'apt-get install --yes --quiet --no-install-recommends /tmp/onramp.deb >/tmp/apt 2>&1 ||
        { cat /tmp/apt >&2; exit 1; }' || fail "apt does not install the package"
    "$@"
    inside 'apt-get purge --yes --quiet onramp >/tmp/apt 2>&1 || { cat /tmp/apt >&2; exit 1; }' ||
        fail "apt does not purge the package"
    changes | comm -13 "$work/before" - >"$work/left"
    [ ! -s "$work/left" ] || fail "purge leaves: $(tr '\n' ' ' <"$work/left")"
    say "ok: nothing is left after a purge"
}

uses_program() {
    inside 'onramp --version' >&2 || fail "the installed program fails"
    # Each Debian has Perl.
    inside "onramp exec --qdisc 'netem loss 100%' -- perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM,
        0); send(S, \"x\", 0, sockaddr_in(9, inet_aton(\"127.0.0.1\")))' 2>&1" >"$work/exec" ||
        fail "onramp exec"
    grep -q "1 dropped" "$work/exec" || fail "its library drops nothing: $(cat "$work/exec")"
    say "ok: the program runs, and finds its library"
}

uses_demo() {
    uses_program
    inside 'onramp demo --html /tmp/demo.html && grep -qi "</html>" /tmp/demo.html' >&2 ||
        fail "onramp demo"
    say "ok: onramp demo"
}

uses_all() {
    uses_program
    inside 'dpkg -L onramp | grep "/man/man" | grep "[.]gz$" | while read -r page; do
        name=${page##*/} name=${name%.gz}
        [ "$(man -w "${name##*.}" "${name%.*}")" = "$page" ] || { echo "$page" >&2; exit 1; }
    done' || fail "man does not find a page"
    say "ok: man finds all pages"
    inside ". $completion; _completion_loader onramp || [ \$? = 124 ]; complete -p onramp" \
        >"$work/bash" || fail "bash does not find its completion"
    grep -q -e '-F _onramp' "$work/bash" || fail "bash does not find its completion"
    inside 'zsh -fc "autoload -U compinit && compinit -D && print \$_comps[onramp]"' \
        >"$work/zsh" || fail "zsh does not find its completion"
    grep -q onramp "$work/zsh" || fail "zsh does not find its completion"
    inside 'fish -c "complete -C \"onramp \""' >"$work/fish" || fail "fish"
    grep -q '^demo' "$work/fish" || fail "fish does not find its completion"
    say "ok: bash, zsh and fish find their completions"
    local faults
    faults=$(inside 'systemd-analyze verify onramp.service' 2>&1) || fail "the unit: $faults"
    [ -z "$faults" ] || fail "the unit: $faults"
    say "ok: the systemd unit"
    uses_unit
}

# Starts the daemon by the unit's own line, because no systemd runs here; a client has to find it.
uses_unit() {
    inside 'mkdir -p /run/onramp
    line=$(sed -n "s/^ExecStart=//p" /usr/lib/systemd/system/onramp.service)
    $line 2>/tmp/daemon & daemon=$!
    trap "kill $daemon" EXIT
    for _ in $(seq 300); do
        ! onramp ip link add d0 up type dummy 2>/tmp/client || break
        kill -0 "$daemon" || { cat /tmp/daemon >&2; exit 1; }
        sleep 0.1
    done
    onramp tc qdisc add dev d0 root tbf rate 1mbit burst 5kb latency 50ms
    onramp tc qdisc show dev d0 | grep -q "^qdisc tbf"' ||
        fail "the daemon of the unit cannot be used"
    say "ok: the daemon of the unit, and a client that finds it"
}

# Installs the tools that the root lacks. They go with the overlay.
bring_tools() {
    local missing=() pair
    for pair in "${tools[@]}"; do
        inside "command -v ${pair%%:*} >/dev/null" || missing+=("${pair##*:}")
    done
    inside "test -e $completion" || missing+=(bash-completion)
    [ "${#missing[@]}" != 0 ] || return 0
    say "the trial's root gets ${missing[*]}"
    inside 'install() { apt-get install --yes --quiet --no-install-recommends "$@"; }
        install "$@" || { apt-get update --quiet && install "$@"; }' "${missing[@]}" \
        >"$work/apt" 2>&1 || cannot "apt cannot install ${missing[*]}: $(tail -n 1 "$work/apt")"
}

# Makes the trial's root, an overlay over `base`, and tries the package in it.
try() {
    package=$1 base=$2 work=$3 fresh=$4 upper=$3/upper root=$3/root
    mount -t tmpfs -o size=3g tmpfs "$work"
    mkdir "$upper" "$work/under" "$root"
    mount -t overlay -o "lowerdir=$base,upperdir=$upper,workdir=$work/under" overlay "$root" ||
        cannot "this machine has no overlays"
    mount -t proc proc "$root/proc"
    mount -t sysfs sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs tmpfs "$root/run"
    chmod 1777 "$root/tmp"
    # The name servers of the machine, if `/run` has their addresses.
    [ "$(readlink -f /etc/resolv.conf)" = /etc/resolv.conf ] ||
        cp --remove-destination "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
    cp "$package" "$root/tmp/onramp.deb"
    # A root that was made to be small may leave out pages and documents; this trial looks for them.
    rm -f "$root"/etc/dpkg/dpkg.cfg.d/*docker* "$root"/etc/dpkg/dpkg.cfg.d/excludes
    [ "$fresh" = no ] || round uses_demo
    bring_tools
    round uses_all
}

if [ "${1-}" = --in-namespace ]; then
    try "${@:2}"
    exit
fi
[ $# = 1 ] || [ $# = 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 1; }
[ -f "$1" ] || fail "there is no package $1"
[ "$(id -u)" = 0 ] || cannot "only root can install a package, even into a copy of the machine"
base=${2:-/}
if [ ! -e "$base" ]; then
    command -v debootstrap >/dev/null || cannot "no debootstrap: install the package debootstrap"
    say "debootstrap fetches a fresh Debian into $base, once"
    rm -rf --one-file-system "$base.part" # what an interrupted run has left
    debootstrap --variant=minbase bookworm "$base.part" >"$base.log" 2>&1 ||
        cannot "debootstrap: $(tail -n 1 "$base.log")"
    mv "$base.part" "$base"
fi
work=$(mktemp -d)
trap 'rmdir "$work"' EXIT
unshare --mount --propagation private mount -t tmpfs tmpfs "$work" ||
    cannot "this user may not mount anything"
fresh=$([ $# = 2 ] && echo yes || echo no)
status=0
unshare --mount --pid --fork --kill-child --uts --ipc --propagation private \
    bash "$0" --in-namespace "$(realpath "$1")" "$(realpath "$base")" "$work" "$fresh" || status=$?
exit "$status"
