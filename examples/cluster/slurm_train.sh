#!/usr/bin/env bash
# A Slurm job that trains on several nodes, with one process per GPU.
#
#   sbatch examples/cluster/slurm_train.sh --preset starbucks-msmarco --dataset_name Tevatron/msmarco-passage \
#       --model_name_or_path bert-base-uncased --per_device_train_batch_size 16 --output_dir /shared/models/srl
#
# Inputs   flags of `starbucks train` (with STAGE=pretrain: of pretrain); PYTHON with this package on every node
# Outputs  the folder --output_dir, on a disk that all nodes can access
# Rerun    submit the same line again: a job that Slurm ends or requeues continues from its last checkpoint
# Time, disk   not measured
#
# NOT RUN BY US under Slurm. Its last command was run on one machine without GPUs: two processes, gloo.
# The effective batch is --per_device_train_batch_size x nodes x GPUs: 128 in the papers, so 16 for two nodes of four.
#
#SBATCH --job-name=starbucks-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

PYTHON=${PYTHON:-python3}
STAGE=${STAGE:-train}
# The first node of the job hosts the rendezvous.
MEETING=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):${PORT:-29500}

output='' # sbatch runs a copy of this script, so it cannot source a file next to it
for ((i = 1; i < $#; i++)); do
  if [ "${!i}" = --output_dir ]; then
    i=$((i + 1))
    output=${!i}
  fi
done
[ -n "$output" ] || { echo "error: --output_dir is missing" >&2 && exit 2; }
if [ -e "$output/training.json" ]; then
  echo "$output is finished" >&2
  exit
fi
again=(--overwrite_output_dir)
for checkpoint in "$output"/checkpoint-*/trainer_state.json; do
  if [ -e "$checkpoint" ]; then again=(--resume_from_checkpoint true); fi
done
srun "$PYTHON" -m torch.distributed.run --nnodes "$SLURM_NNODES" --nproc_per_node "${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint "$MEETING" \
  -m "starbucks_retrieval.$STAGE" "$@" "${again[@]}"
