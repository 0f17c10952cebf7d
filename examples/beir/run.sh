#!/usr/bin/env bash
# Zero-shot study: evaluate each model on each set at each size, with averages with and without the sets in doubt.
#
#   examples/beir/run.sh                                                    tiny: offline, on two cores
#   SCALE=full MODELS="Starbucks=msmarco-full/models/starbucks" examples/beir/run.sh
#
# Inputs   MODELS   LABEL=folder …, written by ../msmarco/train.sh (tiny default: MiniLM=all-MiniLM-L6-v2 of the extra
#                   `demo`, truncated but not trained for it, so its small sizes find almost nothing)
#          SETS     short names (beir/scifact) or BEIR folders; tiny: reduced to PASSAGES and QUERIES first (default:
#                   ../shared/data/{scifact,nfcorpus} next to the checkout if they exist, else the documentation
#                   of this machine's Python); full default: the twelve sets of the Starbucks README.
#                   'beir/cqadupstack/*' means its twelve forums, which count as one set in every average
#          SIZES    (default: six in the paper's proportions; full: 2:32,4:64,6:128,8:256,10:512,12:768)
#          IDENTICAL  sets for which the passage with the query's own id is removed from the results, as in BEIR's
#                   evaluation (default: arguana quora; in other sets the same id may belong to another text)
#          WITHOUT  sets excluded from an additional average (full default: quora, whose published figures are unreliable)
#          LONG_QUERIES  sets whose queries are whole arguments; they are read up to PASSAGE_MAX_LEN tokens instead of the
#                   model's 32: BEIR's evaluation truncates queries where it truncates documents (default: arguana)
#          BASELINE label against which the others are tested: the paper's Starbucks (default: Starbucks), with its
#                   test, a two-tailed paired t-test over queries, p < 0.05, without correction
#          PASSAGE_MAX_LEN (512; tiny 96), DEPTH (1000; tiny 100), DEVICES, ENCODE_FLAGS; DROP_STORES=1 removes a set's
#          embeddings after scoring; PUBLISHED, a reference_results.json, shown beside our results at full scale
# Outputs  in WORK (default beir-SCALE): sets/ (tiny) stores/ runs/ results/LABEL/SET.json averages.md report/
# Rerun    after any end, also a kill: finished stages are kept.
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
  SETS=${SETS:-pydoc} # not a folder: made from this machine's documentation
  SIZES=${SIZES:-$(default_sizes "$(model_of "${models[0]#*=}" 6:384)")}
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

set_name() { # SET: beir/cqadupstack/gis as cqadupstack-gis, a folder by its name
  local name=${1#beir/}
  case $1 in
  */cqadupstack/*) name=cqadupstack-$(basename "$1") ;;
  *) if [ -d "$1" ]; then name=$(basename "$1"); fi ;;
  esac
  printf '%s\n' "${name//\//-}"
}

small() { # SET: a small part of it in WORK/sets
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
