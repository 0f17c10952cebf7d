#!/usr/bin/env bash
# Functions of all example scripts: calling a stage, deciding whether it is finished, locking the work folder.
# Sourced by the others, never run on its own.
#
#   PYTHON      interpreter to use           (default: that of `starbucks` on the PATH, else python3)
#   STARBUCKS   command to use instead of `starbucks`
#   DEVICES     processes that train or encode, one per GPU (default 1; more are started with torchrun)
#   LAUNCH      command that starts them instead, up to the module's name: "accelerate launch --config_file FILE -m"
#
# A stage is finished if the file that it writes last exists and is not older than its inputs. This file is written
# atomically, so after a kill at any moment a stage is either repeated or continued.
set -euo pipefail

EXAMPLES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034  # read by the scripts that source this file
SHARED=$EXAMPLES/../../shared/data # some checkouts have real data sets next to them
DEVICES=${DEVICES:-1}

say() { printf '%s\n' "$*" >&2; }

die() { # PROBLEM FIX: print both and exit
  say "error: $1"
  say "  try: $2"
  exit 2
}

find_python() {
  local found
  if found=$(command -v starbucks) && found=$(dirname "$(readlink -f "$found")")/python && [ -x "$found" ]; then
    printf '%s\n' "$found"
  else
    printf 'python3\n'
  fi
}

if [ -n "${STARBUCKS:-}" ]; then
  read -ra starbucks_command <<<"$STARBUCKS"
elif [ -z "${PYTHON:-}" ] && command -v starbucks >/dev/null; then
  starbucks_command=(starbucks)
else
  starbucks_command=() # python -m starbucks_retrieval.<stage>
fi
PYTHON=${PYTHON:-$(find_python)}

