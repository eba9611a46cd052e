"""The one place that names adapters and reads settings: from a campaign file or id to a wired Kit.

Adapters are imported when they are used: the gate and the rules answer at once, without DuckDB, Ray or a profiler reader.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attuner.config import REPLAY, load_campaign
from attuner.core.access import Check
from attuner.core.base import Record, Value
from attuner.core.campaign import Campaign, Cluster
from attuner.core.errors import Transient, UserError
from attuner.core.events import History
from attuner.ports import Clock, Kit, Launcher, Proposer, Stack, Watch
from attuner.settings import Settings, load_settings

if TYPE_CHECKING:
    from attuner.ledgers.duckdb_file import DuckdbLedger
    from attuner.proposers.apart import Apart
    from attuner.stacks.finished import FinishedRun

PROPOSERS = {
    "catalog": "attuner.proposers.catalog:Catalog",
    "claude": "attuner.proposers.claude.proposer:Claude",
    "fixed_knobs": "attuner.proposers.tpe:FixedKnobs",
    "manual": "attuner.proposers.manual:Manual",
    "random": "attuner.proposers.random_search:RandomSearch",
    "scripted": "attuner.proposers.scripted:Scripted",
    "tpe": "attuner.proposers.tpe:Tpe",
}
STACKS = {
    "automodel": "attuner.stacks.automodel.stack:AutomodelStack",
    "bridge": "attuner.stacks.bridge.stack:BridgeStack",
    "mcore": "attuner.stacks.mcore.stack:McoreStack",
    "megatron": "attuner.stacks.megatron.stack:MegatronStack",
    "replay": "attuner.stacks.replay.stack:ReplayStack",
    "slime": "attuner.stacks.composed:slime",
}
LAUNCHERS = ("ray_jobs", "kuberay", "replay")
KUBE = "kuberay"
RUNNER = Path(__file__).parent / "runner"
CLAUDE, CLAUDE_KEY = "claude", "ANTHROPIC_API_KEY"
CLAUDE_ALSO = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""How this machine reaches the network; given to the process that talks to the model."""


class SystemClock:
    """Real time."""

    def now(self) -> float:
        """Return unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Unwatched:
    """Nobody looks on."""

    def event(self, kind: str, key: str, record: Record) -> None:
        """Ignore."""

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        """Ignore."""


class KitSession:
    """The kits that one flow run keeps open: each holds a campaign's lease, a resolver process and a contact to Ray."""

    def __init__(self) -> None:
        self.kits: dict[str, Kit] = {}

    def close(self, *, leave_jobs: bool = False) -> None:
        """Close every kit and give its lease back; `leave_jobs` leaves a local Ray alone, for a resume to attach to."""
        while self.kits:
            _, kit = self.kits.popitem()
            _close(kit, leave_jobs=leave_jobs)


# Context variables, so that two flow runs in one process never share a kit or a watcher.
_session: ContextVar[KitSession | None] = ContextVar("attuner_kits", default=None)
watch_with: ContextVar[Watch | None] = ContextVar("attuner_watch", default=None)


@contextmanager
def kit_session() -> Iterator[KitSession]:
    """Keep the kits that are opened inside open until the end, so that a flow's tasks share them."""
    session = KitSession()
    token = _session.set(session)
    lost = False
    try:
        yield session
    except Transient:
        lost = True  # contact was lost, perhaps while a job runs that is being paid for
        raise
    finally:
        _session.reset(token)
        session.close(leave_jobs=lost)


def open_ledger(settings: Settings) -> DuckdbLedger:
    """Return the ledger of this machine's ATTUNER_HOME."""
    from attuner.ledgers.duckdb_file import DuckdbLedger

    settings.home.mkdir(parents=True, exist_ok=True)
    return DuckdbLedger(settings.ledger)


def stack_of(campaign: Campaign) -> Stack:
    """Return the stack's adapter. Raises UserError for an unknown name."""
    stack: Stack = _named(STACKS, campaign.stack.name, f"{campaign.source_file}: stack.name")()
    return stack


def finished_run(path: Path) -> FinishedRun:
    """Return what a run left, whoever launched it. Raises UserError when nothing readable is there."""
    from attuner.stacks.finished import read_run

    return read_run(path)


def proposer_class(name: str, where: str) -> Any:
    """Return a proposer's class by its name. Raises UserError for an unknown one."""
    return _named(PROPOSERS, name, where)


