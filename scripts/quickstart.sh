#!/usr/bin/env bash
# Makes TPC-H data, runs the queries of scripts/quickstart.sql on DataFusion's own operators and on the GPU, and compares the
# answers.
#   quickstart.sh PROGRAM SCALE DATA [ADAPTER]
# PROGRAM is datafusion-wgpu, DATA the folder that gets a folder for the data of each scale.
set -euo pipefail

[ "$#" -ge 3 ] || { echo "usage: quickstart.sh PROGRAM SCALE DATA [ADAPTER]" >&2; exit 2; }
program=$(realpath "$1")
scale=$2
data=$3/sf$2
adapter=()
[ -z "${4:-}" ] || adapter=(--adapter "$4")
queries=$(realpath "$(dirname "${BASH_SOURCE[0]}")/quickstart.sql")
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Shows a command as one could type it, and runs it.
shown() {
    printf '\n$ datafusion-wgpu'
    printf ' %q' "$@"
    printf '\n'
    "$program" "$@"
}

shown tpch-data --scale "$scale" --out "$data"

# Tables are folders below --data-path. The queries run twice in one session and the second time is shown: the first reads the
# files into the cache and compiles the shaders.
count=$(grep -c ';$' "$queries")
for gpu in off force; do
    flags=(--data-path "$data" --gpu "$gpu")
    [ "$gpu" = off ] || flags+=(${adapter[@]+"${adapter[@]}"})
    "$program" "${flags[@]}" --quiet --format csv --file "$queries" >"$results/$gpu"
    shown "${flags[@]}" --file "$queries" "$queries" |
        awk -v count="$count" '/^\$/ || n >= count { print } /^Elapsed/ { n++ }'
done

plan="EXPLAIN ANALYZE $(sed '/;/q' "$queries" | sed '/^--/d')"
printf '\nWhat the GPU did in the first of them, by EXPLAIN ANALYZE:\n'
"$program" --data-path "$data" --gpu force ${adapter[@]+"${adapter[@]}"} --quiet --format tsv --command "$plan" >"$results/plan"
grep -o 'Gpu.*' "$results/plan" || { echo "quickstart: no operator ran on the GPU" >&2; exit 1; }

if ! cmp -s "$results/off" "$results/force"; then
    echo "quickstart: the answers differ:" >&2
    diff "$results/off" "$results/force" >&2 || true
    exit 1
fi
printf '\nThe answers are equal. To ask more: datafusion-wgpu --data-path %q --gpu force\n' "$data"
