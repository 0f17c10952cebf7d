#!/usr/bin/env bash
# The zero-shot study: each model on each set at each size, averages with and without the sets that are in doubt.
#
#   examples/beir/run.sh                                                    tiny: offline, on two cores
#   SCALE=full MODELS="Starbucks=msmarco-full/models/starbucks" examples/beir/run.sh
#
# Inputs   MODELS   LABEL=folder …, what ../msmarco/train.sh wrote (tiny default: MiniLM=all-MiniLM-L6-v2 of the extra
#                   `demo`, cut but not trained for it: its small sizes find next to nothing)
#          SETS     short names (beir/scifact) or BEIR folders; tiny: cut to PASSAGES and QUERIES first (default:
#                   ../shared/data/{scifact,nfcorpus} beside the checkout where they are there, else the documentation
#                   of this machine's Python); full default: the twelve sets of the Starbucks README
#                   'beir/cqadupstack/*' stands for its twelve forums, which count as one set in every average
#          SIZES    (default: six in the paper's proportions; full: 2:32,4:64,6:128,8:256,10:512,12:768)
#          IDENTICAL  sets whose results lose the passage that bears the query's own id, as BEIR's evaluation has it
#                   (default: arguana quora; elsewhere the same number may be another text)
#          WITHOUT  sets that a further average leaves out (full default: quora, whose published figures are unreliable)
#          LONG_QUERIES  sets whose queries are whole arguments, read up to PASSAGE_MAX_LEN tokens and not the model's 32:
#                   BEIR's evaluation cuts queries where it cuts documents (default: arguana)
#          BASELINE the label that the others are tested against: the paper's Starbucks (default: Starbucks), by its
#                   test, a two-tailed paired t-test over queries, p < 0.05, without correction
#          PASSAGE_MAX_LEN (512; tiny 96), DEPTH (1000; tiny 100), DEVICES, ENCODE_FLAGS; DROP_STORES=1 removes a set's
#          embeddings once it is scored; PUBLISHED, a reference_results.json, shown beside ours at full scale
# Outputs  in WORK (default beir-SCALE): sets/ (tiny) stores/ runs/ results/LABEL/SET.json averages.md report/
# Again    run it again after any end, also a kill: what is finished is kept.
# Time     46 s tiny on two cores; full not measured
# Disk     6 MB tiny; full not measured (DROP_STORES=1 keeps it small)
set -euo pipefail
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

