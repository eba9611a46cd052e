"""Laws of the board's site: foreign text is never markup, nothing comes from outside, every figure is the board's own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_report_campaign import CAMPAIGN_ID, campaign_events
from test_report_pages import EVIL, Page, hostile_events

from attuner.cli.main import main
from attuner.core.base import Record
from attuner.core.campaign import Campaign, Cluster
from attuner.core.events import Event, History
from attuner.core.recipe import EffectiveConfig, differences
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.report import board, board_diff, board_table
from attuner.report.board_rows import BoardEntry, entries, entry, slug
from attuner.report.board_script import SCRIPT
from attuner.report.board_site import SQL, site
from attuner.report.efficiency import mfu, usd_per_million
from attuner.report.site_files import LIST, write_site
from attuner.report.spend import DevicePrice
from attuner.report.words import value

PRICES = {"cpu": DevicePrice(usd_per_hour=2.0, source="a <price> list")}
DAY = 86400.0


class SitePage(Page):
    """A page with form controls in it; keeps each row's cells as text."""

    void = frozenset({"meta", "br", "wbr", "input"})

    def __init__(self, source: str) -> None:
        self.rows: list[list[str]] = []
        super().__init__(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def body_rows(self) -> list[list[str]]:
        return [row for row in self.rows if len(row) == len(board_table.COLUMNS) + 1][1:]


def renamed(events: list[Event], name: str, *, later: float = 0.0) -> list[Event]:
    return [e.model_copy(update={"campaign_id": name, "at": e.at + later}) for e in events]


def with_final(events: list[Event], **more: Any) -> list[Event]:
    """Give every resolved configuration more arguments."""
    return [
        e.model_copy(update={"record": {**e.record, "arguments": {**e.record["arguments"], **more}}})
        if e.kind == "effective"
        else e
        for e in events
    ]


def updated(events: list[Event], kinds: tuple[str, ...], **more: Any) -> list[Event]:
    return [e.model_copy(update={"record": {**e.record, **more}}) if e.kind in kinds else e for e in events]


def several() -> list[list[Event]]:
    """A shipped campaign, one that searches, one that kept its baseline, one that has only begun."""
    whole = campaign_events()
    kept = updated(whole, ("remeasurement", "shipment"), kept_baseline=True, reason="the gain did not repeat")
    return [
        renamed(whole[:2], "begun-0001", later=-9 * DAY),
        renamed(whole, "older-0001", later=-DAY),
        renamed(with_final(whole[:60], overlap_p2p_comm=True), "running-0001", later=2 * DAY),
        renamed(kept, "kept-0001", later=-5 * DAY),
        whole,
    ]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return site(several(), PRICES)


# --- what a page may hold ---


def test_every_page_is_whole_and_asks_for_nothing_from_outside(files: dict[str, str]) -> None:
    for path, source in files.items():
        if not path.endswith(".html"):
            continue
        page = SitePage(source)
        assert not any(k.startswith("on") or k == "style" for k, _ in page.attributes)
        assert not {k for k, _ in page.attributes} & {"src", "srcset", "action", "formaction", "xlink:href", "poster", "data"}
        assert not page.tags & {"link", "img", "iframe", "object", "embed", "base"}
        assert "://" not in source
        assert not re.search(
            r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(|innerHTML|insertAdjacent|document\.write|eval\(", source
        )


def test_every_link_leads_to_a_file_of_the_site(files: dict[str, str]) -> None:
    for path, source in files.items():
        if path.endswith(".html"):
            for link in {v for k, v in SitePage(source).attributes if k == "href" and v}:
                target, _, anchor = link.partition("#")
                resolved = str(Path("/", path).parent.joinpath(target).resolve().relative_to("/")) if target else path
                assert resolved in files, f"{path} links to {link}"
                assert not anchor or anchor.startswith("compare=") or f'id="{anchor}"' in files[resolved]


def test_the_content_policy_names_the_only_script_and_the_only_style(files: dict[str, str]) -> None:
    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    source = files["index.html"]
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)[0]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert re.findall(r"<script>(.*?)</script>", source, re.DOTALL) == [SCRIPT]
    assert digest(SCRIPT) in policy
    assert [digest(css) in policy for css in re.findall(r"<style>(.*?)</style>", source, re.DOTALL)] == [True]
    assert "<script" not in files[f"recipes/{CAMPAIGN_ID}.html"]


def test_foreign_text_never_becomes_markup() -> None:
    clean, hostile = site([campaign_events()], PRICES), site([hostile_events()], PRICES)
    assert len(clean) == len(hostile) == 4
    for kind in ("index.html", "recipes/", "reports/"):
        one, other = (
            next(SitePage(t) for p, t in f.items() if p.startswith(kind) and p.endswith(".html")) for f in (clean, hostile)
        )
        assert other.tags <= one.tags
        assert {k for k, _ in other.attributes} <= {k for k, _ in one.attributes}
        assert "<script>alert(1)</script>" in other.words  # shown as text
        assert "\u202e" not in other.words
        assert "\x00" not in other.words


def test_embedded_data_cannot_end_its_element() -> None:
    found = entries([hostile_events(), renamed(with_final(campaign_events(), evil="</script><!--<script>"), "b")], PRICES)
    text = board_diff.embedded(board_diff.data(found))
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert json.loads(text) == board_diff.data(found)
    assert "</script><!--<script>" in json.dumps(json.loads(text))


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/abs", "..", ".", "", "a/b", "A", "c_x", "index.html", "x" * 300, "a\\b", "a\0b", "\ud800", EVIL],
)
def test_a_hostile_campaign_name_can_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    assert re.fullmatch(r"c_[0-9a-f]{24}", slug(name))
    folder = tmp_path / "a" / "site"
    write_site(folder, site([renamed(campaign_events(), name)], PRICES))
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {f"a/site/{p}" for p in ("index.html", LIST, *(f"{a}{slug(name)}{b}" for a, b in PARTS))}


PARTS = (("recipes/", ".html"), ("recipes/", ".recipe.yaml"), ("reports/", ".html"))


def test_no_two_campaigns_share_a_file() -> None:
    names = ["a", "A", "a.", "a/", "../a", "c_a", slug("A"), slug(slug("A"))]
    assert len({slug(n) for n in names}) == len(names)
    assert slug("quickstart-7f3a") == "quickstart-7f3a"


# --- what the table says ---


def test_without_script_the_table_is_sorted_by_what_moved_last(files: dict[str, str]) -> None:
    page = SitePage(files["index.html"])
    names = [row[1] for row in page.body_rows()]
    assert [n.split("… ")[0].split("✓ ")[0].split("= ")[0] for n in names] == [r["campaign"] for r in board.rows(several())]
    assert ("aria-sort", "descending") in page.attributes
    assert sum(k == "aria-sort" for k, _ in page.attributes) == 1
    assert names[0].startswith("running-0001")


def test_every_figure_is_the_boards_own(files: dict[str, str]) -> None:
    lines = dict(zip([r["campaign"] for r in board.rows(several())], SitePage(files["index.html"]).body_rows(), strict=True))
    cells = {c.key: n + 1 for n, c in enumerate(board_table.COLUMNS)}

    def told(name: str, key: str) -> str:
        return " ".join(lines[name][cells[key]].split())

    assert told(CAMPAIGN_ID, "speed") == "1,158 → 3,870"
    assert told(CAMPAIGN_ID, "gain") == "+234% ±3.6%"
    assert told(CAMPAIGN_ID, "cost").startswith("33.36 device-minutes")
    assert told(CAMPAIGN_ID, "usd") == f"{'0.480'} → {'0.144'}"
    assert "remeasured" not in told(CAMPAIGN_ID, "gain")
    assert "not remeasured" in told("running-0001", "gain")
    assert told("kept-0001", "speed") == "1,158"
    assert told("kept-0001", "gain").startswith("–")
    assert told("begun-0001", "speed") == "–"
    assert told("begun-0001", "usd") == "–"
    assert "no recipe yet" in told("running-0001", "files")


def test_what_a_row_sorts_by_is_what_it_says() -> None:
    for e in entries(several(), PRICES):
        shown = {c.key: c.show(e) for c in board_table.COLUMNS}
        row = e.row
        after = row["after_tokens_per_s_per_gpu"] or row["before_tokens_per_s_per_gpu"]
        assert shown["speed"].key == ("" if after is None else after)
        assert shown["gain"].key == ("" if row["gain"] is None else row["gain"])
        assert shown["cost"].key == row["gpu_hours"]
        assert shown["moved"].key == row["updated_at"]


def test_looks_that_were_not_taken_are_said_and_reviews_are_counted() -> None:
    said = SitePage(f"<p>{board_table.evidence(entry(campaign_events(), {})).html}</p>").words
    for words in ("◆ final values: review", "✓ forward", "update: not taken", "◆ 1 for a person"):
        assert words in said


def test_a_recipe_found_on_paper_never_looks_like_one_that_ships() -> None:
    paper = updated(campaign_events(), ("shipment",), on_paper="replayed from x.csv: nothing was trained")
    whole = json.loads(json.dumps(paper[0].record))
    whole["stack"]["name"] = whole["baseline"]["stack"] = "replay"
    files = site([[paper[0].model_copy(update={"record": whole}), *paper[1:]]], {})
    names = [p for p in files if p.endswith(".yaml")]
    assert names == [f"recipes/{CAMPAIGN_ID}.not-shippable.recipe.yaml"]
    assert files[names[0]].startswith("# NOT SHIPPABLE: ")
    assert "Not to be used" in SitePage(files[f"recipes/{CAMPAIGN_ID}.html"]).words
    assert "not shippable" in SitePage(files["index.html"]).words


def test_a_recipe_file_reads_back_as_the_recipe(files: dict[str, str]) -> None:
    yaml = pytest.importorskip("yaml")
    shipped = entry(campaign_events(), {})
    text = files[shipped.recipe_file]
    assert yaml.safe_load(text) == shipped.facts.recipe.data()
    assert text.startswith(f"# shipped: attuner campaign {CAMPAIGN_ID}, recipe {shipped.facts.recipe_digest[:12]}\n")
    assert not [p for p in files if p.startswith("recipes/running") and p.endswith(".yaml")]


def test_an_empty_ledger_says_so() -> None:
    files = site([], {})
    assert list(files) == ["index.html"]
    assert "No campaign in this ledger yet" in SitePage(files["index.html"]).words


def test_the_same_ledger_gives_the_same_bytes(files: dict[str, str]) -> None:
    assert site(several(), PRICES) == files


# --- efficiency ---


def moe(**cluster: Any) -> Campaign:
    campaign = History(campaign_events()).campaign()
    figures = {"peak_tflops": 2.0, "peak_fp32_tflops": 1.0, "mem_gb_s": 1.0, "intra_gb_s": 1.0}
    told = {
        "name": "lab",
        "devices": 2,
        "devices_per_node": 2,
        "figures": {n: {"value": v, "source": "t"} for n, v in figures.items()},
    }
    launcher = campaign.launcher.model_copy(update={"cluster": Cluster.model_validate({**told, **cluster})})
    return campaign.model_copy(update={"launcher": launcher})


def test_mfu_is_the_models_operations_over_the_peak_of_its_precision() -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 256, "vocab_size": 1000}
    final = EffectiveConfig(arguments=shape, env={}, facts={}, versions={})
    # 6 × (vocab·h + layers × (4·h² + 2·h·ffn)), and 6 × layers × rows' 256 tokens × 2·h for scores and values, halved: causal
    flops = 6 * (1000 * 64 + 2 * (4 * 64 * 64 + 2 * 64 * 256)) + 6 * 2 * 256 * 2 * 64 / 2
    assert mfu(moe(), final, 1e5) == pytest.approx(flops * 1e5 / 1e12)
    assert mfu(moe(figures={}), final, 1e5) is None
    assert mfu(moe(), EffectiveConfig(arguments={}, env={}, facts={}), 1e5) is None
    assert mfu(moe(), final, None) is None


