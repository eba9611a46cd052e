"""Imports Megatron-LM's own training code from a source checkout, without a GPU, and shows it the machine that the job will
run on: capability of the device, versions of torch and Transformer Engine. `load` is called once for a process; `aim` in a
fork of it, for one candidate. Works on tags core_v0.16.1 and 0.20.0 and on slime's pinned commit."""

import argparse
import dataclasses
import importlib
import importlib.util
import inspect
import logging
import os
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ConfigError

NEW_ENOUGH = "2.14.0"
"""Version of Transformer Engine that is assumed where nobody names the cluster's: every gate of the sources read passes."""
CAPABILITY = (9, 0)
_FUSED = {
    "megatron.core.models.common.embeddings.rope_utils": ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
    "megatron.core.transformer.moe.moe_utils": (
        *("fused_permute", "fused_permute_with_probs", "fused_permute_and_pad_with_probs", "fused_unpermute"),
        *("fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"),
    ),
}
"""What TransformerConfig.__post_init__ imports to see whether it is there."""


@dataclasses.dataclass(frozen=True)
class Slime:
    """slime's own way of reading arguments, from its checkout.

    arguments: slime/backends/megatron_utils/arguments.py; provider: adds slime's options to a parser; mode: reads the few
    options that slime reads before all others.
    """

    arguments: Any
    provider: Callable[[Any], Any]
    mode: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Framework:
    """Megatron's modules `megatron.training.arguments` and `.training`, slime's where wanted, and what versions they are."""

    arguments: Any
    training: Any
    slime: Slime | None
    versions: dict[str, str]

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser as Megatron would build it, for a look at its vocabulary."""
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser = self.arguments.add_megatron_arguments(parser)
        return self.slime.provider(parser) if self.slime else parser


def load(source: str, slime: str = "") -> Framework:
    """Import a checkout.

    source: folder of Megatron-LM; slime: folder of slime, or ''.
    Raises: ConfigError when that is no checkout, or when its code can't be imported.
    """
    folder = Path(source).resolve()
    if not (folder / "megatron" / "training" / "arguments.py").is_file():
        raise ConfigError(f"{source}: no Megatron-LM checkout: it has no megatron/training/arguments.py")
    if any(name == "megatron" or name.startswith("megatron.") for name in sys.modules):
        raise ConfigError("megatron is imported already: a checkout must come first")
    if not hasattr(typing, "override"):  # Megatron-LM after 0.16 is written for Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    from . import cpu_shim

    cpu_shim.skip_compilation()
    sys.path.insert(0, str(folder))
    engine = _settle("transformer_engine.pytorch")
    with _Triton():
        try:
            training = importlib.import_module("megatron.training.training")
            arguments = importlib.import_module("megatron.training.arguments")
        except ImportError as error:
            raise ConfigError(f"{source}: can't be imported here: {error}") from error
    if not Path(str(arguments.__file__)).is_relative_to(folder):
        raise ConfigError(f"{source}: another Megatron-LM was imported: {arguments.__file__}")
    versions = {"megatron_core": _release(folder), "python": sys.version.split()[0], "commit": commit(folder)}
    if engine is not None:
        versions["transformer_engine"] = str(importlib.import_module("transformer_engine").__version__)
    return Framework(arguments=arguments, training=training, slime=_slime(slime) if slime else None, versions=versions)


def _settle(name: str) -> Any:
    """Import an optional module, or make it absent: without a driver some fail in ways that Megatron doesn't expect."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
    except (OSError, RuntimeError, AttributeError, AssertionError) as error:
        logging.getLogger(__name__).warning("%s can't be imported here and is left out: %s", name, error)
        sys.modules[name.partition(".")[0]] = None  # type: ignore[assignment]
        return None


def _release(folder: Path) -> str:
    """Return the version that the checkout gives itself, without the commit that it may append."""
    found = importlib.import_module("megatron.core.package_info")
    if not Path(str(found.__file__)).is_relative_to(folder):
        raise ConfigError(f"{folder}: megatron.core was imported from elsewhere: {found.__file__}")
    return str(found.__version__).partition("+")[0]


def commit(folder: Path) -> str:
    """Return the checkout's commit, with `+edited` where tracked files differ from it, or '' if it is no git checkout."""
    if not (folder / ".git").exists():
        return ""

    def git(*words: str) -> str:
        command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    found = git("rev-parse", "HEAD")
    return f"{found}+edited" if found and git("status", "--porcelain", "--untracked-files=no") else found


# ---------------------------------------------------------------------------------------------- stand-ins


class _Word:
    """Stands in for anything of triton: decorators return their function, all else is another word."""

    def __getattr__(self, name: str) -> "_Word":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Word()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType)
        return args[0] if plain else self

    def __getitem__(self, key: Any) -> "_Word":
        return self