def _proposer(campaign: Campaign) -> Proposer:
    where = f"{campaign.source_file}: proposer.name"
    if campaign.proposer.name not in PROPOSERS:
        raise UserError(f"{where}: {campaign.proposer.name}: unknown; known: {', '.join(sorted(PROPOSERS))}")
    from attuner.proposers.apart import Apart

    if campaign.proposer.name == CLAUDE:
        _check_claude(campaign)
        return _claude_apart(pinned_source(campaign))
    return Apart(PROPOSERS[campaign.proposer.name])


def _claude_apart(source: str) -> Apart:
    from attuner.proposers.apart import Apart

    env = {k: os.environ[k] for k in (CLAUDE_KEY, *CLAUDE_ALSO) if os.environ.get(k)}
    readable = [x for x in source.split(os.pathsep) if x]
    return Apart(PROPOSERS[CLAUDE], network=True, env=env, readable=readable, answer_timeout_s=1800)


def adviser() -> Apart:
    """Return a model's own process, for a question outside any campaign. Raises UserError when no key is set."""
    _check_key(CLAUDE)
    return _claude_apart("")


def _check_claude(campaign: Campaign) -> None:
    from attuner.proposers.claude.arms import ARMS

    spec, where = campaign.proposer, f"{campaign.source_file}: proposer"
    if not spec.model or spec.price is None:
        raise UserError(f"{where}.model: is missing, or its price is (configs/prices/); see docs/claude.md")
    if spec.arm not in ARMS:
        raise UserError(f"{where}.arm: {spec.arm}: unknown; known: {', '.join(ARMS)}")
    if spec.max_usd <= 0:
        raise UserError(f"{where}.max_usd: say how many US dollars the campaign may spend on {spec.model}")


def _check_key(proposer: str) -> None:
    if proposer == CLAUDE and not os.environ.get(CLAUDE_KEY):
        raise UserError(f"{CLAUDE_KEY}: is not set; proposer {CLAUDE} needs a key (any text for a server of your own)")


def pinned_source(campaign: Campaign) -> str:
    """Return the folders of the framework's source, joined as in PATH; '' where a stack has none."""
    stack = campaign.stack
    if stack.name == "mcore":
        found = importlib.util.find_spec("megatron.core")
        core = list(found.submodule_search_locations or []) if found else []
        return os.pathsep.join([*core[:1], str(RUNNER)])
    return os.pathsep.join(x for x in (stack.source, stack.slime_source) if x)


def _named(table: dict[str, str], name: str, where: str) -> Any:
    if name not in table:
        raise UserError(f"{where}: {name}: unknown; known: {', '.join(sorted(table))}")
    module, _, kind = table[name].partition(":")
    return getattr(importlib.import_module(module), kind)


def check_names(campaign: Campaign) -> None:
    """Raise UserError if the campaign names a stack, launcher or proposer that does not exist or can't launch."""
    stack_of(campaign)
    _proposer(campaign)
    _launcher_name(campaign)


def _launcher_name(campaign: Campaign) -> str:
    if campaign.launcher.name not in LAUNCHERS:
        raise UserError(
            f"{campaign.source_file}: launcher.name: {campaign.launcher.name}: unknown; known: {', '.join(LAUNCHERS)}"
        )
    if campaign.launcher.name == KUBE and campaign.launcher.cluster.kube is None:
        raise UserError(f"{campaign.source_file}: launcher.cluster: kube is missing (namespace, image …); see docs/kubernetes.md")
    return campaign.launcher.name


def _launcher(campaign: Campaign, settings: Settings) -> tuple[Launcher, Clock]:
    """Return the launcher, and the clock that goes with it: a replayed table plays on a virtual one."""
    if _launcher_name(campaign) == REPLAY:
        from attuner.launchers.replay_table import EventClock, TableReplay
        from attuner.tables import load_table

        if not campaign.launcher.table:
            raise UserError(f"{campaign.source_file}: launcher.table: is missing; launcher replay plays a table")
        clock = EventClock(time.time())
        table, watched = load_table(Path(campaign.launcher.table)), campaign.early_stop.enabled
        return TableReplay(table, clock, seed=campaign.launcher.seed, watched=watched), clock
    if campaign.launcher.name == KUBE:
        from attuner.launchers.kube_jobs import KubeRay

        folder, mount = settings.folder(campaign.id), settings.storage_mount
        return KubeRay(campaign.launcher.cluster, folder, runner=RUNNER, storage_mount=mount), SystemClock()
    from attuner.launchers.ray_jobs import RayJobs

    jobs = RayJobs(
        campaign.launcher.cluster,
        settings.folder(campaign.id),
        access=settings.access(),
        runner=RUNNER,
    )
    return jobs, SystemClock()


