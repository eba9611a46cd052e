"""Laws of what was left untold: a night hands it over, in order, and neither a dead process nor one bad piece loses an alert."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import ID, MICRO, Lab, begin, campaign, play
from test_news import FAST, REST, Receiver, hook, receiver
from test_watch import Upgraded, cut_off, finished, kit_of, look

from attuner.core.errors import Refused, Transient
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.news import Alert, News, Told
from attuner.ledgers.memory import MemoryLedger
from attuner.steps.tell import catch_up, tell, until_down
from attuner.steps.watch import WATCH, alarm, alarm_look, alarm_unborn, records

__all__ = ["receiver"]


class Chat:
    """A way to people: down at first; what it refuses for good is given."""

    def __init__(self, *, down: bool = False, refuses: str = "") -> None:
        self.down, self.refuses = down, refuses
        self.heard: list[str] = []
        self.asked = 0

    def __call__(self, news: News) -> None:
        self.asked += 1
        if self.down:
            raise Transient("webhook: 503 from the server")
        if news.kind == self.refuses:
            raise Refused("webhook: 400 from the server")
        self.heard.append(news.key)


def told(made: Lab, record_id: str = ID) -> list[Told]:
    return History(MemoryLedger(made.store).history(record_id)).all("told", Told)


def test_an_alert_of_the_watch_that_nobody_took_is_told_by_a_later_night(tmp_path: Path) -> None:
    made, chat = finished(tmp_path), Chat(down=True)
    made.stack = Upgraded(made.replay, "0.17.0", broken="tp must be 4 now")
    found = look(made, tmp_path, megatron_core="0.17.0")
    alarm_unborn(MemoryLedger(made.store), found, found.why, {"webhook": chat})
    assert look(made, tmp_path, megatron_core="0.17.0").act == "wait"
    chat.down = False
    assert len(catch_up(MemoryLedger(made.store), WATCH, {"webhook": chat})) == 1
    rows = len(made.store.rows)
    assert catch_up(MemoryLedger(made.store), WATCH, {"webhook": chat}) == []
    assert len(made.store.rows) == rows
    assert len(chat.heard) == 1


def test_an_alert_that_was_recorded_before_the_process_died_is_told(tmp_path: Path) -> None:
    made, chat = cut_off(tmp_path), Chat()
    kit = kit_of(made)
    alarm(kit, ID, "the machine is on fire")
    kit.ledger.close()  # the process dies before it tells
    assert look(made, tmp_path).act == "wait"
    made.store.holders.clear()
    assert catch_up(MemoryLedger(made.store), ID, {"webhook": chat}) == ["alert campaign_failed"]
    assert chat.heard == ["alert campaign_failed"]


def test_what_a_campaign_could_not_tell_at_its_end_is_told_by_the_next_night(tmp_path: Path) -> None:
    made, chat = Lab(tmp_path, [FAST, REST]), Chat()
    kit = made.kit()
    begin(kit, campaign(MICRO))
    tell(kit, ID, {"webhook": chat})
    play(kit, campaign(MICRO))
    chat.down = True
    tell(kit, ID, {"webhook": chat})
    kit.ledger.close()
    chat.down = False
    assert records(MemoryLedger(made.store), "lab") == [ID]
    assert catch_up(MemoryLedger(made.store), ID, {"webhook": chat}) == ["leader l06", "finished"]


def test_an_alert_that_was_due_and_never_recorded_is_recorded_and_told(tmp_path: Path) -> None:
    found = look(finished(tmp_path), tmp_path, torch="2.14.0")
    made, chat = Lab(tmp_path / "new", [REST]), Chat()
    kit = made.kit()
    play(kit, campaign().model_copy(update={"retunes": found.retunes}))
    kit.ledger.close()
    assert catch_up(MemoryLedger(made.store), ID, {"webhook": chat}) == ["alert slowdown:shipped"]
    assert [a.key for a in made.history().all("alert", Alert)] == ["slowdown:shipped"]


def test_a_channel_that_was_set_up_later_is_told_no_old_stories(tmp_path: Path) -> None:
    made, event, chat = Lab(tmp_path, [FAST, REST]), Chat(), Chat()
    kit = made.kit()
    play(kit, campaign(MICRO))
    kit.ledger.close()
    both = {"event": event, "webhook": chat}
    assert catch_up(MemoryLedger(made.store), ID, both) == []  # a campaign that a person ran by hand
    kit = made.kit()
    tell(kit, ID, {"event": event})
    kit.ledger.close()
    assert catch_up(MemoryLedger(made.store), ID, both) == []
    assert chat.heard == []


def test_a_campaign_that_another_process_runs_tells_by_itself(tmp_path: Path) -> None:
    made = cut_off(tmp_path)
    kit = kit_of(made)
    alarm(kit, ID, "the machine is on fire")
    with pytest.raises(Refused):
        catch_up(MemoryLedger(made.store), ID, {"webhook": Chat()})


def test_a_piece_that_is_always_refused_holds_up_no_other_and_is_noted_once(tmp_path: Path) -> None:
    made, chat = Lab(tmp_path, [FAST, REST]), Chat(refuses="leader")
    kit = made.kit()
    play(kit, campaign(MICRO))
    for _ in range(3):
        tell(kit, ID, {"webhook": chat})
    assert chat.heard == ["started", "finished"]
    assert chat.asked == 3
    assert [t.undeliverable for t in told(made) if t.key == "leader l06"] == ["webhook: 400 from the server"]


def test_an_address_that_refuses_everything_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    webhook = hook(tmp_path, receiver, tries=1)
    receiver.answers = [404] * 6
    play(kit, campaign(MICRO))
    tell(kit, ID, {"webhook": webhook.post})
    tell(kit, ID, {"webhook": webhook.post})
    assert told(made) == []
    assert [n.text for n in made.history().all("note", Note) if "404" in n.text] == [
        "news could not be handed over (webhook: 404 from the server); tried again with each step"
    ]
    assert tell(kit, ID, {"webhook": webhook.post}) == ["started", "leader l06", "finished"]


def test_a_channel_that_is_down_is_waited_for_once(tmp_path: Path) -> None:
    made, chat = cut_off(tmp_path), Chat(down=True)
    kit = kit_of(made)
    alarm(kit, ID, "the machine is on fire")
    kit.ledger.close()
    ways = until_down({"webhook": chat})
    for _ in range(3):
        assert catch_up(MemoryLedger(made.store), ID, ways) == []
    assert chat.asked == 1


def test_a_recipe_that_cannot_be_looked_at_is_told_once_for_each_error(tmp_path: Path) -> None:
    made, chat = finished(tmp_path), Chat()
    for text in ("torn.yaml: baseline: is missing", "torn.yaml: baseline: is missing", "disk is full"):
        assert alarm_look(MemoryLedger(made.store), "lab", text, {"webhook": chat}).kind == "look_fails"
    assert len(chat.heard) == 2
    assert look(made, tmp_path).act == "nothing"  # it stands in the way of no later night


def test_no_secret_gets_into_an_alert(tmp_path: Path) -> None:
    made = finished(tmp_path)
    found = look(made, tmp_path, torch="2.14.0")
    text = "can't fetch with HF_TOKEN=hf_abcdefghijklmnopqrstuv"
    alarm_unborn(MemoryLedger(made.store), found, text, {})
    alarm_look(MemoryLedger(made.store), "lab", text, {})
    kit = kit_of(made)
    alarm(kit, ID, text)
    kit.ledger.close()
    made.stack = Upgraded(made.replay, "0.16.1", broken=text)
    assert "can't fetch with HF_TOKEN=(secret)" in look(made, tmp_path).why  # which the night's table and log show
    assert all("hf_abc" not in row.record for row in made.store.rows)
    assert sum("can't fetch" in row.record for row in made.store.rows) == 3