SCALE=${SCALE:-tiny}
WORK=${WORK:-beir-$SCALE}
IDENTICAL=${IDENTICAL:-arguana quora}
LONG_QUERIES=${LONG_QUERIES:-arguana}
began=$SECONDS
models=()
for word in ${MODELS:-}; do models+=("${word%%=*}=$(absolute "${word#*=}")"); done
open_work

case $SCALE in
tiny)
  export HF_HUB_OFFLINE=1
  if [ ${#models[@]} -eq 0 ]; then
    folder=$(minilm)
    models=("MiniLM=$folder")
  fi
  if [ -z "${SETS+set}" ] && [ -d "$SHARED/scifact" ]; then SETS="$SHARED/scifact $SHARED/nfcorpus"; fi
  SETS=${SETS:-pydoc} # no folder: made of this machine's documentation
  SIZES=${SIZES:-$(ladder_of "$(model_of "${models[0]#*=}" 6:384)")}
  PASSAGES=${PASSAGES:-400}
  QUERIES=${QUERIES:-40}
  PASSAGE_MAX_LEN=${PASSAGE_MAX_LEN:-96}
  DEPTH=${DEPTH:-100}
  WITHOUT=${WITHOUT:-}
  pin SCALE SIZES PASSAGES QUERIES PASSAGE_MAX_LEN DEPTH IDENTICAL LONG_QUERIES ENCODE_FLAGS
  ;;
full)
  [ ${#models[@]} -gt 0 ] || die "no model is named" "MODELS='Starbucks=msmarco-full/models/starbucks'"
  names=(dbpedia-entity quora scidocs scifact climate-fever arguana webis-touche2020 fiqa trec-covid nfcorpus fever)
  names+=(hotpotqa)
  SETS=${SETS:-${names[*]/#/beir/}}
  SIZES=${SIZES:-2:32,4:64,6:128,8:256,10:512,12:768}
  PASSAGE_MAX_LEN=${PASSAGE_MAX_LEN:-512} # the papers do not say; MS MARCO's 196 would cut half of these documents
  DEPTH=${DEPTH:-1000}
  WITHOUT=${WITHOUT:-quora}
  pin SCALE SIZES PASSAGE_MAX_LEN DEPTH IDENTICAL LONG_QUERIES ENCODE_FLAGS
  ;;
*) die "there is no SCALE=$SCALE" "SCALE=tiny or SCALE=full" ;;
esac
read -ra encode_flags <<<"${ENCODE_FLAGS:-}"

forums=(android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress)
SETS=${SETS//'beir/cqadupstack/*'/${forums[*]/#/beir/cqadupstack/}}

set_name() { # beir/cqadupstack/gis as cqadupstack-gis, a folder by its own name
  local name=${1#beir/}
  case $1 in
  */cqadupstack/*) name=cqadupstack-$(basename "$1") ;;
  *) if [ -d "$1" ]; then name=$(basename "$1"); fi ;;
  esac
  printf '%s\n' "${name//\//-}"
}

small() { # SET: a cut of it in WORK/sets
  local cut
  cut=$WORK/sets/$(set_name "$1")
  cut_flags=(--passages "$PASSAGES" --queries "$QUERIES" --splits test)
  if [ -d "$1" ]; then cut_flags+=(--source "$1"); elif [ "$1" != pydoc ]; then die "no folder $1" "SCALE=full SETS=$1"; fi
  if [ -d "$cut" ]; then kept "$cut"; else "$PYTHON" "$EXAMPLES/cut_set.py" "$cut" "${cut_flags[@]}"; fi
}

study() { # LABEL MODEL SET SOURCE: encode, search, score
  local label=$1 model=$2 set=$3 source=$4 stores runs result trained identical
  stores=$WORK/stores/$label/$set
  runs=$WORK/runs/$label/$set
  result=$WORK/results/$label/$set.json
  trained=$(model_of "$model" "${SIZES##*,}")/training.json
  if fresh "$result" "$trained"; then
    kept "$result"
    return
  fi
  texts_flags=(--dataset_path "$source" --passage_max_len "$PASSAGE_MAX_LEN" --override)
  encode_texts "$model" "$stores/passages" "$SIZES" "${texts_flags[@]}" ${encode_flags[@]+"${encode_flags[@]}"}
  texts_flags=(--dataset_path "$source" --dataset_split test --encode_is_query)
  case " $LONG_QUERIES " in *" $set "*) texts_flags+=(--query_max_len "$PASSAGE_MAX_LEN" --override) ;; esac
  encode_texts "$model" "$stores/queries" "$SIZES" "${texts_flags[@]}" ${encode_flags[@]+"${encode_flags[@]}"}
  search_sizes "$stores/passages" "$stores/queries" "$runs" "$SIZES" "$DEPTH"
  case " $IDENTICAL " in *" $set "*) identical=true ;; *) identical=false ;; esac
  stage evaluate --run "$runs"/*.trec --qrels "$set=$source" --measures nDCG@10 "R@$DEPTH" --label "$label" \
    --remove_identical_ids "$identical" --output "$result"
  if [ -n "${DROP_STORES:-}" ]; then rm -rf "$stores"; fi
}

results=()
for word in "${models[@]}"; do
  pin_text "named/model-${word%%=*}" "${word#*=}"
  for source in $SETS; do
    set=$(set_name "$source")
    pin_text "named/set-$set" "$(absolute "$source")"
    if [ "$SCALE" = tiny ]; then
      small "$source"
      source=$WORK/sets/$set
    fi
    say "== ${word%%=*} on $set"
    study "${word%%=*}" "${word#*=}" "$set" "$source"
    results+=("$WORK/results/${word%%=*}/$set.json")
  done
done
report_flags=(--title "Zero-shot, $SCALE" --sizes "$SIZES")
baseline=$(baseline_of "${BASELINE:-Starbucks}" "${models[@]%%=*}")
if [ -n "$baseline" ]; then report_flags+=(--baseline "$baseline" --correction none); fi
if [ -n "${PUBLISHED:-}" ] && [ "$SCALE" = full ]; then report_flags+=(--published "$PUBLISHED"); fi
stage report --input "${results[@]}" --output_dir "$WORK/report" "${report_flags[@]}"
read -ra without <<<"$WITHOUT"
"$PYTHON" "$EXAMPLES/beir/averages.py" "${results[@]}" ${without[@]+--without "${without[@]}"} --output "$WORK/averages.md"
cat "$WORK/averages.md"
say "done in $((SECONDS - began)) s"
