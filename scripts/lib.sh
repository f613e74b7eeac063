# shellcheck shell=bash
# Shared by the scripts of this folder, which source it: where the checkout is, messages, system packages, the build.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$(basename "$0"): $*"
    exit 1
}

# Runs a command quietly; on failure shows the end of what it said and returns its status.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        say "failed ($status): $*"
        tail -n 40 "$log" >&2
    fi
    rm -f "$log"
    return "$status"
}

# The names in packages.txt of the given sections.
packages_of() {
    local section name
    while read -r section name; do
        case " $* " in *" $section "*) printf '%s\n' "$name" ;; esac
    done < <(grep -v '^#' "$root/scripts/packages.txt")
}

missing_packages() {
    local installed name
    installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null)
    for name in $(packages_of "$@"); do
        grep -qx "$name installed" <<<"$installed" || printf '%s\n' "$name"
    done
}

# install_packages SECTION...: installs the missing ones, as root or by sudo. Does nothing where none is missing.
install_packages() {
    local missing apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300)
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "no Debian system: the equivalents of these packages must be there: $(packages_of "$@" | tr '\n' ' ')"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "packages are missing and there is neither root nor sudo; as root: apt-get install ${missing[*]}"
        apt=(sudo "${apt[@]}")
    fi
    say "installing ${#missing[@]} packages: ${missing[*]}"
    # Lists that are missing or stale make the first try fail: then they are brought up to date, once.
    "${apt[@]}" install --no-install-recommends "${missing[@]}" >/dev/null 2>&1 </dev/null && return 0
    quietly "${apt[@]}" update || die "cannot update the package lists: no network?"
    quietly "${apt[@]}" install --no-install-recommends "${missing[@]}" || die "cannot install: ${missing[*]}"
}

# build PRESET [TARGET...]: configures and builds what is left to do, quietly.
build() {
    local preset=$1
    shift
    (cd "$root" && quietly cmake --preset "$preset" && quietly ninja -C "build/$preset" "$@")
}
