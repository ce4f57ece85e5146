"""The live page of the cities in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from headrace.clients.topic_feed import FeedStatus
from headrace.patterns.rides.board import CityBoard, RideMetrics, SurgeReading
from headrace.patterns.rides.page import CityPage
from headrace.serve.app import create_app
from headrace.serve.live import StreamIntervals
from served_page import serve_in_background

pytestmark = pytest.mark.console

FIVE = timedelta(minutes=5)
QUICK = StreamIntervals(coalesce=0.02, retry=0.1)
PHONE = ViewportSize(width=390, height=844)
DESKTOP = ViewportSize(width=1440, height=900)
QUIET_CHROMIUM = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def this_window() -> datetime:
    now = datetime.now(UTC)
    return now.replace(minute=now.minute - now.minute % 5, second=0, microsecond=0)


@dataclass
class Scene:
    """A board and the server that shows it."""

    board: CityBoard = field(default_factory=CityBoard)
    start: datetime = field(default_factory=this_window)
    feed: FeedStatus = field(default_factory=lambda: FeedStatus("live"))

    def publish(
        self, city: str, count: int, *, window: int = 0, multiplier: float = 1.0, at: datetime | None = None
    ) -> None:
        start = self.start + window * FIVE
        published = at or datetime.now(UTC)
        metrics = RideMetrics(
            city=city,
            window_start=start,
            window_end=start + FIVE,
            ride_count=count,
            completed_rides=count // 2,
            avg_fare=12.5,
            active_drivers=37,
            completion_rate=0.5,
        )
        surge = SurgeReading(
            city=city,
            window_start=start,
            window_end=start + FIVE,
            total_requests=count,
            active_rides=count // 2,
            available_drivers=9,
            surge_multiplier=multiplier,
        )
        self.board.apply([(metrics, published), (surge, published)])

    def fill(self) -> None:
        """Publish an hour of four cities, one of them with a name that is hard to fit."""
        for window in range(-12, 1):
            self.publish("Lisbon", 120 + window, window=window, multiplier=1.5)
            self.publish("Paris", 310 + window, window=window, multiplier=2.0)
            self.publish("Porto", 80 + window, window=window)
            self.publish("Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch", 9, window=window)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if os.environ.get("HEADRACE_NO_BROWSER") == "1":
        pytest.skip("HEADRACE_NO_BROWSER=1")
    chromium = os.environ.get("HEADRACE_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.fail(
            "No browser: install the package `chromium` (apt install chromium), name one in "
            "HEADRACE_CHROMIUM, or leave these tests out with HEADRACE_NO_BROWSER=1."
        )
    # Five seconds otherwise, which a busy machine takes to paint a page. What is there sooner is not waited for.
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET_CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def url(scene: Scene) -> Iterator[str]:
    app = create_app(CityPage(scene.board), feed_status=lambda: scene.feed, pace=QUICK)
    with serve_in_background(app) as address:
        yield address


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce", color_scheme="light")
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must neither complain nor leave this machine."""
    page = context.new_page()
    complaints: list[str] = []
    foreign: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: foreign.append(r.url) if urlsplit(r.url).hostname not in ("127.0.0.1", None) else None)
    yield page
    # A server that a test stops on purpose is reported by the browser itself.
    assert [text for text in complaints if "ERR_CONNECTION" not in text and "ERR_INCOMPLETE" not in text] == []
    assert foreign == []


def card_names(page: Page) -> list[str]:
    return page.locator(".card-open").all_text_contents()


