#!/usr/bin/env bash
# Runs the tests and the examples on this machine's adapter under the Khronos validation layer, with synchronization
# validation. Fails when a test fails, when the layer reports an error or a warning that scripts/validation-known.txt does
# not list, and when the layer was not at work.
#
# The Vulkan loader inserts the layer into every program that the tests start, and the layer writes to a pipe: programs
# and devices may come and go, and nobody's log is truncated. wgpu's own InstanceFlags::VALIDATION (WGPU_VALIDATION=1)
# would report through the `log` crate, for which neither the tests nor the programs have a logger. InstanceFlags::DEBUG
# stays off: layers before 1.3.250 reject the debug information that it puts into shaders.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${CARGO_TARGET_DIR:-$PWD/target}/validation
known=scripts/validation-known.txt
cargo=(cargo --locked)
examples=(quickstart existing_context explain_placement dataframe_api)
# Mistakes of the test `misuse`: in a shader, in a call, in synchronization.
misuse=(VUID-StandaloneSpirv-Base-04781 VUID-vkCmdFillBuffer-dstOffset-00025 SYNC-HAZARD-WRITE-AFTER-WRITE)
failed=0

say() { printf 'validation: %s\n' "$*"; }

settings() {
    # Both spellings of synchronization validation, for older and newer layers; of 1.3.239 not that across submissions, which does
    # not come to an end. GPU-assisted validation is off: that version does not see writes outside of a binding. No cache of
    # shaders that passed.
    cat <<END
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = $dir/pipe
khronos_validation.report_flags = error,warn,perf,info
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.validate_sync = true
khronos_validation.disables = VK_VALIDATION_FEATURE_DISABLE_SHADER_VALIDATION_CACHE_EXT
END
}

# Runs a command under the layer. Its output goes to $dir/$1.out, the layer's to $dir/$1.log.
under_layer() {
    local name=$1 status=0 reader
    shift
    rm -f "$dir/pipe"
    mkfifo "$dir/pipe"
    cat "$dir/pipe" >"$dir/$name.log" &
    reader=$!
    # Holds the pipe open while programs come and go.
    exec 9>"$dir/pipe"
    VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=$dir/vk_layer_settings.txt \
        "$@" >"$dir/$name.out" 2>&1 9>&- || status=$?
    exec 9>&-
    # A program that outlives its test would keep the pipe open.
    for _ in $(seq 100); do
        kill -0 "$reader" 2>/dev/null || break
        sleep 0.1
    done
    kill "$reader" 2>/dev/null || true
    wait "$reader" || true
    return "$status"
}

# Times that the layer said it was active: once for each Vulkan instance.
instances() { grep -c 'Khronos Validation Layer Active' "$dir/$1.log" || true; }

# Identifiers of errors and warnings, with their numbers.
findings() {
    { grep -oE 'Validation (Performance )?(Error|Warning): \[ [^ ]+ \]' "$dir/$1.log" || true; } \
        | sed -E 's/.*\[ (.*) \]/\1/' | sort | uniq -c
}

# $1 name, the rest a command that must succeed, use Vulkan, and give no finding that is not known.
check() {
    local name=$1 seconds=$SECONDS count id reported=0 known_here=0
    if ! under_layer "$@"; then
        say "$name: FAILED"
        tail -n 40 "$dir/$name.out"
        failed=1
    fi
    while read -r count id; do
        if grep -qE "^$id( |\$)" "$known"; then
            known_here=$((known_here + count))
            continue
        fi
        reported=$((reported + count))
        say "$name: $count times $id, the first is"
        grep -m 1 -A 3 -F "[ $id ]" "$dir/$name.log"
    done < <(findings "$name")
    local tests
    tests=$(awk '/^test result: ok/ { sum += $4 } END { print sum + 0 }' "$dir/$name.out")
    say "$name: $tests tests in $((SECONDS - seconds)) s, $(instances "$name") instances, $reported findings, $known_here known ones"
    [ "$reported" -eq 0 ] || failed=1
    if [ "$(instances "$name")" -eq 0 ]; then
        say "$name: the layer was not active"
        failed=1
    fi
}

# The layer finds what is wrong on purpose, or finding nothing in the tests means nothing.
check_the_layer() {
    local id
    under_layer misuse "${cargo[@]}" test --all-features --lib -- --ignored --exact memory::tests::validation::misuse \
        || { tail -n 40 "$dir/misuse.out"; exit 1; }
    if [ "$(instances misuse)" -eq 0 ]; then
        say "the layer is not active; install it with scripts/setup.sh --validation"
        exit 1
    fi
    if ! grep -q '1 passed' "$dir/misuse.out"; then
        say "the test of deliberate misuse did not run"
        exit 1
    fi
    for id in "${misuse[@]}"; do
        if ! grep -qF "$id" "$dir/misuse.log"; then
            say "the layer did not report $id, see $dir/misuse.log"
            exit 1
        fi
    done
    [ -n "$(findings misuse)" ] || { say "the form of the layer's messages is not known, see $dir/misuse.log"; exit 1; }
    say "the layer is active and reports deliberate misuse"
}

run_examples() {
    local example
    for example in "${examples[@]}"; do "${cargo[@]}" run --all-features --quiet --example "$example" || return; done
}

mkdir -p "$dir"
trap 'rm -f "$dir/pipe"' EXIT
settings >"$dir/vk_layer_settings.txt"
"${cargo[@]}" test --all-features --no-run
check_the_layer
check unit "${cargo[@]}" test --all-features --lib --bins "$@"
check integration "${cargo[@]}" test --all-features --test integration "$@"
[ "$#" -gt 0 ] || check examples run_examples
[ "$failed" -eq 0 ] || { say "FAILED; the whole logs are in $dir"; exit 1; }
say "no finding"