stage() { # STAGE FLAG…: starbucks STAGE FLAG…
  local name=$1 began=$SECONDS
  shift
  say "\$ starbucks $name$(printf ' %q' "$@")"
  if [ ${#starbucks_command[@]} -gt 0 ]; then
    "${starbucks_command[@]}" "$name" "$@"
  else
    "$PYTHON" -m "starbucks_retrieval.$name" "$@"
  fi
  say "  $name took $((SECONDS - began)) s"
}

launch() { # STAGE FLAG…: the same in the processes that DEVICES or LAUNCH ask for
  local name=$1 launcher
  if [ -n "${LAUNCH:-}" ]; then
    read -ra launcher <<<"$LAUNCH"
  elif [ "$DEVICES" -gt 1 ]; then
    launcher=("$PYTHON" -m torch.distributed.run --nproc_per_node "$DEVICES" -m)
  else
    stage "$@"
    return
  fi
  shift
  say "\$ ${launcher[*]} starbucks_retrieval.$name$(printf ' %q' "$@")"
  "${launcher[@]}" "starbucks_retrieval.$name" "$@"
}

absolute() { # PATH: as an absolute path; a hub name is unchanged
  if [ -e "$1" ]; then realpath "$1"; else printf '%s\n' "$1"; fi
}

# One run at a time in a folder. Child processes inherit the lock, so a stage that outlives its killed script still holds it.
open_work() { # lock WORK and make it an absolute path
  mkdir -p "$WORK"
  WORK=$(cd "$WORK" && pwd)
  export WORK
  if [ "${WORK_LOCKED:-}" = "$WORK" ] || ! command -v flock >/dev/null; then return; fi
  exec 9>>"$WORK/.lock"
  if ! flock -n 9; then
    say "waiting for another run in $WORK, or for a stage that one left behind"
    flock 9
  fi
  export WORK_LOCKED=$WORK
}

# The outputs in a folder belong to the settings of its first run.
pin() { # NAME…: variables that must not change from run to run
  local name now=''
  for name in "$@"; do now+="$name=${!name:-}"$'\n'; done
  pin_text settings "$now"
}

pin_text() { # FILE TEXT: write a file of WORK, or fail if it has another text
  if [ ! -e "$WORK/$1" ]; then
    mkdir -p "$(dirname "$WORK/$1")"
    printf '%s' "$2" >"$WORK/$1.partial"
    mv "$WORK/$1.partial" "$WORK/$1"
  elif ! diff "$WORK/$1" <(printf '%s' "$2") >&2; then
    die "$WORK was started with other settings (the lines with <)" \
      "WORK=another-folder, or those settings; or edit $WORK/$1, if no existing output depends on it"
  fi
}

fresh() { # FILE INPUT…: whether FILE exists and no input is newer
  local made=$1 input
  shift
  [ -e "$made" ] || return 1
  for input in "$@"; do
    if [ "$input" -nt "$made" ]; then return 1; fi
  done
}

kept() { say "kept   ${1#"$WORK"/}"; }

size_folder() { # 6:128 as L6-D128
  printf 'L%s-D%s\n' "${1%:*}" "${1#*:}"
}

dims_of() { # 2:32,6:128 as 32,128
  local size dims=''
  for size in ${1//,/ }; do dims+=${dims:+,}${size#*:}; done
  printf '%s\n' "$dims"
}

# A trained model is a folder, or, for a method that trains each size separately, a folder of folders such as L6-D128.
model_of() { # MODEL SIZE: the folder of the model for a size
  if [ -d "$1/$(size_folder "$2")" ]; then printf '%s/%s\n' "$1" "$(size_folder "$2")"; else printf '%s\n' "$1"; fi
}

train_stage() { # train|pretrain OUTPUT INPUT FLAG…: train, or continue from the last checkpoint of a killed run
  local name=$1 output=$2 input=$3 again=(--overwrite_output_dir) checkpoint
  shift 3
  if fresh "$output/training.json" "$input"; then
    kept "$output"
    return
  elif [ -e "$output/training.json" ]; then
    die "$output is older than $input, from which it was trained" "remove $output, to train it again"
  fi
  for checkpoint in "$output"/checkpoint-*/trainer_state.json; do
    if [ -e "$checkpoint" ]; then again=(--resume_from_checkpoint true); fi
  done
  launch "$name" --output_dir "$output" "${again[@]}" "$@"
}

encode_texts() { # MODEL OUTPUT SIZES FLAG…: encode every size, in one pass if one model has all of them
  local model=$1 output=$2 sizes=$3 size
  shift 3
  if [ "$(model_of "$model" "${sizes%%,*}")" = "$model" ]; then
    _encode "$model" "$output" "$sizes" "$@"
    return
  fi
  for size in ${sizes//,/ }; do _encode "$(model_of "$model" "$size")" "$output" "$size" "$@"; done
}

_encode() {
  local model=$1 output=$2 sizes=$3 size manifest missing=''
  shift 3
  for size in ${sizes//,/ }; do
    manifest=$output/$(size_folder "$size")/manifest.json
    if ! fresh "$manifest" "$model/training.json" || ! grep -q '"complete": true' "$manifest"; then missing=yes; fi
  done
  if [ -z "$missing" ]; then
    kept "$output ($sizes)"
    return
  fi
  # encode resumes a killed job automatically, and refuses a folder with another job.
  launch encode --model_name_or_path "$model" --encode_output_path "$output" --sizes "$sizes" "$@"
}

search_sizes() { # PASSAGES QUERIES OUTPUT SIZES DEPTH: search at each size that has no run yet
  local passages=$1 queries=$2 output=$3 sizes=$4 depth=$5 size folder missing=''
  for size in ${sizes//,/ }; do
    folder=$(size_folder "$size")
    fresh "$output/$folder.trec" "$passages/$folder/manifest.json" "$queries/$folder/manifest.json" ||
      missing+=${missing:+,}$size
  done
  if [ -z "$missing" ]; then
    kept "$output"
    return
  fi
  stage search --query_reps "$queries" --passage_reps "$passages" --sizes "$missing" --depth "$depth" \
    --save_ranking_to "$output"
}

policy_of() { # LABEL=MODEL…: a line for the tables: how training treated known positives
  "$PYTHON" - "$@" <<'PY'
import json, pathlib, sys
words = {"keep": "are kept among its negatives (--false_negatives keep)", "mask": "are left out (--false_negatives mask)",
         "unknown": "are treated in a way that no training.json records"}
found = {}
for word in sys.argv[1:]:
    label, _, model = word.rpartition("=")
    path = pathlib.Path(model) / "training.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    policy = record["configuration"]["train"]["false_negatives"] if record else "unknown"
    found.setdefault(policy, []).append(label)
parts = [f"{words[policy]} in {'every method' if len(found) == 1 else ', '.join(dict.fromkeys(labels))}"
        for policy, labels in found.items()]
print(f"In training a query's other known positives inside its batch {'; they '.join(parts)}.")
PY
}

minilm() { # the folder of all-MiniLM-L6-v2, which the extra `demo` installs
  "$PYTHON" -c 'from starbucks_retrieval.cli import run_command
from starbucks_retrieval.demo.api import minilm
run_command(lambda _: print(minilm()), [])' | grep . || exit 2
}

baseline_of() { # BASELINE METHOD…: BASELINE if it is among the methods; otherwise nothing, and a message
  local baseline=$1
  shift
  case " $* " in
  *" $baseline "*) printf '%s\n' "$baseline" ;;
  *) say "nothing is tested for significance: the baseline $baseline is not among: $* (BASELINE= names another one)" ;;
  esac
}

default_sizes() { # MODEL: its sizes in the paper's proportions
  "$PYTHON" - "$1" <<'PY'
import json, pathlib, sys
from starbucks_retrieval import Sizes
config = json.loads((pathlib.Path(sys.argv[1]) / "config.json").read_text(encoding="utf-8"))
print(Sizes.default(config["num_hidden_layers"], config["hidden_size"]))
PY
}
