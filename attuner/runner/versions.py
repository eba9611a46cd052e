"""Which software a run really has, read in the job's own environment without importing torch or the framework.

`python -m attuner_runner.versions` prints one JSON object. What isn't there is left out. Package versions come from the
installed metadata, those of a source checkout from its own files, CUDA from torch's version file, NCCL from the library itself.
"""

import ast
import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = {
    "torch": "torch",
    "megatron_core": "megatron-core",
    "megatron_bridge": "megatron-bridge",
    "nemo_automodel": "nemo-automodel",
    "transformer_engine": "transformer-engine",
    "flash_attn": "flash-attn",
    "apex": "apex",
    "deep_ep": "deep-ep",
    "sglang": "sglang",
    "slime": "slime",
    "ray": "ray",
}
IMAGE = ("ATTUNER_IMAGE_DIGEST", "IMAGE_DIGEST", "CONTAINER_IMAGE_DIGEST")
PLUGINS = ("libnccl-net*.so*", "libnccl-tuner*.so*")
FOLDERS = ("/opt/amazon/ofi-nccl/lib", "/opt/aws-ofi-nccl/lib", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib")


def versions() -> dict[str, str]:
    """Return name → version of what bears on a run."""
    found = {"python": platform.python_version(), "kernel": platform.release(), **packages(), **checkout()}
    more = {"cuda": cuda(), "nccl": nccl(), "nccl_plugin": plugin(), "driver": driver()}
    more["image"] = next((os.environ[name] for name in IMAGE if os.environ.get(name)), "")
    return {**found, **{name: value for name, value in more.items() if value}}


def packages() -> dict[str, str]:
    """Return the versions of installed packages."""
    found = {}
    for name, package in PACKAGES.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def checkout() -> dict[str, str]:
    """Return version and commit of a Megatron-LM checkout on the path, if megatron.core comes from one."""
    try:
        spec = importlib.util.find_spec("megatron.core")
    except (ImportError, ValueError, AttributeError):
        return {}
    folder = Path(next(iter(spec.submodule_search_locations or []), "")) if spec else Path()
    if not (folder / "package_info.py").is_file() or "site-packages" in folder.parts:
        return {}
    said = {}
    for node in ast.walk(ast.parse((folder / "package_info.py").read_text(errors="replace"))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
            said[node.targets[0].id] = str(node.value.value)
    number = ".".join(said[key] for key in ("MAJOR", "MINOR", "PATCH") if key in said)
    found = {"megatron_core": number + said.get("PRE_RELEASE", "")} if number else {}
    commit = _commit(folder.parent.parent / ".git")
    return {**found, **({"megatron_commit": commit} if commit else {})}


def _commit(git: Path) -> str:
    with contextlib.suppress(OSError):
        if git.is_file():  # a work tree of a repository elsewhere
            git = (git.parent / git.read_text().partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        for root in (git, (git / (git / "commondir").read_text().strip()).resolve() if (git / "commondir").exists() else git):
            if (root / name).is_file():
                return (root / name).read_text().strip()
            if (root / "packed-refs").is_file():
                for line in (root / "packed-refs").read_text().splitlines():
                    if line.endswith(f" {name}"):
                        return line.split()[0]
    return ""


def cuda() -> str:
    """Return the CUDA that torch was built for; '' for a CPU build."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).parent / "version.py" if spec and spec.origin else None
    if file is None or not file.is_file():
        return ""
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", file.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def nccl() -> str:
    """Return the version that the NCCL library itself gives."""
    inside = [p for root in sys.path for p in Path(root, "nvidia/nccl/lib").glob("libnccl.so.*")]
    for name in [*map(str, inside), "libnccl.so.2"]:
        with contextlib.suppress(OSError, AttributeError):
            number = ctypes.c_int()
            if ctypes.CDLL(name).ncclGetVersion(ctypes.byref(number)) == 0:
                n = number.value
                return f"{n // 10000}.{n % 10000 // 100}.{n % 100}" if n >= 10000 else f"{n // 1000}.{n % 1000 // 100}.{n % 100}"
    return ""


def plugin() -> str:
    """Return which network plugin NCCL would load: what the environment names, and the libraries that lie on its path."""
    named = os.environ.get("NCCL_NET_PLUGIN", "")
    folders = [x for x in os.environ.get("LD_LIBRARY_PATH", "").split(":") if x] + list(FOLDERS)
    found = {str(p.resolve()) for f in folders for pattern in PLUGINS for p in Path(f).glob(pattern)}
    return " ".join(x for x in (named, *sorted(found)) if x)


def driver() -> str:
    """Return the version of the GPUs' kernel driver."""
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+[\d.]*)", Path("/proc/driver/nvidia/version").read_text())
        return found.group(1) if found else ""
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions()) + "\n")
