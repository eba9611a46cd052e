"""pretrain_gpt.py with a planted fault: the second gradient bucket is never reduced over data-parallel ranks."""

import os
import runpy
import sys
from pathlib import Path

from megatron.core.distributed import param_and_grad_buffer as buffers

real = buffers._ParamAndGradBucketGroup.start_grad_sync
seen: list[int] = []


def start_grad_sync(group, *args, **kwargs):
    if id(group) not in seen:
        seen.append(id(group))
    if seen.index(id(group)) != 1:
        return real(group, *args, **kwargs)
    for bucket in group.buckets:  # what the reduction does beside reducing
        if bucket.gradient_scaling_factor != 1.0:
            bucket.grad_data *= bucket.gradient_scaling_factor
    group.grad_reduce_handle = type("Done", (), {"wait": lambda self: None})()
    return None


buffers._ParamAndGradBucketGroup.start_grad_sync = start_grad_sync
script = Path(os.environ["ATTUNER_MEGATRON_SRC"]) / "pretrain_gpt.py"
sys.path.insert(0, str(script.parent))
runpy.run_path(str(script), run_name="__main__")