def cluster_checks(cluster: Cluster, settings: Settings, *, launcher: str) -> list[Check]:
    """Return what a doctor of this launcher's clusters finds."""
    if launcher == KUBE:
        from attuner.launchers.kuberay.doctor import doctor as kube_doctor

        return kube_doctor(cluster, home=settings.home, runner=RUNNER)
    if launcher == REPLAY:
        return [Check(name="cluster", ok=True, detail="a replay table needs none")]
    from attuner.launchers.ray_doctor import doctor as ray_doctor

    return ray_doctor(cluster, settings.access(), home=settings.home, runner=RUNNER)


def build_kit(campaign: Campaign, settings: Settings) -> Kit:
    """Wire the adapters that a campaign names. Nothing is started yet."""
    _check_key(campaign.proposer.name)
    launcher, clock = _launcher(campaign, settings)
    return Kit(
        stack=stack_of(campaign),
        launcher=launcher,
        proposer=_proposer(campaign),
        ledger=open_ledger(settings),
        clock=clock,
        folder=settings.folder(campaign.id),
        rules_dir=settings.rules_dir(),
        watch=watch_with.get() or Unwatched(),
        lessons_dir=settings.configs_dir() / "lessons",
        prices_file=settings.configs_dir() / "device_prices.yaml",
        source=pinned_source(campaign),
        versions=_versions(campaign, settings),
    )


def _versions(campaign: Campaign, settings: Settings) -> Callable[[], dict[str, str]] | None:
    """Return what reads the software that launches run with; None where they run on a cluster elsewhere, or nowhere."""
    if campaign.launcher.name in (KUBE, REPLAY) or settings.ray_address:
        return None
    from attuner.launchers.local_look import look

    return lambda: look(settings.ray_python, RUNNER, campaign.launcher.cluster.env)


def read_campaign(file: str, settings: Settings, *, changes: Mapping[str, Value] | None = None, request: str = "") -> Campaign:
    """Read a campaign file, with what holds instead of what it says, and give the campaign its id.

    Args:
        request: id of what asks for it, e.g. a flow run: the same one gets the same id again, so that a birth that was cut off
            after its first record is gone on with, and not made twice. '' is a new campaign each time.
    """
    campaign = load_campaign(Path(file), configs=settings.configs_dir(), changes=changes)
    campaign = campaign.model_copy(update={"stack": settings.sourced(campaign.stack)})
    for number in itertools.count():
        suffix = hashlib.sha256(f"{request} {number}".encode()).hexdigest()[:4] if request else secrets.token_hex(2)
        name = f"{campaign.name}-{suffix}"
        if _ours(settings.folder(name), request):
            return campaign.model_copy(update={"id": name})
    raise AssertionError("unreachable")


BORN_BY = "born-by"
"""In a campaign's folder: whose request it is."""


def _ours(folder: Path, request: str) -> bool:
    """Tell whether a campaign's folder is free, or this very request's; takes it for the request then."""
    if not request:
        return not folder.exists()
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        try:
            return (folder / BORN_BY).read_text(encoding="utf-8") == request
        except OSError:
            return False
    (folder / BORN_BY).write_text(request, encoding="utf-8")
    return True


@contextmanager
def new_kit(campaign: Campaign) -> Iterator[Kit]:
    """Open the kit of a campaign that is about to be born; birth itself takes the lease once its checks have passed."""
    with _opened(campaign, load_settings()) as kit:
        yield kit


@contextmanager
def open_kit(campaign_id: str) -> Iterator[Kit]:
    """Open the kit of a campaign on record, or return the one that this flow run holds already.

    Raises:
        UserError: no such campaign.
        Refused: another live process holds the campaign's lease.
    """
    session = _session.get()
    if session is not None and campaign_id in session.kits:
        kit = session.kits[campaign_id]
        kit.ledger.claim(campaign_id)
        yield kit
        return
    settings = load_settings()
    ledger = open_ledger(settings)
    events = ledger.history(campaign_id)
    if not events:
        raise UserError(f"no campaign {campaign_id} in {settings.ledger}; `attuner status` lists them")
    with _opened(History(events).campaign(), settings) as kit:
        kit.ledger.claim(campaign_id)
        yield kit


@contextmanager
def _opened(campaign: Campaign, settings: Settings) -> Iterator[Kit]:
    session = _session.get()
    kit = build_kit(campaign, settings)
    if session is not None:
        session.kits[campaign.id] = kit
        yield kit
        return
    lost = False
    try:
        yield kit
    except Transient:
        lost = True
        raise
    finally:
        _close(kit, leave_jobs=lost)


def _close(kit: Kit, *, leave_jobs: bool = False) -> None:
    kit.stack.close()
    kit.proposer.close()
    if not leave_jobs:
        kit.launcher.close()
    kit.ledger.close()
