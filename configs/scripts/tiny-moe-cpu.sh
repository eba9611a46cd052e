#!/usr/bin/env bash
# A launch script as teams keep them: a small mixture of experts with Megatron-LM's own pretrain_gpt.py, sized for two CPU ranks.
# `attuner import` reads it; nobody executes it.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1

MEGATRON=${MEGATRON:-../Megatron-LM}
NPROC=2
SEQ=128

MODEL_ARGS=(
    --transformer-impl local --num-layers 4 --hidden-size 128 --num-attention-heads 4 --ffn-hidden-size 256
    --seq-length ${SEQ} --max-position-embeddings ${SEQ} --position-embedding-type rope --no-rope-fusion
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --hidden-dropout 0 --attention-dropout 0
    --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 128 --moe-token-dispatcher-type alltoall
    --moe-router-load-balancing-type none
)
DATA_ARGS=(
    --mock-data --tokenizer-type NullTokenizer --vocab-size 511 --split 99,1,0 --num-workers 0
    --no-create-attention-mask-in-dataloader
)
TRAIN_ARGS=(
    --micro-batch-size 1 --global-batch-size 8 --train-iters 1000 --seed 1234
    --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-decay-iters 1000 --lr-warmup-iters 0
    --weight-decay 0.1 --clip-grad 1.0
)
LAYOUT_ARGS=(
    --distributed-backend gloo
    --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 1 --expert-tensor-parallel-size 2
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --no-masked-softmax-fusion --no-gradient-accumulation-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion
    --no-persist-layer-norm
)
OUTPUT_ARGS=(--log-interval 10 --eval-interval 1000 --eval-iters 10 --save checkpoints --save-interval 500 --ckpt-format torch_dist)

torchrun --nproc-per-node ${NPROC} ${MEGATRON}/pretrain_gpt.py \
    "${MODEL_ARGS[@]}" "${DATA_ARGS[@]}" "${TRAIN_ARGS[@]}" "${LAYOUT_ARGS[@]}" "${OUTPUT_ARGS[@]}"
