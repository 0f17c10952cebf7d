#!/usr/bin/env bash
# The similarity study: train each method on NLI triples, compute correlations at every size on the sets of scored pairs,
# write a report.
#
#   examples/sts/run.sh                                                  tiny: offline, on two cores
#   SCALE=full PUBLISHED=reference_results.json SMAE=msmarco-full/pretrained examples/sts/run.sh
#
# Inputs   METHODS  starbucks (from SMAE), srl, full, separate, 2dmse, mrl (default: tiny srl; full all but mrl, starbucks
#                   only if SMAE is given)
#          SMAE     a folder that ../msmarco/pretrain.sh wrote
#          BACKBONE model that the others start from (default: all-MiniLM-L6-v2 of the extra `demo`; full:
#                   bert-base-uncased)
#          SIZES    (default: six in the paper's proportions; full: 2:32,4:64,6:128,8:256,10:512,12:768)
#          DATA     tiny: folder with nli/triples.jsonl and sts/*.tsv (default: ../shared/data next to the checkout
#                   if it exists, else sentences from a small grammar), of which TRIPLES and PAIRS are used
#          NLI      full: triples (default: sentence-transformers/all-nli, configuration triplet)
#          PAIR_SETS full: sets for `starbucks sts` (default: its seven)
#          RECIPE   paper (default): the papers' text, each separate model trained at its own dim; released: the
#                   computation of their codes, which produced the published figures
#          FALSE_NEGATIVES  keep (default, as published) or mask, for every method; the tables say which
#          BASELINE method against which the others are tested: the paper's Starbucks (default: starbucks), with its
#                   test, Fisher's z for independent correlations, two-tailed, p < 0.05, without correction
#          STEPS (tiny), DEVICES, TRAIN_FLAGS; PUBLISHED, a reference_results.json, shown beside our results at full scale
# Outputs  in WORK (default sts-SCALE): data/ (tiny) models/ results/METHOD.json report/index.html
# Rerun    after any end, also a kill: finished stages are kept.
# Time     86 s tiny (one method, 30 steps) on two cores; full not measured
# Disk     88 MB tiny for the model; full not measured
set -euo pipefail
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

SCALE=${SCALE:-tiny}
WORK=${WORK:-sts-$SCALE}
SMAE=$(absolute "${SMAE:-}")
RECIPE=${RECIPE:-paper}
FALSE_NEGATIVES=${FALSE_NEGATIVES:-keep}
case $RECIPE in
paper) released='' separate_preset=separate-sts ;;
released) released=-released separate_preset=separate-sts-full-width ;;
*) die "there is no RECIPE=$RECIPE" "RECIPE=paper or RECIPE=released" ;;
esac
began=$SECONDS
case $SCALE in
tiny)
  export HF_HUB_OFFLINE=1
  METHODS=${METHODS:-srl}
  [ -n "${BACKBONE:-}" ] || BACKBONE=$(minilm)
  BACKBONE=$(absolute "$BACKBONE")
  SIZES=${SIZES:-$(default_sizes "$BACKBONE")}
  if [ -z "${DATA+set}" ] && [ -d "$SHARED/nli" ]; then DATA=$SHARED; fi
  DATA=$(absolute "${DATA:-}")
  TRIPLES=${TRIPLES:-960}
  PAIRS=${PAIRS:-200}
  STEPS=${STEPS:-30}
  open_work
  pin SCALE RECIPE FALSE_NEGATIVES BACKBONE SMAE SIZES DATA TRIPLES PAIRS STEPS TRAIN_FLAGS
  if [ -d "$WORK/data" ]; then
    kept "$WORK/data"
  else
    data_flags=(--triples "$TRIPLES" --pairs "$PAIRS")
    [ -z "$DATA" ] || data_flags+=(--source "$DATA")
    "$PYTHON" "$EXAMPLES/sts/make_pairs.py" "$WORK/data" "${data_flags[@]}"
  fi
  pair_sets=("$WORK/data/sts/"*.tsv)
  # Both tasks score by cosine, so the same anchor as in ../msmarco keeps the quality of a sentence encoder.
  train_flags=(--dataset_path "$WORK/data/nli.jsonl" --fp16 false --gradient_checkpointing false --anchor_weight 5)
  train_flags+=(--dropout 0 --query_max_len 48 --passage_max_len 48 --learning_rate 2e-4)
  train_flags+=(--per_device_train_batch_size "$((32 / DEVICES))" --max_steps "$STEPS" --save_steps "$((STEPS / 2))")
  ;;