class _StandIn(types.ModuleType):
    """A module whose every public name is a word."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Word()


class _Triton:
    """While Megatron is imported, `triton` exists: it defines kernels at import that never run here.

    Where triton isn't installed the stand-in goes away again, since torch looks for it later.
    """

    def __init__(self) -> None:
        self.absent = importlib.util.find_spec("triton") is None

    def __enter__(self) -> None:
        if self.absent:
            triton, language = _StandIn("triton"), _StandIn("triton.language")
            triton.language, triton.__path__, triton.__version__ = language, [], "3.0.0"  # type: ignore[attr-defined]
            sys.modules.update({"triton": triton, "triton.language": language})

    def __exit__(self, *exception: Any) -> None:
        if self.absent:
            for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
                del sys.modules[name]


def _slime(source: str) -> Slime:
    """Load slime's two argument modules; what they import of its serving side is stood in for, as nothing of it is called.

    Raises: ConfigError when they can't be loaded.
    """
    folder = Path(source).resolve()
    paths = [folder / "slime" / "utils" / "arguments.py", folder / "slime" / "backends" / "megatron_utils" / "arguments.py"]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"{source}: no slime checkout: it has no {Path(missing[0]).relative_to(folder)}")
    sys.path.append(str(folder))  # slime.utils.eval_config and its like
    serving = "slime.backends.sglang_utils"
    for name in (serving, f"{serving}.arguments", f"{serving}.external", "slime.observability.logging_utils"):
        sys.modules[name] = _StandIn(name)
    if importlib.util.find_spec("transformers") is None:
        sys.modules["transformers"] = _StandIn("transformers")
    options, own = (_from_file(f"attuner_slime_{i}", path) for i, path in enumerate(paths))
    missing = [n for n in ("get_slime_extra_args_provider", "_pre_parse_mode") if not hasattr(options, n)]
    missing += [n for n in ("megatron_parse_args", "validate_args") if not hasattr(own, n)]
    if missing or "skip_hf_validate" not in inspect.signature(own.megatron_parse_args).parameters:
        raise ConfigError(f"{source}: a slime that attuner doesn't know: no {', '.join(missing) or 'skip_hf_validate'}")
    return Slime(arguments=own, provider=options.get_slime_extra_args_provider(), mode=options._pre_parse_mode)


def _from_file(name: str, path: Path) -> Any:
    """Load one file as a module, without the package around it."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: can't be loaded")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ConfigError(f"{path}: can't be imported here: {error}") from error
    return module


# ---------------------------------------------------------------------------------------------- the job's machine


def aim(*, capability: tuple[int, int], torch_version: str, engine_version: str) -> None:
    """Make Megatron see the machine of the job: call it in a fork, before anything is parsed.

    capability: (major, minor) of the CUDA device. torch_version, engine_version: '' leaves what is installed here, and
        stands for a Transformer Engine that is new enough.
    """
    import torch

    properties = types.SimpleNamespace(
        name="target", major=capability[0], minor=capability[1], total_memory=80 << 30, multi_processor_count=132
    )
    stand_ins: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda *args: capability,
        "get_device_properties": lambda *args: properties,
        "get_device_name": lambda *args: properties.name,
        "current_device": lambda: 0,
    }
    for name, function in stand_ins.items():
        setattr(torch.cuda, name, function)
    utils: Any = importlib.import_module("megatron.core.utils")
    if torch_version:
        utils._torch_version = utils.PkgVersion(torch_version)
    if importlib.util.find_spec("transformer_engine") is None:
        utils._te_version = utils.PkgVersion(engine_version or NEW_ENOUGH)
        _fuse()
        _add_optimizer()


def _fuse() -> None:
    """Give Megatron dummies of the fused functions that its configuration objects ask for and never call."""
    for place, names in _FUSED.items():
        module = sys.modules.get(place)
        for name in [n for n in names if module is not None and getattr(module, n, None) is None]:
            setattr(module, name, lambda *args, **kwargs: None)


def _add_optimizer() -> None:
    """Let Megatron find the keywords it looks for on Transformer Engine's optimizer."""

    class FusedAdam:
        def __init__(
            self,
            params: Any,
            master_weight_dtype: Any = None,
            exp_avg_dtype: Any = None,
            exp_avg_sq_dtype: Any = None,
            use_decoupled_grad: bool = False,
            store_param_remainders: bool = False,
        ) -> None:
            pass

    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules[names[-1]].FusedAdam = FusedAdam  # type: ignore[attr-defined]


def job_environment(wanted: dict[str, str], *, world_size: int) -> None:
    """Put the job's environment over this process's, as rank 0 of the job would see it."""
    os.environ.pop("OMP_NUM_THREADS", None)  # the resolver's own
    os.environ.update(wanted)
    os.environ.update({"WORLD_SIZE": str(world_size), "RANK": "0", "LOCAL_RANK": "0"})