def test_dollars_per_million_tokens() -> None:
    assert usd_per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert usd_per_million(None, 1000.0) is None
    assert usd_per_million(3.6, 0.0) is None


# --- two recipes side by side ---


def pairs() -> list[BoardEntry]:
    odd = with_final(campaign_events(), lr=1, flag=None, text="</script>", sequence_parallel=0)  # 0 is not False
    return entries([*several(), renamed(odd, "odd-0001", later=-3 * DAY)], PRICES)


def test_a_comparison_is_the_gates_own_and_the_same_from_both_sides() -> None:
    found = pairs()
    told = board_diff.data(found)
    for i, a in enumerate(found):
        for j, b in enumerate(found):
            old, new = (EffectiveConfig(arguments=dict(x.final), env={}, facts={}) for x in (a, b))
            want = {c.key: (c.key in a.final, c.key in b.final) for c in differences(old, new)}
            rows = [(name, at[i], at[j]) for name, _, at in told["varying"] if at[i] != at[j]]
            assert {name: (x >= 0, y >= 0) for name, x, y in rows} == want
            texts = {name: values for name, values, _ in told["varying"]}
            assert all(x < 0 or texts[name][x] == value(a.final[name]) for name, x, _ in rows)
            assert told["same"] <= len(a.final.keys() & b.final.keys())


