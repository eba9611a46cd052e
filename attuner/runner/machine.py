"""What one node is made of, as its kernel and driver tell it: devices, NVLink, network ports. Standard library only.

Where there is no GPU or no InfiniBand the facts say so; nothing is guessed.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

GPUS = Path("/proc/driver/nvidia/gpus")
NETWORK, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
SMI_S = 20.0


def facts() -> dict[str, Any]:
    """Return devices, nvlink and nics of this node."""
    gpus = gpu_models() or re.findall(r"^GPU \d+: (.+?) \(UUID", smi("-L"), re.MULTILINE)
    return {
        "hardware": sorted({*gpus}) if gpus else [field(Path("/proc/cpuinfo"), "model name")],
        "num_gpus": len(gpus),
        "nvlink": nvlink(smi("topo", "-m"), smi("-q")) if gpus else "no GPU",
        "nics": nics(),
        "infiniband": infiniband(),
    }


def gpu_models() -> list[str]:
    """Return the model of every GPU."""
    return [field(p, "Model:") for p in sorted(GPUS.glob("*/information"))]


def field(path: Path, name: str) -> str:
    """Return what follows a name and a colon in a file of the kernel's."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")


def smi(*arguments: str) -> str:
    """Return what nvidia-smi says, '' if it isn't there or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def nvlink(matrix: str, query: str) -> str:
    """Return how GPUs are linked ('all pairs', 'some pairs', 'no pairs', 'unknown'), and a rack's NVLink domain if it is told.

    Args:
        matrix: of `nvidia-smi topo -m`: NV# stands where a pair is linked.
        query: of `nvidia-smi -q`: its Fabric section names the domain of machines that share NVLink.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", matrix).splitlines()
    rows = [line.split() for line in lines if re.match(r"\s*GPU\d+\s", line) and ("X" in line.split())]
    count = len(rows)
    pairs = [rows[i][1 + j] for i in range(count) for j in range(count) if i != j and len(rows[i]) > count]
    if not rows:
        linked = "unknown"
    elif count == 1:
        linked = "one GPU"
    else:
        number = sum(p.startswith("NV") for p in pairs)
        linked = "all pairs" if number == len(pairs) else "some pairs" if number else "no pairs"
    domain = re.search(r"ClusterUUID\s*:\s*([0-9a-fA-F-]{8,})", query)
    clique = re.search(r"CliqueId\s*:\s*(\d+)", query)
    shared = domain is not None and set(domain.group(1)) - set("0-")
    return f"{linked}, domain {domain.group(1)}:{clique.group(1) if clique else '0'}" if domain and shared else linked


def nics() -> list[dict[str, Any]]:
    """Return the network ports of this node, without loopback and virtual ones: name, up, gbit_s."""
    found = []
    for port in sorted(NETWORK.iterdir()) if NETWORK.is_dir() else []:
        if port.name == "lo" or not (port / "device").exists():
            continue
        speed = _text(port / "speed")
        known = speed.lstrip("-").isdigit() and int(speed) > 0
        found.append({"name": port.name, "up": _text(port / "operstate") == "up", "gbit_s": int(speed) / 1000 if known else None})
    return found


def infiniband() -> list[dict[str, Any]]:
    """Return the InfiniBand and RoCE ports of this node: name, active, rate, layer. Empty: there are none."""
    found = []
    for port in sorted(INFINIBAND.glob("*/ports/*")) if INFINIBAND.is_dir() else []:
        name = f"{port.parent.parent.name}:{port.name}"
        active = _text(port / "state").endswith("ACTIVE")
        found.append({"name": name, "active": active, "rate": _text(port / "rate"), "layer": _text(port / "link_layer")})
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
