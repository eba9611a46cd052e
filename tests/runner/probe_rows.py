"""Ranks that show the probe's batch watch the same rows in different layouts, without a model:
`python -m torch.distributed.run --nproc-per-node N -m tests.runner.probe_rows RUN_DIR`. The job has `layout` (arguments of
megatron's initialize_model_parallel), `micro` (rows of a micro-batch) and `spoil`: what is wrong with the rows."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attuner.runner import files
from attuner.runner.train_mcore import import_megatron

ROWS, LENGTH = 8, 16


def whole(spoil: str, rank: int) -> dict[str, Any]:
    """Make the global batch, or one with a fault: (rows, length) each."""
    import torch

    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 50, (ROWS, LENGTH + 1), generator=draw)
    mask = (torch.rand(ROWS, LENGTH, generator=draw) > 0.3).float()
    labels, tokens = tokens[:, 1:].clone(), tokens[:, :-1].clone()
    if spoil == "tokens exchanged between rows":
        tokens[[0, 1], 5] = tokens[[1, 0], 5]
    elif spoil == "targets exchanged between rows":
        labels[[0, 1]], mask[[0, 1]] = labels[[1, 0]], mask[[1, 0]]
    elif spoil == "mask rolled":
        mask = mask.roll(1, 1)
    elif spoil == "rows in another order":
        order = torch.randperm(ROWS, generator=draw)
        tokens, labels, mask = tokens[order], labels[order], mask[order]
    elif spoil == "rank 1 sees others" and rank == 1:
        tokens[0, 0] += 1
    positions = torch.arange(LENGTH).expand(ROWS, -1)
    return {"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": positions}


def main(run_dir: str) -> None:
    """Be one rank and, on rank 0, leave rows.json."""
    job = files.read_json(Path(run_dir) / files.JOB)
    import_megatron({"kind": "cpu", "threads": 1})
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.utils import get_batch_on_this_cp_rank

    from attuner.runner.probe import batch

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(**job["layout"], create_gloo_process_groups=False)
    core = SimpleNamespace(
        forward=lambda input_ids, position_ids, attention_mask, labels=None: None,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=True),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=True),
    )
    watch, rows = batch.BatchWatch("cpu"), whole(job["spoil"], dist.get_rank())
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    for first in range(rank * job["micro"], ROWS, ranks * job["micro"]):
        part = {key: value[first : first + job["micro"]].contiguous() for key, value in rows.items()}
        part = get_batch_on_this_cp_rank(part)
        watch.see_forward(core, (part["tokens"], part["position_ids"], None), {"labels": part["labels"]})
        if core.post_process:
            watch.see_loss(part["loss_mask"].view(-1), core)
    inputs, targets = watch.rows()
    why = batch.agree(inputs, targets)
    found, missing = batch.describe(batch.exchange(inputs, targets, mask_seen=watch.mask_seen), None)
    if dist.get_rank() == 0:
        files.write_json(Path(run_dir) / "rows.json", {"batch": found, "missing": missing, "why": why})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