full)
  METHODS=${METHODS:-full separate 2dmse srl${SMAE:+ starbucks}}
  BACKBONE=$(absolute "${BACKBONE:-bert-base-uncased}")
  SIZES=${SIZES:-2:32,4:64,6:128,8:256,10:512,12:768}
  NLI=${NLI:-sentence-transformers/all-nli}
  open_work
  pin SCALE RECIPE FALSE_NEGATIVES BACKBONE SMAE SIZES NLI TRAIN_FLAGS
  read -ra pair_sets <<<"${PAIR_SETS:-STS12 STS13 STS14 STS15 STS16 STS-B SICK-R}"
  train_flags=(--dataset_name "$NLI" --dataset_config "${NLI_CONFIG-triplet}")
  train_flags+=(--per_device_train_batch_size "$((128 / DEVICES))")
  ;;
*) die "there is no SCALE=$SCALE" "SCALE=tiny or SCALE=full" ;;
esac
read -ra more <<<"${TRAIN_FLAGS:-}"
train_flags+=(--false_negatives "$FALSE_NEGATIVES" ${more[@]+"${more[@]}"})

label() { # METHOD: its name in the paper's tables
  case $1 in
  starbucks) printf 'SMAE-SRL (Starbucks)\n' ;;
  srl) printf 'BERT-SRL\n' ;;
  full) printf 'BERT\n' ;;
  separate) printf 'BERT-Separate\n' ;;
  2dmse) printf 'BERT-2DMSE\n' ;;
  mrl) printf 'BERT-MRL\n' ;;
  *) die "there is no method $1" "starbucks, srl, full, separate, 2dmse or mrl" ;;
  esac
}

train_method() { # METHOD
  local size output=$WORK/models/$1 start=$BACKBONE made_from=''
  case $1 in
  starbucks)
    [ -n "$SMAE" ] || die "starbucks starts from a pre-trained folder" "SMAE=… (see ../msmarco/pretrain.sh)"
    start=$SMAE made_from=$SMAE/training.json
    ;;
  esac
  train_flags_here=("${train_flags[@]}" --model_name_or_path "$start")
  case $1 in
  starbucks | srl) train_stage train "$output" "$made_from" --preset "starbucks-sts$released" "${train_flags_here[@]}" --sizes "$SIZES" ;;
  2dmse) train_stage train "$output" "$made_from" --preset "2dmse-sts$released" "${train_flags_here[@]}" --sizes "$SIZES" ;;
  mrl) train_stage train "$output" "$made_from" --preset mrl-sts "${train_flags_here[@]}" --train_dims "$(dims_of "$SIZES")" ;;
  full) train_stage train "$output" "$made_from" --preset full-sts "${train_flags_here[@]}" ;;
  separate)
    for size in ${SIZES//,/ }; do
      train_stage train "$output/$(size_folder "$size")" "$made_from" --preset "$separate_preset" "${train_flags_here[@]}" --sizes "$size"
    done
    ;;
  esac
  [ "$SCALE" = full ] || rm -rf "$output"/checkpoint-* "$output"/L*/checkpoint-*
}

correlate() { # MODEL SIZES LABEL OUTPUT
  if fresh "$4" "$1/training.json"; then
    kept "$4"
  else
    stage sts --model_name_or_path "$1" --sizes "$2" --data "${pair_sets[@]}" --label "$3" --output "$4"
  fi
  results+=("$4")
}

for method in $METHODS; do label "$method" >/dev/null; done
results=()
trained=()
for method in $METHODS; do
  say "== $(label "$method")"
  train_method "$method"
  trained+=("$(label "$method")=$(model_of "$WORK/models/$method" "${SIZES##*,}")")
  if [ "$method" = separate ]; then
    for size in ${SIZES//,/ }; do
      correlate "$(model_of "$WORK/models/separate" "$size")" "$size" "$(label separate)" \
        "$WORK/results/separate.$(size_folder "$size").json"
    done
  else
    correlate "$WORK/models/$method" "$SIZES" "$(label "$method")" "$WORK/results/$method.json"
  fi
done
note="$(policy_of "${trained[@]}") Presets: those of the $([ "$RECIPE" = paper ] && printf "papers' text" || printf 'released code')."
report_flags=(--title "Similarity, $SCALE" --sizes "$SIZES" --note "$note")
read -ra methods <<<"$METHODS"
baseline=$(baseline_of "${BASELINE:-starbucks}" "${methods[@]}")
if [ -n "$baseline" ]; then report_flags+=(--baseline "$(label "$baseline")" --correction none); fi
if [ -n "${PUBLISHED:-}" ] && [ "$SCALE" = full ]; then report_flags+=(--published "$PUBLISHED"); fi
stage report --input "${results[@]}" --output_dir "$WORK/report" "${report_flags[@]}"
cat "$WORK/report/by_size.md" "$WORK/report/averages.md"
say "done in $((SECONDS - began)) s"
