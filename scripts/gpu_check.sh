#!/usr/bin/env bash
# Everything that needs a GPU, from this tree alone, on a machine without network: two calls of at most ten minutes.
#
#   scripts/gpu_check.sh speed FOLDER         the sort, a training step by kernels, graphslice doctor, pytest -m gpu
#   scripts/gpu_check.sh train FOLDER         trainings on dataset/qm9_b3lyp.csv.gz, and prediction by the large model
#   scripts/gpu_check.sh --dry PART FOLDER    a few steps of each on the CPU
#
# FOLDER gets record.jsonl, with the names of machine and GPU, and a log of each command. LIMIT is the time of a call in
# seconds, of which the trainings take seven tenths. If both calls have 15 minutes: LIMIT=460, and at once LIMIT=340 on the
# same machine. Wheels in .whl/ are installed into a temporary folder first. What a machine with torch usually lacks:
# `pip download --no-deps -d .whl rdkit ogb outdated littleutils lightgbm openpyxl et_xmlfile jsonargparse
# docstring_parser typeshed_client`, for its version of Python.
set -uo pipefail
cd "$(dirname "$0")/.."
dry=; [ "${1:-}" = --dry ] && { dry=--dry; shift; }
part=${1:?speed or train} folder=${2:?folder of the record} python=${PYTHON:-python3}
limit=${LIMIT:-560} work=$(mktemp -d) && mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 GRAPHSLICE_CACHE=$work/cache
if ls .whl/*.whl >/dev/null 2>&1; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$work/packages" .whl/*.whl || exit
    PYTHONPATH=$PWD:$work/packages
fi

# record NAME SECONDS COMMAND...: adds the exit code and the seconds to the record; 124 is the end of its time.
record() {
    local name=$1 begin=$SECONDS code=0 most=$2; shift 2
    timeout "$most" "$@" >"$folder/$name.out" 2>"$folder/$name.log" || code=$?
    case $name in gpu-*) cat "$folder/$name.out" >>"$folder/record.jsonl" ;; *) cat "$folder/$name.out" >>"$folder/$name.log" ;; esac
    rm "$folder/$name.out"
    echo "{\"part\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - begin))}" | tee -a "$folder/record.jsonl"
}
left() { echo $((limit > SECONDS + 10 ? limit - SECONDS : 10)); }
benchmark=("$python" scripts/benchmark.py gpu --json $dry)
graphslice=("$python" -m graphslice)

case $part in
speed)
    record gpu-sort 120 "${benchmark[@]}" --parts sort
    record gpu-step 240 "${benchmark[@]}" --parts step
    tests=$(grep -rl --include='test_*.py' 'mark\.gpu' tests)
    seconds=$(left)
    record doctor "$seconds" "${graphslice[@]}" doctor --json &
    record pytest "$seconds" "$python" -m pytest -q -m gpu -p no:cacheprovider $tests
    wait
    ;;
train)
    table=${DATA:-dataset/qm9_b3lyp.csv.gz}
    [ -z "$dry" ] || table=data/demo.csv
    # The rest of the time is for starts, features, the test set and prediction.
    train() {
        local preset=$1 minutes=$2 options=(--trainer.max_minutes="$2")
        [ -z "$dry" ] || options=(--trainer.max_steps=2 --model.{layers=1,dim=32,heads=4,ffn_dim=32})
        record "train-$preset" "$(left)" "${graphslice[@]}" train --dataset "$table" --targets gap_ev --preset "$preset" \
            --init-from none --baselines off --out "$work/$preset" "${options[@]}"
    }
    train pcqm4mv2-slice "$(awk "BEGIN {print $limit * 0.5 / 60}")"
    train small "$(awk "BEGIN {print $limit * 0.2 / 60}")"
    record gpu-runs "$(left)" "${benchmark[@]}" --parts runs --runs "$work"/{pcqm4mv2-slice,small} --molecules "$table"
    ;;
*) echo "unknown part $part: speed or train" >&2; exit 2 ;;
esac