def test_the_script_compares_and_sorts_as_told() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: the page's script runs in a browser only")
    data = board_diff.data(pairs())
    count = range(len(data["recipes"]))
    pairs_asked = ",".join(f"[{i},{j}]" for i in count for j in count)
    sorts = {"s": ('"", "10", "9", "-1"', "true, false"), "r": ('"", "10", "9", "-1"', "true, true")}
    sorts["t"] = ('"b", "", "a10", "a9"', "false, false")
    ask = f"[{pairs_asked}].map(([i, j]) => [differing(D, i, j), equal(D, i, j)])"
    ask = f"JSON.stringify({{d: {ask}"
    for name, (values, how) in sorts.items():
        ask += f", {name}: [{values}].sort((a, b) => order(a, b, {how}))"
    ask += "})"
    text = f"{SCRIPT}\nconst D = {board_diff.embedded(data)};\nconsole.log({ask});"
    run = subprocess.run([node, "-"], input=text, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(run.stdout)
    assert said["s"] == ["-1", "9", "10", ""]
    assert said["r"] == ["10", "9", "-1", ""]
    assert said["t"] == ["a9", "a10", "b", ""]
    found = pairs()
    answers = iter(said["d"])
    tables = {(i, j): next(answers) for i in count for j in count}
    for (i, j), (rows, same) in tables.items():
        assert [[name, b, a] for name, a, b in tables[j, i][0]] == rows
        assert same + len(rows) == len(found[i].final.keys() | found[j].final.keys())
        assert (rows == []) == (i == j or dict(found[i].final) == dict(found[j].final))


# --- the command ---


class Raw(Record):
    """A record that goes into the ledger as it is."""

    model_config = {"extra": "allow"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_the_command_writes_the_site_of_the_ledger(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", "--html", "site"]) == 0
    assert "No campaign in this ledger yet" in Path("site/index.html").read_text()
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        ledger.claim(CAMPAIGN_ID)
        with ledger.batch():
            for e in campaign_events():
                ledger.append(CAMPAIGN_ID, e.kind, e.key, Raw.model_validate(e.record))
    capsys.readouterr()
    assert main(["board", "--html", "site", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["campaigns"] == 1
    assert "+234%" in Path("site/index.html").read_text()
    assert main(["board", "--html", "site"]) == 0
    assert "1 campaign, nothing changed" in capsys.readouterr().out
    assert main(["board", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert main(["ledger", "export", "snapshot.duckdb"]) == 0
    told = asked(Path("snapshot.duckdb"))
    assert told[:4] == (CAMPAIGN_ID, row["gain"], False, pytest.approx(row["gpu_hours"]))
    assert [float(x) for x in told[4:]] == [1158.0, 3870.0, 0.036]


def asked(file: Path) -> tuple[Any, ...]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(file), read_only=True) as db:
        return tuple(db.execute(SQL).fetchall()[0])


def test_prices_without_a_site_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", "--prices", "x.yaml"]) == 2
    assert "--html" in capsys.readouterr().err
