#!/usr/bin/env bash
# Train one method.
#
#   starbucks   SMAE pre-training, then SRL: arXiv 2410.13230          from WORK/pretrained; all others from BACKBONE
#   srl         SRL alone                                              the paper's BERT-SRL
#   full        the full size alone                                    its BERT
#   separate    one model per size                                     its BERT-Separate
#   2dmse       a sampled (layer, dim) per step: arXiv 2402.14776      its BERT-2DMSE (no command was released for it: this
#                                                                      uses the settings of Table 6 for all methods)
#   2dmse-v2    every layer at small dims: arXiv 2411.17299, retrieval
#   mrl         the dims of SIZES at the last layer: the same paper's MSE
#   X-round2    X again from its start, with negatives that X itself ranks high (mine.sh X)
#
# Inputs   rows: WORK/negatives/bm25.jsonl (tiny) or the hub's GROUPS_NAME (full), for -round2 WORK/negatives/X.jsonl;
#          STEPS (tiny); DEVICES; TRAIN_FLAGS such as "--deepspeed FILE" (configs/ has ZeRO 1, 2, 3 and FSDP)
# Outputs  WORK/models/METHOD; for separate, one folder per size in it
# Time     31 to 41 s tiny (12 steps) on two cores; full not measured
# Disk     87 MB tiny per model; full not measured
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
one_method "$@"

method=$1
start=$BACKBONE
case ${method%-round2} in
starbucks)
  train_flags=(--preset starbucks-msmarco)
  start=$WORK/pretrained
  [ -e "$start/training.json" ] || die "$start is not pre-trained yet" "pretrain.sh"
  ;;
srl) train_flags=(--preset starbucks-msmarco) ;;
2dmse) train_flags=(--preset 2dmse-msmarco) ;;
2dmse-v2) train_flags=(--preset 2dmse-v2-msmarco) ;;
mrl) train_flags=(--preset mrl-msmarco --train_dims "$(dims_of "$SIZES")") ;;
separate) train_flags=(--preset separate-msmarco) ;;
full) train_flags=(--preset full-msmarco) ;;
esac

rows=$WORK/negatives/bm25.jsonl
case $method in *-round2) rows=$WORK/negatives/${method%-round2}.jsonl ;; esac
if [ "$SCALE" = full ] && [ "$rows" = "$WORK/negatives/bm25.jsonl" ]; then
  train_flags+=(--dataset_name "$GROUPS_NAME")
else
  [ -e "$rows" ] || die "$rows is not there yet" "mine.sh $(basename "$rows" .jsonl)"
  train_flags+=(--dataset_path "$rows")
fi

if [ "$SCALE" = tiny ]; then
  # A small encoder that is good already needs its own pooling and score, an anchor, and few tokens.
  train_flags+=(--pooling mean --normalize true --temperature 0.05 --anchor_weight 5 --dropout 0 --bf16 false)
  train_flags+=(--gradient_checkpointing false --passage_max_len 64 --train_group_size 2 --learning_rate 2e-4)
  train_flags+=(--per_device_train_batch_size "$((16 / DEVICES))" --max_steps "$STEPS" --save_steps "$((STEPS / 2))")
else
  train_flags+=(--per_device_train_batch_size "$((128 / DEVICES))")
fi
read -ra more <<<"${TRAIN_FLAGS:-}"
train_flags+=(--false_negatives "$FALSE_NEGATIVES" --model_name_or_path "$start" ${more[@]+"${more[@]}"})

output=$WORK/models/$method
made_from=$rows
if [ "$start" != "$BACKBONE" ]; then made_from=$start/training.json; fi
case ${method%-round2} in
separate)
  for size in ${SIZES//,/ }; do
    train_stage train "$output/$(size_folder "$size")" "$made_from" "${train_flags[@]}" --sizes "$size"
  done
  ;;
starbucks | srl | 2dmse | 2dmse-v2) train_stage train "$output" "$made_from" "${train_flags[@]}" --sizes "$SIZES" ;;
*) train_stage train "$output" "$made_from" "${train_flags[@]}" ;;
esac
# Checkpoints hold the optimiser's state, which is not needed once the model is complete.
[ "$SCALE" = full ] || rm -rf "$output"/checkpoint-* "$output"/L*/checkpoint-*
