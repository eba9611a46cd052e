"""Laws of notifications: what is news of a campaign, that each piece is told once, and that the way to people can't stop it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ID, LR, MICRO, UNCOVERED, Lab, MortalLedger, PowerCut, begin, campaign, finish, play, search

from attuner.core.errors import Refused, Transient, UserError
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.news import News
from attuner.core.people import Directive
from attuner.launchers.replay import Row
from attuner.notify import Webhook
from attuner.policy import budget
from attuner.policy import news as policy
from attuner.settings import load_settings
from attuner.steps.tell import hand_over, tell

FAST = Row(match={"micro_batch_size": 4}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.002)
SECRET = "/hooks/T0P-53CR37"


def told(tmp_path: Path, *script: dict[str, Any], rows: tuple[Row, ...] = (FAST,), **changes: Any) -> dict[str, News]:
    made = Lab(tmp_path, [*rows, REST])
    play(made.kit(), campaign(*script, **changes))
    return {x.kind: x for x in policy.news(made.history())}


def test_a_campaign_that_ships_is_told_from_start_to_finish(tmp_path: Path) -> None:
    found = told(tmp_path, MICRO)
    assert list(found) == ["started", "leader", "finished"]
    assert "lab on 2 × cpu, mcore 0.16.1" in found["started"].text
    assert "+100" in found["leader"].text.replace("+99.", "+100")
    assert found["finished"].text.startswith("finished: shipped l06, ")
    assert found["leader"].evidence == [f"{ID}/l06"]


def test_a_campaign_without_a_leader_refuses_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, LR)
    assert list(found) == ["started", "finished"]
    assert "the baseline is kept (no launch beat" in found["finished"].text


def test_a_leader_that_waits_for_a_person_is_told_and_so_is_the_refused_shipment(tmp_path: Path) -> None:
    found = told(tmp_path, UNCOVERED, rows=(Row(match={"bucket_size": 1000}, step_s=0.5),))
    assert list(found) == ["started", "leader", "review", "refused", "finished"]
    assert "attuner review lab-0001" in found["review"].text
    assert "bucket_size" in found["review"].text
    assert "waits for a person's review" in found["refused"].text


def test_what_is_slower_than_what_ships_asks_nobody(tmp_path: Path) -> None:
    slower = Row(match={"bucket_size": 1000, "micro_batch_size": 1}, step_s=0.8)
    found = told(tmp_path, UNCOVERED, {**MICRO, "parent": "l01"}, rows=(slower, FAST))
    assert "review" not in found
    assert found["finished"].text.startswith("finished: shipped l07")


def test_a_leader_that_the_re_measurement_does_not_confirm_is_a_refused_shipment(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, step_s=0.9), REST])
    kit = made.kit()
    begin(kit, campaign(MICRO))
    search(kit)
    made.table[0] = Row(match={"micro_batch_size": 4}, step_s=1.0)
    finish(kit)
    found = {x.kind: x for x in policy.news(made.history())}
    assert "is inside the band" in found["refused"].text
    assert len(found["refused"].evidence) == 6
    assert found["refused"].figures["band"] == pytest.approx(0.03)


@pytest.mark.parametrize(("share", "news"), [(0.79, False), (0.81, True), (1.2, True)])
def test_a_budget_is_told_once_four_fifths_are_spent(tmp_path: Path, share: float, news: bool) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    play(kit, campaign(MICRO))
    spent = budget.spent(made.history())
    kit.ledger.append(ID, "directive", "d1", Directive(act="budget", by="ada", gpu_hours=spent / share))
    found = {x.kind: x for x in policy.news(made.history())}
    assert ("budget" in found) == news
    assert not news or f"({share:.0%})" in found["budget"].text


def test_nothing_is_told_of_what_was_never_born() -> None:
    assert policy.news(History([])) == []


# ------------------------------------------------------------------------------------------------------- once, in order


def test_each_piece_is_handed_over_once_whatever_is_called_again(tmp_path: Path) -> None:
    made, heard = Lab(tmp_path, [FAST, REST]), []
    kit = made.kit()
    channels = {"chat": lambda n: heard.append(n.key)}
    begin(kit, campaign(MICRO))
    tell(kit, ID, channels)
    search(kit)
    tell(kit, ID, channels)
    tell(kit, ID, channels)
    finish(kit)
    tell(kit, ID, channels)
    assert heard == ["started", "leader l06", "finished"]


def test_a_crash_between_telling_and_its_record_tells_twice_and_never_loses(tmp_path: Path) -> None:
    made, heard = Lab(tmp_path, [FAST, REST]), []
    kit = made.kit()
    play(kit, campaign(MICRO))
    kit.ledger.close()
    news = policy.news(made.history())
    for lives in (0, 1, None):
        made.store.holders.clear()
        ledger = MortalLedger(made.store, lives=None, clock=made.clock)
        ledger.claim(ID)
        ledger.lives = lives
        try:
            hand_over(ledger, ID, news, {"chat": lambda n: heard.append(n.key)})
        except PowerCut:
            continue
    assert heard == ["started", "started", "leader l06", "leader l06", "finished"]


def test_a_channel_that_fails_is_noted_once_and_tried_again_and_the_others_go_on(tmp_path: Path) -> None:
    made, heard, fails = Lab(tmp_path, [FAST, REST]), [], [True]
    kit = made.kit()

    def chat(news: News) -> None:
        if fails[0]:
            raise Transient("webhook: 503 from the server")

    channels = {"chat": chat, "event": lambda n: heard.append(n.key)}
    begin(kit, campaign(MICRO))
    tell(kit, ID, channels)
    tell(kit, ID, channels)
    assert heard == ["started"]
    notes = made.history().all("note", Note)
    assert [n.text for n in notes if "handed over" in n.text] == [
        "news could not be handed over (webhook: 503 from the server); tried again with each step"
    ]
    fails[0] = False
    assert tell(kit, ID, channels) == ["started"]


# ---------------------------------------------------------------------------------------------------------- webhook


class Receiver(http.server.ThreadingHTTPServer):
    """A chat service: answers with the codes it is given, 200 after them, and keeps what was posted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    """One post."""

    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((self.path, body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def hook(tmp_path: Path, receiver: Receiver, **more: Any) -> Webhook:
    file = tmp_path / "hook"
    file.write_text(f"http://127.0.0.1:{receiver.server_address[1]}{SECRET}\n")
    return Webhook(file, sleep=lambda _: None, **more)


NEWS = News(campaign_id=ID, key="started", kind="started", text="started: a thing", evidence=["x"], figures={"gain": 0.5})


def test_a_post_has_text_for_chat_services_and_the_same_in_fields(tmp_path: Path, receiver: Receiver) -> None:
    hook(tmp_path, receiver).post(NEWS)
    ((path, body),) = receiver.posted
    assert path == SECRET
    assert body["text"] == f"attuner {ID}: started: a thing"
    assert (body["kind"], body["campaign_id"], body["evidence"], body["figures"]) == ("started", ID, ["x"], {"gain": 0.5})


def test_a_busy_server_is_tried_again(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    hook(tmp_path, receiver).post(NEWS)
    assert len(receiver.posted) == 3


@pytest.mark.parametrize(
    ("answers", "posts", "error"), [([404], 1, Refused), ([503, 503, 503], 3, Transient), ([302], 3, Transient)]
)
def test_a_server_that_does_not_take_it_is_an_error_without_the_address(
    tmp_path: Path, receiver: Receiver, answers: list[int], posts: int, error: type[Exception]
) -> None:
    receiver.answers = answers * (3 if answers == [302] else 1)
    with pytest.raises(error) as caught:
        hook(tmp_path, receiver).post(NEWS)
    assert SECRET not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    assert len(receiver.posted) == posts


def test_a_server_that_is_gone_is_an_error_without_the_address(tmp_path: Path, receiver: Receiver) -> None:
    made = hook(tmp_path, receiver)
    receiver.shutdown()
    receiver.server_close()
    with pytest.raises(Transient, match="no answer") as caught:
        made.post(NEWS)
    assert SECRET not in str(caught.value)


BAD_HOSTS = [
    "https://[abc/T0P-53CR37",
    "https://h:port/T0P-53CR37",
    "https://h:99999999/T0P-53CR37",
    "https://a.com\u2100x/T0P-53CR37",
]


@pytest.mark.parametrize("text", ["", "not an address", "file:///etc/passwd", "https:///p-53CR37", "http://a b", *BAD_HOSTS])
def test_a_file_without_an_address_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hook"
    file.write_text(text)
    with pytest.raises(UserError, match="holds no address") as caught:
        Webhook(file)
    assert not text or text not in str(caught.value)
    assert "53CR37" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", BAD_HOSTS)
def test_an_address_that_was_broken_later_stops_no_campaign(tmp_path: Path, receiver: Receiver, text: str) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    webhook = hook(tmp_path, receiver, tries=1)
    (tmp_path / "hook").write_text(text)
    begin(kit, campaign(MICRO))
    assert tell(kit, ID, {"webhook": webhook.post}) == []
    (note,) = [n.text for n in made.history().all("note", Note) if "handed over" in n.text]
    assert "holds no address" in note
    assert "53CR37" not in note


def test_the_address_gets_into_no_record(tmp_path: Path, receiver: Receiver) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    webhook = hook(tmp_path, receiver, tries=1)
    receiver.answers = [500]
    begin(kit, campaign(MICRO))
    tell(kit, ID, {"webhook": webhook.post})
    tell(kit, ID, {"webhook": webhook.post})
    assert [body["kind"] for _, body in receiver.posted] == ["started", "started"]
    assert all(SECRET not in row.record for row in made.store.rows)


def test_the_setting_names_a_file_that_exists(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ATTUNER_WEBHOOK_FILE"):
        load_settings({"ATTUNER_WEBHOOK_FILE": str(tmp_path / "none")})
