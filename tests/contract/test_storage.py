"""What both sides of a storage rely on: a folder that both see, and S3 through the real boto3 against a small server."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.s3_server import serving

from attuner.core.errors import Transient, UserError
from attuner.launchers.storage import RunStorage, open_store
from attuner.runner import files
from attuner.runner.storage import Storage, StorageError

BOTO3 = importlib.util.find_spec("boto3") is not None
KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "eu-central-1", "AWS_MAX_ATTEMPTS": "1"}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(
    params=["path", "apart", pytest.param("s3", marks=pytest.mark.skipif(not BOTO3, reason="boto3 is not installed"))]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return a storage's url and the scratch folder of its nodes ('' where they write into storage)."""
    if request.param != "s3":
        (tmp_path / "store").mkdir()
        yield {"url": str(tmp_path / "store"), "scratch": str(tmp_path / "scratch") if request.param == "apart" else ""}
        return
    with serving() as s3:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL_S3": s3.url}.items():
            monkeypatch.setenv(name, value)
        yield {"url": "s3://bucket/some/where", "scratch": str(tmp_path / "scratch")}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    found = tmp_path / "control" / "camp-1a2b"
    for name, text in {"rows/rows.bin": "0123", "rows/rows.json": "{}", "rows2/other.bin": "x"}.items():
        path = found / "inputs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return found


def control(place: dict[str, str], home: Path) -> RunStorage:
    return RunStorage(open_store(place["url"]), home, scratch=place["scratch"])


def at_the_job(storage: RunStorage, home: Path, **more: Any) -> tuple[dict[str, Any], Path, Storage]:
    """Return the job document as the job gets it, its folder there, and the job's side of the storage."""
    folder = str(home / "runs" / "l01-a1")
    job = storage.share({"rows": str(home / "inputs" / "rows"), "load": str(home / "inputs" / "checkpoint"), **more})
    run_dir = Path(storage.folder(folder))
    run_dir.mkdir(parents=True, exist_ok=True)
    return job, run_dir, Storage(job, run_dir)


def test_inputs_that_the_document_names_are_where_its_paths_say(place: dict[str, str], home: Path) -> None:
    job, _, side = at_the_job(control(place, home), home, words=f"--data {home}/inputs/rows/rows --x {home}")
    side.begin()
    assert Path(job["rows"], "rows.bin").read_text() == "0123"
    assert Path(job["rows"]) != home / "inputs" / "rows"
    assert str(home) + "/" not in json.dumps(job)
    assert not Path(job["rows"]).with_name("rows2").exists(), "an input that nobody named was brought"


def test_what_a_run_leaves_comes_back_live_and_whole_at_its_end(place: dict[str, str], home: Path) -> None:
    storage = control(place, home)
    _, run_dir, side = at_the_job(storage, home)
    folder = home / "runs" / "l01-a1"
    (run_dir / files.HEARTBEAT).write_text("1.0\n")
    (run_dir / files.TRACES).mkdir()
    (run_dir / files.TRACES / "rank0.json").write_text("{}")
    side.sync()
    storage.fetch(str(folder))
    assert (folder / files.HEARTBEAT).read_text() == "1.0\n"
    assert not (folder / files.TRACES).exists()
    (run_dir / files.HEARTBEAT).write_text("2.00\n")
    side.sync()
    side.finish()
    storage.fetch(str(folder), final=True)
    assert (folder / files.HEARTBEAT).read_text() == "2.00\n"
    assert (folder / files.TRACES / "rank0.json").read_text() == "{}"


def test_only_traces_of_ranks_that_are_kept_are_kept_and_all_logs(place: dict[str, str], home: Path) -> None:
    storage = control(place, home)
    _, run_dir, side = at_the_job(storage, home, keep_ranks=[0, 12])
    (run_dir / files.TRACES).mkdir()
    for rank in (0, 1, 2, 12):
        (run_dir / files.trace(rank)).write_text("{}")
    (run_dir / f"node1.{files.LOG}").write_text("said")
    side.finish()
    folder = home / "runs" / "l01-a1"
    storage.fetch(str(folder), final=True)
    assert sorted(p.name for p in (folder / files.TRACES).iterdir()) == ["rank0.json", "rank12.json"]
    assert (folder / f"node1.{files.LOG}").read_text() == "said"


def test_a_checkpoint_that_one_run_saved_is_there_for_the_next(place: dict[str, str], home: Path, tmp_path: Path) -> None:
    storage = control(place, home)
    job, _, side = at_the_job(storage, home, save=str(home / "inputs" / "checkpoint"))
    saved = Path(job["save"])
    (saved / "deep").mkdir(parents=True)
    (saved / "deep" / "weights").write_bytes(b"w" * 9_000_000)  # more than one part
    side.keep_saved()
    if place["scratch"]:
        import shutil

        shutil.rmtree(place["scratch"])  # the next run has fresh nodes
    job, _, side = at_the_job(control(place, home), home)
    side.begin()
    assert Path(job["load"], "deep", "weights").read_bytes() == b"w" * 9_000_000


def test_a_run_that_was_given_up_is_forbidden_to_begin(place: dict[str, str], home: Path) -> None:
    storage = control(place, home)
    _, _, side = at_the_job(storage, home)
    assert not side.cancelled()
    storage.forbid(str(home / "runs" / "l01-a1"))
    assert side.cancelled()


def test_a_name_that_leads_out_of_the_folder_is_not_fetched(home: Path, tmp_path: Path) -> None:
    class Hostile:
        kind, root = "path", "/x"

        def names(self, prefix: str) -> dict[str, tuple[str, int]]:
            return {f"{prefix}../../../../outside.json": ("t", 1), f"{prefix}ok.json": ("t", 1)}

        def download(self, name: str, path: Path) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    RunStorage(Hostile(), home).fetch(str(home / "runs" / "l01-a1"), final=True)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.rglob("*.json") if p.parent.name != "rows"] == ["ok.json"]


def test_a_path_that_this_machine_mounts_elsewhere_is_written_there_and_named_as_the_cluster_does(
    home: Path, tmp_path: Path
) -> None:
    store = open_store("/lustre/attuner", mount=str(tmp_path / "mnt"))
    storage = RunStorage(store, home)
    job = storage.share({"rows": str(home / "inputs" / "rows")})
    assert job["rows"] == "/lustre/attuner/camp-1a2b/inputs/rows"
    assert (tmp_path / "mnt" / "camp-1a2b" / "inputs" / "rows" / "rows.bin").read_text() == "0123"


@pytest.mark.parametrize("url", ["relative/path", "gs://bucket/x", "s3://"])
def test_a_place_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(UserError, match="storage"):
        open_store(url)


@pytest.mark.skipif(BOTO3, reason="boto3 is installed")
def test_s3_without_boto3_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs boto3"):
        open_store("s3://bucket/x")
    with pytest.raises(StorageError, match="no boto3"):
        Storage({"storage": {"url": "s3://bucket/x", "base": "/tmp/x", "campaign": "c"}}, tmp_path)


@pytest.mark.skipif(not BOTO3, reason="boto3 is not installed")
@pytest.mark.parametrize(
    ("trouble", "kind"), [((503, "SlowDown"), Transient), ((403, "AccessDenied"), UserError), ((404, "NoSuchBucket"), UserError)]
)
def test_trouble_of_s3_is_told_apart(monkeypatch: pytest.MonkeyPatch, trouble: tuple[int, str], kind: type[Exception]) -> None:
    with serving() as s3:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL_S3": s3.url}.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/x")
        s3.trouble = trouble
        with pytest.raises(kind, match=trouble[1]):
            store.write("a", b"b")
