#!/usr/bin/env bash
# Settings of SCALE=tiny and SCALE=full for all scripts of this folder. Sourced, never run on its own.
#
#   SCALE      tiny (default): offline, minutes on two cores, a small part of local data
#              full: the published recipes on MS MARCO's 8.8 million passages
#   WORK       folder for all outputs (default: msmarco-tiny or msmarco-full in the current folder)
#   METHODS    starbucks srl 2dmse 2dmse-v2 mrl separate full, and any of them with -round2 (see train.sh)
#   DATA       tiny: BEIR folder to take a part of (default: ../shared/data/msmarco-dl next to the checkout if it exists;
#              otherwise, or with DATA= (empty), the documentation of this machine's Python)
#   BACKBONE   model that training starts from (default: all-MiniLM-L6-v2 of the extra `demo`; full: bert-base-uncased)
#   SIZES      sizes that are trained, encoded and scored (default: six in the paper's proportions)
#   FALSE_NEGATIVES  treatment of a query's other known positives inside a batch, for every method: keep them among the
#              negatives (default, as in all papers and their codes), or mask them; the tables say which
# The step, batch and data numbers below can be set in the same way.
# shellcheck disable=SC2034  # read by the scripts that source this file
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

SCALE=${SCALE:-tiny}
WORK=${WORK:-msmarco-$SCALE}
open_work

case $SCALE in
tiny)
  export HF_HUB_OFFLINE=1
  SETS="" # the sets in the data
  METHODS=${METHODS:-starbucks srl-round2}
  if [ -z "${DATA+set}" ] && [ -d "$SHARED/msmarco-dl" ]; then DATA=$SHARED/msmarco-dl; fi
  DATA=${DATA:-}
  [ -z "$DATA" ] || DATA=$(absolute "$DATA")
  [ -n "${BACKBONE:-}" ] || BACKBONE=$(minilm)
  BACKBONE=$(absolute "$BACKBONE")
  SIZES=${SIZES:-$(default_sizes "$BACKBONE")}
  PASSAGES=${PASSAGES:-600}
  QUERIES=${QUERIES:-60}
  TRAIN_QUERIES=${TRAIN_QUERIES:-300}
  PRETRAIN_STEPS=${PRETRAIN_STEPS:-6}
  STEPS=${STEPS:-12}
  DEPTH=${DEPTH:-100}
  pinned=(SCALE DATA BACKBONE SIZES PASSAGES QUERIES TRAIN_QUERIES PRETRAIN_STEPS STEPS DEPTH)
  ;;
full)
  METHODS=${METHODS:-full separate 2dmse srl starbucks}
  BACKBONE=$(absolute "${BACKBONE:-bert-base-uncased}")
  SIZES=${SIZES:-2:32,4:64,6:128,8:256,10:512,12:768}
  TEXT=${TEXT:-HuggingFaceFW/fineweb}
  TEXT_CONFIG=${TEXT_CONFIG:-sample-10BT}
  # One pass over the sample: about 14.9 million documents (see its card), 512 per step.
  PRETRAIN_STEPS=${PRETRAIN_STEPS:-29000}
  GROUPS_NAME=${GROUPS_NAME:-Tevatron/msmarco-passage}
  CORPUS_NAME=${CORPUS_NAME:-Tevatron/msmarco-passage-corpus}
  SETS=${SETS:-msmarco-dev dl19 dl20}
  DEPTH=${DEPTH:-1000}
  pinned=(SCALE BACKBONE SIZES TEXT TEXT_CONFIG PRETRAIN_STEPS GROUPS_NAME CORPUS_NAME DEPTH)
  ;;
*) die "there is no SCALE=$SCALE" "SCALE=tiny or SCALE=full" ;;
esac
FALSE_NEGATIVES=${FALSE_NEGATIVES:-keep}
pinned+=(FALSE_NEGATIVES PRETRAIN_FLAGS MINE_FLAGS TRAIN_FLAGS ENCODE_FLAGS)
export METHODS SETS "${pinned[@]}" # so that the scripts that it calls use the same values
pin "${pinned[@]}"

sets() { # the sets of judged queries, one per line
  if [ "$SCALE" = full ]; then
    tr ' ' '\n' <<<"$SETS"
  else
    for file in "$WORK"/data/qrels/*.tsv; do basename "$file" .tsv; done | grep -vx train
  fi
}

pretrain_objective() { # the objective in PRETRAIN_FLAGS, else the preset's
  if [[ " ${PRETRAIN_FLAGS:-} " =~ .*\ --objective[=\ ]+([a-z-]+)\  ]]; then
    printf '%s\n' "${BASH_REMATCH[1]}"
  else
    printf 'smae\n'
  fi
}

label() { # METHOD: its name in the tables, which is the paper's if it has one
  local name
  case ${1%-round2} in
  starbucks)
    case $(pretrain_objective) in
    smae) name='SMAE-SRL (Starbucks)' ;;
    mlm-sizes) name='SMAE-SRL, SMAE without MAE' ;;
    mlm) name='SMAE-SRL, SMAE without Starbucks' ;;
    *) name="SRL after $(pretrain_objective)" ;;
    esac
    ;;
  srl) name=BERT-SRL ;;
  2dmse) name=BERT-2DMSE ;;
  2dmse-v2) name=BERT-2DMSE-v2 ;;
  mrl) name=BERT-MRL ;;
  separate) name=BERT-Separate ;;
  full) name=BERT ;;
  *) die "there is no method $1" "starbucks, srl, 2dmse, 2dmse-v2, mrl, separate or full, each also with -round2" ;;
  esac
  case $1 in *-round2) name+=', second round' ;; esac
  printf '%s\n' "$name"
}

one_method() { # ARGUMENTS: check the METHOD argument of a stage script
  [ $# -eq 1 ] || die "no method is named" "$(basename "$0") srl"
  label "$1" >/dev/null
}
