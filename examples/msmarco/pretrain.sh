#!/usr/bin/env bash
# Pre-train the backbone with SMAE: the starting point of the method `starbucks`.
#
#   PRETRAIN_FLAGS="--objective mlm-sizes"   its ablation "- MAE": without the decoder
#   PRETRAIN_FLAGS="--objective mlm"         its ablation "- Starbucks": also without the sizes
#
# Inputs   BACKBONE; text: the passages of WORK/data (tiny), the hub's TEXT with TEXT_CONFIG (full); PRETRAIN_FLAGS
# Outputs  WORK/pretrained, a Hugging Face folder
# Time     33 s tiny (6 steps) on two cores; full not measured
# Disk     660 MB tiny, including the optimizer's state; full not measured
#
# Six steps on a model that is a good encoder already reduce its quality: tiny shows that pre-training runs, not that it
# helps. Full has the paper's batch of 512 on any number of DEVICES that divides 16.
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

pretrain_flags=(--preset starbucks --max_steps "$PRETRAIN_STEPS")
case $(pretrain_objective) in
mlm | retromae | retromae-basic) ;; # these train the full size only
*) pretrain_flags+=(--sizes "$SIZES") ;;
esac
if [ "$SCALE" = tiny ]; then
  pretrain_flags+=(--dataset_path "$WORK/data" --bf16 false --max_length 96 --per_device_train_batch_size 8)
  pretrain_flags+=(--gradient_accumulation_steps 1 --dropout 0 --save_steps 3 --logging_steps 3)
else
  pretrain_flags+=(--dataset_name "$TEXT" --dataset_config "$TEXT_CONFIG")
  pretrain_flags+=(--gradient_accumulation_steps "$((16 / DEVICES))" --dataloader_num_workers 1)
fi
read -ra more <<<"${PRETRAIN_FLAGS:-}"
train_stage pretrain "$WORK/pretrained" "" --model_name_or_path "$BACKBONE" "${pretrain_flags[@]}" ${more[@]+"${more[@]}"}
