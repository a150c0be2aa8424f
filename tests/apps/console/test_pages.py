"""The console's pages in a browser: errors, widths, themes, keyboard, accessibility, acts."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from penstock.testing import Broker
from tests.apps.console.browsing import Window
from tests.apps.console.example import ERRORS, HOSTILE, PAGES

NARROW = 360
WIDE = 1440


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_both_widths_and_are_accessible_in_both_themes(
    shared_window: Window, name: str, axe_script: str
) -> None:
    window = shared_window
    window.errors.clear()
    window.page.context.clear_cookies()  # has the theme
    page = window.open(PAGES[name])
    if name in ERRORS:
        window.errors = [error for error in window.errors if "404 (Not Found)" not in error]
    assert window.overflow_px(NARROW) <= 0
    narrow = window.faults(axe_script)
    assert window.overflow_px(WIDE) <= 0
    page.locator("[data-theme-switch]").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert narrow + window.faults(axe_script, "color-contrast") == []
    assert window.errors == []


def test_the_theme_is_kept_in_a_cookie(window: Window) -> None:
    page = window.open("/console/topics")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("[data-theme-switch]").click()
    window.open("/console/brokers")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_the_keyboard_alone_reaches_everything(window: Window) -> None:
    page = window.open("/console")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/console/topics")
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()
    page.keyboard.type("order")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.wait_for_url("**/console/topics?q=order*")
    link = page.get_by_role("link", name="orders")
    while not link.evaluate("element => element === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/topics/orders")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("g")
    page.wait_for_url("**/console/groups")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url("**/console")


def test_the_menu_opens_on_phones(window: Window) -> None:
    page = window.page
    page.set_viewport_size({"width": NARROW, "height": 800})
    window.open("/console")
    link = page.locator("#nav").get_by_role("link", name="Topics")
    expect(link).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    link.click()
    page.wait_for_url("**/console/topics")


def test_live_figures_arrive_and_charts_are_drawn(window: Window) -> None:
    page = window.open("/console")
    expect(page.locator("[data-live-state]")).to_contain_text("Live, updated")
    expect(page.locator("[data-live=cpu]")).to_have_text(re.compile(r"\d+ %"))
    expect(page.locator(".chart canvas")).to_have_count(3)


def test_hostile_names_and_searches_are_text(window: Window) -> None:
    page = window.open("/console/groups")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    page.get_by_role("link", name="Delete").click()
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator("h1")).to_have_text(HOSTILE)
    window.open("/console/topics?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    expect(page.get_by_label("Search topics")).to_have_value('"><script>alert(1)</script>')
    assert page.locator("main script").count() == 0


def test_a_topic_is_created_configured_grown_and_deleted(window: Window, broker: Broker) -> None:
    page = window.open("/console/topics")
    page.get_by_role("link", name="Create topic").click()
    page.get_by_label("Name").fill("made.here")
    page.get_by_label("Partitions").fill("2")
    page.get_by_label("Retention").select_option("1 day")
    page.get_by_label("Further settings").fill("max.message.bytes=2000000")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("status")).to_have_text("Topic made.here was created.")
    with broker.client() as client:
        configs = {
            entry.name: entry.value for entry in client.describe_configs("topic", "made.here")
        }
    assert configs["retention.ms"] == "86400000"
    assert configs["max.message.bytes"] == "2000000"

    page.get_by_role("link", name="Settings").click()
    page.get_by_label("Search settings").fill("flush.messages")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("summary").click()
    page.get_by_label("New value of flush.messages").fill("0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("flush.messages")
    window.errors.clear()  # the browser reports the status 400
    page.get_by_label("New value of flush.messages").fill("77")
    page.get_by_role("button", name="Save").first.click()
    expect(page.get_by_role("status")).to_have_text("flush.messages is now 77.")
    page.get_by_label("Search settings").fill("flush.messages")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("summary").click()
    page.get_by_role("button", name="Reset to default").click()
    expect(page.get_by_role("status")).to_have_text("flush.messages was reset.")

    window.open("/console/topics/made.here")
    page.get_by_role("link", name="Add partitions").click()
    page.get_by_label("New number of partitions").fill("5")
    page.get_by_role("button", name="Add partitions").click()
    expect(page.get_by_role("status")).to_have_text("Topic made.here has 5 partitions.")

    page.get_by_role("link", name="Delete").click()
    page.get_by_label("to confirm").fill("made.elsewhere")
    page.get_by_role("button", name="Delete topic").click()
    expect(page.get_by_role("alert")).to_contain_text("type 'made.here' to confirm")
    window.errors.clear()
    page.get_by_label("to confirm").fill("made.here")
    page.get_by_role("button", name="Delete topic").click()
    expect(page.get_by_role("status")).to_have_text("Topic made.here was deleted.")
    with broker.client() as client:
        assert "made.here" not in {topic.name for topic in client.list_topics()}


def test_a_groups_offsets_are_reset_after_a_preview_and_the_group_is_deleted(
    window: Window, broker: Broker
) -> None:
    places = {("orders", partition): 10 + partition for partition in range(6)}
    with broker.client() as client:
        client.commit_offsets("to be reset", places)
    page = window.open("/console/groups?q=reset")
    page.get_by_role("link", name="to be reset").click()
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("New position").select_option("An offset")
    page.get_by_label("Offset", exact=True).fill("12")
    page.get_by_role("button", name="Preview").click()
    rows = page.get_by_role("region", name="What changes").locator("tbody tr")
    expect(rows).to_have_count(5)  # partition 2 is there already
    expect(rows.first).to_contain_text("2 offsets skipped")
    expect(rows.last).to_contain_text("3 offsets read again")
    with broker.client() as client:
        committed = client.committed("to be reset")
    assert {place: found.offset for place, found in committed.items()} == places
    page.get_by_label("to confirm").fill("to be reset")
    page.get_by_role("button", name="Reset offsets").click()
    expect(page.get_by_role("status")).to_have_text("Group to be reset: 5 offsets reset.")
    with broker.client() as client:
        committed = client.committed("to be reset")
    assert {found.offset for found in committed.values()} == {12}

    page.get_by_role("link", name="Delete").click()
    page.get_by_label("to confirm").fill("to be reset")
    page.get_by_role("button", name="Delete group").click()
    expect(page.get_by_role("status")).to_have_text("Group to be reset was deleted.")
    with broker.client() as client:
        assert "to be reset" not in {group.group_id for group in client.list_groups()}


def test_pages_work_without_scripts(browser: Browser, url: str) -> None:
    context = browser.new_context(
        java_script_enabled=False, viewport={"width": NARROW, "height": 800}
    )
    page = context.new_page()
    page.goto(f"{url}/console/topics")
    page.get_by_label("Search topics").fill("orders")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("#nav").get_by_role("link", name="Groups").click()
    expect(page.locator("h1")).to_have_text("Groups")
    context.close()


def test_a_topic_moves_to_the_object_store_and_a_broker_is_drained(
    window: Window, broker: Broker
) -> None:
    with broker.client() as client:
        client.create_topic("to-store", 1)
        client.write_arrow("to-store", pa.table({"value": [b"kept"] * 7}))
    page = window.open("/console/topics/to-store")
    page.get_by_role("link", name="Switch storage").click()
    page.get_by_label("to confirm").fill("to-store")
    page.get_by_role("button", name="Switch storage").click()
    expect(page.locator(".figure", has_text="Storage").first).to_contain_text("diskless")
    with broker.client() as client:
        assert client.read_arrow("to-store")["value"].to_pylist() == [b"kept"] * 7
        client.delete_topic("to-store")

    window.open("/console/brokers/1")
    page.get_by_role("link", name="Drain").click()
    expect(page.locator("tbody tr").first).to_contain_text("Not possible")
    page.get_by_label("to confirm").fill("1")
    page.get_by_role("button", name="Drain broker").click()
    expect(page.get_by_role("status")).to_contain_text("Broker 1: 0 replicas ordered")
    page.get_by_role("link", name="Undo drain").click()
    page.get_by_role("button", name="Undo drain").click()
    expect(page.get_by_role("status")).to_have_text("Broker 1 may get new replicas.")
    with broker.client() as client:
        assert client.excluded_brokers() == frozenset()


def test_the_lag_of_a_group_over_time_is_drawn_and_listed(window: Window, broker: Broker) -> None:
    with broker.client() as client:
        end = client.list_offsets("payments")[0]
        for committed in (5, 30):
            client.commit_offsets("slow reader", {("payments", 0): committed})
    page = window.open("/console/groups/slow%20reader")
    expect(page.locator(".plot canvas")).to_have_count(1)
    page.locator("summary", has_text="Commits of the partitions").click()
    lags = page.get_by_role("region", name="Lag over time").locator("td[data-label=Lag]")
    expect(lags).to_have_count(3)
    before, after, now = map(int, lags.all_inner_texts())
    assert (before - after, now) == (25, after)
    assert now in (end - 30, end - 31), "the record of an open transaction may be left out"
    with broker.client() as client:
        client.delete_group("slow reader")
