#!/usr/bin/env bash
# A Slurm array that encodes a corpus: each task encodes its own part, without communication.
#
#   sbatch --array=0-7 examples/cluster/slurm_encode.sh --model_name_or_path /shared/models/srl \
#       --dataset_name Tevatron/msmarco-passage-corpus --encode_output_path /shared/stores/passages
#   starbucks search --passage_reps '/shared/stores/passages/part-*' --query_reps … --sizes all --save_ranking_to runs
#
# Inputs   flags of `starbucks encode`; PYTHON with this package on every node
# Outputs  --encode_output_path/part-00000-of-00008/L6-D128 and so on, which search reads as one store
# Rerun    submit the same line again: tasks with a complete part end at once, the others continue where they stopped
# Time, disk   not measured; by calculation, MS MARCO's 8.8 million passages take 31 GB at the six sizes of a BERT
#
# NOT RUN BY US under Slurm. Its last command was run without Slurm for each of two parts, and the parts were searched
# as one store.
#
#SBATCH --job-name=starbucks-encode
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --output=%x-%A-%a.log
set -euo pipefail

"${PYTHON:-python3}" -m starbucks_retrieval.encode "$@" \
  --dataset_number_of_shards "$SLURM_ARRAY_TASK_COUNT" --dataset_shard_index "$SLURM_ARRAY_TASK_ID"
