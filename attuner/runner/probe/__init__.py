"""The probe: what the first steps of a training run really did, as `fingerprint.json`. It attaches to megatron-core from
outside, watches steps 0 and 1, and is gone before a step is scored.

Attach it from any trainer on megatron-core, on all ranks alike, once the model is wrapped in DistributedDataParallel, the
optimizer is built and the weights are loaded::

    from attuner_runner.probe import Probe

    probe = Probe.attach(model_chunks, optimizer, config, run_dir, steps=2)
    while training:
        if probe.watching:
            probe.before_step()
        loss = train_one_step()                       # ends in optimizer.step()
        if probe.watching:
            probe.after_step(loss=loss, aux={"load_balancing_loss": aux})
    probe.finish()                                    # earlier, if you like; it does its work once

`after_step` and `finish` are collectives over all ranks. The loss function shows its mask by `probe.see_loss(mask, chunk)`,
without which the fingerprint has no loss mask, and counts the loss tokens that `after_step` is told.

What it hooks while it watches: a forward pre-hook on each model chunk (rows), forward hooks on layers and output layer and a
wrapper of the routers' `gating` (dtypes; none of these with CUDA graphs), and a wrapper of `optimizer.step`, around which it
reads the reduced gradients, the weights, the clipped gradients and the update. It draws no random number and writes to no
tensor of the run. Beside chunks of bounded size it allocates, on the host, one copy of this rank's main weights during
`optimizer.step`, and one of the optimizer's states if it has any. When it fails, on whatever rank, it detaches on all ranks
and says why in the fingerprint's `missing`.

A hook of your own. Name functions as "package.module:function" in the job's `probe_hooks` (or in `attach`'s `hooks`)::

    # my_team/looks.py, importable by every rank
    def biggest_weight(model_chunks, optimizer, step):
        return {"biggest_weight": max(float(p.abs().max()) for c in model_chunks for p in c.parameters())}

Each is called on every rank in every observed step, when gradients are reduced and not yet clipped, without gradient tracking.
It returns a mapping of numbers (or short texts); rank 0's come back in the fingerprint's `hooks` as `step0.biggest_weight`,
64 values at most. A hook may call collectives, but then it must do so on every rank. An error in one is noted in `missing`
under "hook NAME" and ends that hook only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attach import Probe

__all__ = ["Probe"]


def __getattr__(name: str) -> Any:
    """Import megatron with the first use of `Probe`: `python -m attuner.runner.probe` has to put a checkout first."""
    if name != "Probe":
        raise AttributeError(name)
    from .attach import Probe

    return Probe
