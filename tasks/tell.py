"""Tells people what is new in a campaign: a Prefect event each (with an artifact for an alert), and a post to the webhook.

Called inside tasks, after what may have made news; nothing that goes wrong on the way to people stops a campaign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import PrefectHTTPStatusError
from prefect.types._datetime import now

from attuner.core.errors import Refused, Transient
from attuner.core.judgement import Note
from attuner.core.news import News
from attuner.notify import TRIES, Webhook
from attuner.report import news_text
from attuner.settings import load_settings
from attuner.steps import tell as step
from attuner.steps.common import past
from attuner.wiring import open_kit

RESOURCE = "attuner.campaign"


def tell(campaign_id: str) -> list[str]:
    """Hand over what is new in a campaign; return what was."""
    with open_kit(campaign_id) as kit:
        failed = past(kit, campaign_id).find("note", "told webhook", Note) is not None
        return step.tell(kit, campaign_id, channels(tries=1 if failed else TRIES))


def channels(*, tries: int = TRIES) -> Mapping[str, step.Channel]:
    """Return the ways to people that this machine has; a webhook that failed before is tried once a step."""
    found: dict[str, step.Channel] = {"event": event}
    file = load_settings().webhook_file
    if file:
        found["webhook"] = lambda news: Webhook(Path(file), tries=tries).post(news)
    return found


def event(news: News) -> None:
    """Send news as a Prefect event, and show an alert as an artifact.

    Posted, not queued: once this returns, the server has it.

    Raises:
        Transient: it hasn't.
        Refused: it won't take this piece, however often it is asked.
    """
    resource = Resource({"prefect.resource.id": f"{RESOURCE}.{news.campaign_id}", "prefect.resource.name": news.campaign_id})
    sent = Event(occurred=now("UTC"), event=f"attuner.{news.kind}", resource=resource, payload=news.data())
    try:
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[sent.model_dump(mode="json")])
        if news.kind.startswith("alert."):
            artifact(news)
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        if httpx.codes.is_client_error(status) and status not in (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS):
            raise Refused(f"Prefect: {status}") from None
        raise Transient(f"Prefect: {status}") from None
    except httpx.HTTPError as error:
        raise Transient(f"Prefect: {type(error).__name__}") from None


def artifact(news: News) -> None:
    """Show an alert with its evidence in the Prefect UI."""
    key = re.sub(r"[^a-z0-9-]+", "-", f"{news.campaign_id}-{news.key}".lower()).strip("-")
    create_markdown_artifact(key=key, markdown=news_text.render(news), description=news.kind.replace(".", ": "))
