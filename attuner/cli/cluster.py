"""`attuner cluster doctor FILE`: is this cluster fit to launch on, and what is to be mended; spends nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attuner.config import load_campaign, load_cluster
from attuner.core.campaign import Cluster
from attuner.settings import load_settings
from attuner.yamlfile import read_yaml


def doctor(arguments: argparse.Namespace) -> int:
    """Look at the cluster of a campaign file, or at a cluster file; exit 0 if all is well, 1 if something is to be mended."""
    from attuner.wiring import cluster_checks

    settings = load_settings(project=arguments.project)
    launcher, cluster = named(Path(arguments.file), settings.configs_dir())
    found = cluster_checks(cluster, settings, launcher=launcher)
    well = all(c.ok for c in found)
    if arguments.json:
        body = {"cluster": cluster.name, "launcher": launcher, "ok": well, "checks": [c.data() for c in found]}
        print(json.dumps(body, indent=1, ensure_ascii=False))
        return 0 if well else 1
    print(f"{arguments.file}: cluster {cluster.name}, launcher {launcher}")
    width = max((len(c.name) for c in found), default=0)
    for check in found:
        print(f"  {'ok  ' if check.ok else 'MEND'}  {check.name:{width}}  {check.detail}")
        if check.mend and not check.ok:
            print(f"        {'':{width}}  → {check.mend}")
    wrong = sum(not c.ok for c in found)
    print("  all is well" if well else f"  {wrong} of {len(found)} to mend")
    return 0 if well else 1


def named(path: Path, configs: Path) -> tuple[str, Cluster]:
    """Return launcher and cluster of a campaign file, or those of a cluster file."""
    data = read_yaml(path)
    if isinstance(data, dict) and "launcher" in data:
        campaign = load_campaign(path, configs=configs)
        return campaign.launcher.name, campaign.launcher.cluster
    cluster = load_cluster(path)
    return "kuberay" if cluster.kube is not None else "ray_jobs", cluster