def overflow(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


def test_before_the_first_row_the_page_shows_what_to_do(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.get_by_role("heading", name="Waiting for the first window…")).to_be_visible()
    expect(page.get_by_text("headrace demo rides")).to_be_visible()
    expect(page.locator("#link-text")).to_have_text("Waiting")
    expect(page.locator("#totals")).to_be_hidden()


def test_cards_appear_with_the_first_rows(page: Page, url: str, scene: Scene) -> None:
    page.goto(url)
    expect(page.locator("#empty")).to_be_visible()
    scene.publish("Lisbon", 120, multiplier=1.5)
    card = page.locator(".card")
    expect(card).to_have_count(1)
    expect(card.locator(".card-rides")).to_have_text("120")
    expect(card).to_contain_text("12.50")
    expect(card).to_contain_text("50%")
    expect(card.locator(".badge")).to_have_text("1.5\u00d7 Surge")
    expect(page.locator("#empty")).to_be_hidden()
    expect(page.locator("#link-text")).to_have_text("Live")


def test_numbers_change_live_without_a_reload(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    page.evaluate("window.notReloaded = true")
    paris = page.locator(".card[data-city=Paris] .card-rides")
    expect(paris).to_have_text("310")
    scene.publish("Paris", 1234, multiplier=1.0)
    expect(paris).to_have_text("1,234")
    expect(page.locator(".card[data-city=Paris] .badge")).to_have_text("1.0\u00d7 Calm")
    expect(page.locator("#total-rides")).to_have_text("1,443")  # 1234 + 120 + 80 + 9
    expect(page.locator("#total-surging")).to_have_text("1")
    assert page.evaluate("window.notReloaded") is True


def test_a_new_window_leaves_slower_cities_marked_as_behind(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    scene.publish("Paris", 4, window=1)
    expect(page.locator(".card[data-city=Lisbon] .card-when")).to_contain_text("behind")
    expect(page.locator(".card[data-city=Paris] .card-when")).not_to_contain_text("behind")
    expect(page.locator("#total-rides-sub")).to_have_text("1 of 4 cities reporting")


def test_every_card_draws_its_recent_windows(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    expect(page.locator(".card")).to_have_count(4)
    expect(page.locator(".card .spark .line.rides").first).to_be_attached()
    assert page.locator(".card .spark-dot").count() == 4


def test_the_sort_order_is_stored(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    scene.publish("Braga", 5, multiplier=2.0)
    page.goto(url)
    expect(page.locator(".card")).to_have_count(5)
    assert card_names(page)[0] == "Paris"
    page.get_by_label("Name", exact=True).check()
    expect(page.locator(".card-open").first).to_have_text("Braga")
    page.get_by_label("Surge", exact=True).check()
    expect(page.locator(".card-open").nth(1)).to_have_text("Braga")
    page.reload()
    expect(page.get_by_label("Surge", exact=True)).to_be_checked()
    expect(page.locator(".card-open").nth(1)).to_have_text("Braga")


def test_the_focus_stays_on_a_card_that_moves(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    porto = page.get_by_role("button", name="Porto")
    porto.focus()
    scene.publish("Porto", 9999)
    expect(page.locator(".card-open").first).to_have_text("Porto")
    expect(porto).to_be_focused()


def test_the_keyboard_opens_and_closes_the_history_of_a_city(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    lisbon = page.get_by_role("button", name="Lisbon")
    lisbon.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Lisbon")
    expect(dialog).to_be_visible()
    expect(dialog.locator("tbody tr")).to_have_count(13)
    expect(dialog.get_by_role("img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(lisbon).to_be_focused()


def test_an_open_history_follows_the_stream(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(url)
    page.get_by_role("button", name="Lisbon").click()
    rows = page.locator("#detail-rows tr")
    expect(rows).to_have_count(13)
    scene.publish("Lisbon", 777)
    expect(rows.first).to_contain_text("777")
    scene.publish("Lisbon", 3, window=1)
    expect(rows).to_have_count(14)
    scene.publish("Lisbon", 4321, window=-5)
    expect(rows.nth(6)).to_contain_text("4,321")


def test_a_lost_connection_is_shown_and_restored(page: Page, scene: Scene) -> None:
    scene.fill()
    with serve_in_background(create_app(CityPage(scene.board), pace=QUICK)) as url:
        page.goto(url)
        expect(page.locator("#link-text")).to_have_text("Live")
    expect(page.locator("#link-text")).to_have_text("Reconnecting…")
    expect(page.locator("#notice")).to_contain_text("last numbers received")
    expect(page.locator(".card")).to_have_count(4)
    scene.publish("Lisbon", 555)
    with serve_in_background(create_app(CityPage(scene.board), pace=QUICK), port=urlsplit(url).port or 0) as again:
        assert again == url
        expect(page.locator("#link-text")).to_have_text("Live")
        expect(page.locator(".card[data-city=Lisbon] .card-rides")).to_have_text("555")
        expect(page.locator("#notice")).to_be_hidden()
        page.close()


def test_an_unreachable_broker_is_not_shown_as_live(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    scene.feed = FeedStatus("unreachable", last_error="_TRANSPORT")
    page.goto(url)
    expect(page.locator("#link-text")).to_have_text("Broker unreachable")
    expect(page.locator("#notice")).to_contain_text("cannot reach the Kafka broker")


def test_old_rows_are_called_stale(page: Page, url: str, scene: Scene) -> None:
    # The page rounds: it says so for a minute from now on.
    scene.publish("Lisbon", 5, window=-3, at=datetime.now(UTC) - timedelta(minutes=11, seconds=31))
    page.goto(url)
    expect(page.locator("#link-text")).to_have_text("Stale")
    expect(page.locator("#notice")).to_contain_text("No new rows for 12 minutes")


@pytest.mark.parametrize("size", [PHONE, DESKTOP, ViewportSize(width=768, height=1024)])
def test_nothing_sticks_out_of_the_page(page: Page, url: str, scene: Scene, size: ViewportSize) -> None:
    scene.fill()
    page.set_viewport_size(size)
    page.goto(url)
    expect(page.locator(".card")).to_have_count(4)
    assert overflow(page) == 0
    page.get_by_role("button", name="Llanfair").click()
    expect(page.locator("#detail-rows tr")).to_have_count(13)
    assert overflow(page) == 0
    box = page.locator("#detail").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]


def test_the_theme_follows_the_system_by_default(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    background = "getComputedStyle(document.body).backgroundColor"
    page.goto(url)
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.get_by_role("button", name="Switch to light theme").click()
    assert page.evaluate(background) == light
    page.reload()
    assert page.evaluate(background) == light
    expect(page.get_by_role("button", name="Switch to dark theme")).to_be_visible()


# Relative luminance and contrast as WCAG 2 defines them, over what the browser really painted.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => { for (; node; node = node.parentElement) {
    const colour = rgb(getComputedStyle(node).backgroundColor); if (colour[3] === 255) return colour; } };
  const poor = [];
  let read = 0;
  const where = ".card *, .title *, .tools *, .link-state, footer *, dialog[open] *";
  for (const node of document.querySelectorAll(where)) {
    const speaks = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!speaks || node.checkVisibility?.() === false) continue;
    read += 1;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${node.className || node.tagName}: ${node.textContent} ${ratio.toFixed(2)}`);
  }
  return read > 30 ? poor : [`only ${read} texts were found`];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(page: Page, url: str, scene: Scene, scheme: str) -> None:
    scene.fill()
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    page.goto(url)
    expect(page.locator(".card")).to_have_count(4)
    assert page.evaluate(CONTRAST) == []
    page.get_by_role("button", name="Paris").click()
    expect(page.locator("#detail-rows tr")).to_have_count(13)
    assert page.evaluate(CONTRAST) == []


def test_the_reference_lists_every_call_and_tries_it(page: Page, url: str, scene: Scene) -> None:
    scene.fill()
    page.goto(f"{url}api/v1/docs")
    expect(page.locator("article")).to_have_count(4)
    call = page.locator("article", has_text="/api/v1/cities/{city}/history")
    call.get_by_label("city").fill("Lisbon")
    call.get_by_label("limit").fill("1")
    call.get_by_role("button", name="Send").click()
    expect(call.locator("pre")).to_contain_text('"city": "Lisbon"')
