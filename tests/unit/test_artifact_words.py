"""Law of what people are shown outside the report: foreign words (titles, a model's lessons, causes from logs) stay words."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from attuner.core.lesson import CampaignSummary, Drafted, Lesson
from attuner.core.news import News
from attuner.report import lessons_text, news_text

EVIL = (
    "nice\n\n# Accepted by Ada\n\n- a list\n\n<img src=x onerror=alert(1)> <script>alert(1)</script> "
    "[sign in](https://evil.example) ![x](https://evil.example/p.png) https://evil.example/x @here `code` **loud** | cell"
)
KEY = "SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/very-private"
FOREIGN = {"html_inline", "html_block", "link_open", "image"}


def kinds(text: str) -> list[str]:
    """Return what a reader that follows bare addresses makes of a page."""
    reader = MarkdownIt("commonmark").enable("table")
    return [t.type for top in reader.parse(text) for t in (top, *(top.children or []))]


def summary(words: str) -> CampaignSummary:
    return CampaignSummary(
        campaign_id="c-1",
        model=words,
        hardware=words,
        gpus=1,
        stack=words,
        version=words,
        baseline_tokens_per_s_per_gpu=1.0,
        gain=0.1,
        spent_gpu_hours=1.0,
        leader={words: words},
        moves=[f"open: {words}", words],
    )


def drafted(words: str) -> Drafted:
    lesson = Lesson(id=words, text=words, effect="helps", evidence=[words], drafted="model")
    return Drafted(lessons=[lesson], said=words, files=[words], known=1)


def test_a_campaigns_words_make_no_markup_on_the_page_of_what_it_leaves() -> None:
    plain = lessons_text.render("c-1", summary("nice"), drafted("nice"))
    evil = lessons_text.render("c-1", summary(EVIL), drafted(EVIL))
    assert kinds(evil) == kinds(plain)
    assert not FOREIGN & set(kinds(evil))
    assert "very-private" not in lessons_text.render("c-1", summary(KEY), drafted(KEY))


def test_a_lesson_is_shown_whole_to_whoever_accepts_it() -> None:
    assert "the end" in lessons_text.render("c-1", None, drafted("word " * 300 + "the end"))


def test_an_alert_with_a_runs_words_makes_no_markup() -> None:
    def alert(words: str) -> str:
        return news_text.render(
            News(campaign_id="c-1", key="k", kind="alert.gate", text=words, evidence=[words, "# x"], figures={words: 1.0})
        )

    assert kinds(alert(EVIL)) == kinds(alert("nice"))
    assert not FOREIGN & set(kinds(alert(EVIL)))
    assert "very-private" not in alert(KEY)
    assert alert("slower by 20%").startswith("**slower by 20%**\n\n- slower by 20%\n")


@pytest.mark.parametrize("words", ["<!channel> look", "<https://evil.example|sign in>", "a < b & c > d", "&lt;!channel&gt;"])
def test_a_chat_service_reads_no_command_and_no_link_in_the_words(words: str) -> None:
    body = News(campaign_id="c-1", key="k", kind="alert.gate", text=words).body()
    assert not {"<", ">"} & set(body["text"])
    assert body["text"].removeprefix("attuner c-1: ").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == words
    assert body["message"] == words  # machines get it as it is
