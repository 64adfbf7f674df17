"""The board in a browser: each page is drawn, and a run that goes on grows before one's eyes."""

import shutil
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from engram.link.addresses import Address
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.simulations.engine import simulate
from engram.studio import app
from engram.studio.app import board
from engram.studio.run_index import RunIndex
from engram.studio.serving import server_of
from tests.link.wire.processes import free_port
from tests.support import small

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = 30_000  # milliseconds that a page may take on a busy machine

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@contextmanager
def served(folder, live=None):
    """Serves the board of a folder; yields its address."""
    at = Address("127.0.0.1", free_port())
    server = server_of(board(RunIndex(folder), live).server, at, None, None)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"http://{at}"
    finally:
        server.stop()
        thread.join(10)


@pytest.fixture(scope="module")
def tab():
    """A tab of a browser, which keeps the scripts that it has compiled."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 1300, "height": 900})
        found.set_default_timeout(LONG)
        expect.set_options(timeout=LONG)
        yield found
        browser.close()


@pytest.fixture(scope="module")
def address(folder):
    """The address of the folder's board."""
    with served(folder) as found:
        yield found


@pytest.fixture
def page(tab):
    """A page on which nothing may go wrong, and that loads nothing from elsewhere."""
    wrong = []
    told_of = {
        "console": lambda told: wrong.append(told.text) if told.type == "error" else None,
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda asked: None if local(asked.url) else wrong.append(asked.url),
    }
    for event, listener in told_of.items():
        tab.on(event, listener)
    yield tab
    tab.goto("about:blank")
    for event, listener in told_of.items():
        tab.remove_listener(event, listener)
    assert wrong == []


def local(address):
    return address.startswith(("http://127.0.0.1:", "data:", "blob:", "about:"))


@pytest.mark.parametrize(
    ("path", "drawn"),
    [
        ("/", ["#grid-runs .ag-row", "#grid-groups .ag-row"]),
        ("/run?name=alone", ["#figure-curve .trace", "#grid-clients .ag-row", "#figure-clients"]),
        ("/run?name=tables", ["main table"]),
        ("/compare?name=both", ["#figure-compared-0 .trace", "main table", "#grid-clients"]),
        ("/client?name=both%2Fditto-seed0&client=0", ["#figure-history .trace"]),
        ("/data?name=alone", ["#figure-holdings .heatmaplayer", "#grid-holdings .ag-row"]),
        ("/search?name=search", ["#figure-trials .parcoords", "#grid-trials .ag-row"]),
    ],
)
def test_each_page_is_drawn(address, page, path, drawn):
    page.goto(address + path)
    for one in drawn:
        expect(page.locator(one).first).to_be_attached()
    expect(page.locator(".modebar-btn[data-title^=Share]")).to_have_count(0)


def test_one_walks_from_the_list_to_a_client_and_compares_chosen_runs(address, page):
    page.goto(address)
    page.get_by_role("link", name="alone", exact=True).click()
    expect(page.locator("h1")).to_have_text("alone")
    page.get_by_role("link", name="client 2", exact=True).click()
    expect(page.locator("h1")).to_have_text("client 2 of alone")
    page.get_by_role("link", name="Runs").click()
    boxes = page.locator("#grid-runs .ag-center-cols-container input[type=checkbox]")
    boxes = boxes if boxes.count() else page.locator("#grid-runs .ag-row input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    link = page.get_by_role("link", name="Compare the selected runs")
    expect(link).not_to_have_class("off")
    link.click()
    expect(page.locator("h1")).to_have_text("2 runs")


def test_a_page_that_takes_time_says_so_until_it_is_there(folder, page, monkeypatch):
    done, calls = threading.Event(), []
    drawn = app.comparing

    def slow(*asked):
        calls.append(asked)
        done.wait(60)
        return drawn(*asked)

    monkeypatch.setattr(app, "comparing", slow)
    try:
        with served(folder) as address:
            page.goto(f"{address}/compare?name=both")
            expect(page.locator("main")).to_have_text("This page is being computed …")
            page.wait_for_timeout(2 * app._TICK)
            assert len(calls) == 1
            done.set()
            expect(page.locator("h1")).to_have_text("both")
            done.clear()
            page.goto(address)
            page.get_by_role("link", name="both", exact=True).click()
            expect(page.locator("main")).to_have_text("This page is being computed …")
            done.set()
            expect(page.locator("h1")).to_have_text("both")
            page.goto("about:blank")
    finally:
        done.set()


def test_what_is_not_there_is_said(address, page):
    page.goto(f"{address}/run?name=gone")
    expect(page.locator("main")).to_contain_text("there is no gone in")


class Enough(Exception):
    """The test has seen what it wanted to see."""


def test_a_curve_grows_while_its_run_goes_on(tmp_path, page):
    seen = threading.Event()

    def on_round(row):
        time.sleep(0.02)
        if seen.is_set():
            raise Enough

    def run():
        sizes = {"num_clients": 4, "clients_per_round": 2, "hidden": "4"}
        e = small(num_rounds=100_000, eval_every=5, **sizes)
        with suppress(Enough):
            simulate(e, tmp_path / "live", on_round=on_round)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with served(tmp_path) as board:
            page.goto(board)
            page.get_by_role("link", name="live", exact=True).click()
            points = "document.querySelector('#figure-curve .js-plotly-plot').data[0].x.length"
            page.wait_for_function(
                f"() => document.querySelector('#figure-curve .trace') && {points} > 1"
            )
            first = page.evaluate(f"() => {points}")
            page.wait_for_function(f"() => {points} > {first}")
            expect(page.locator("#progress")).to_contain_text("rounds are done")
    finally:
        seen.set()
        thread.join(60)
    assert not thread.is_alive()


def test_many_runs_and_ten_thousand_clients(folder, tmp_path, page):
    source = folder / "both"
    runs = sorted(source.glob("*-seed*"))
    for number in range(300):
        (tmp_path / f"run{number:04}").mkdir()
        for name in ("config.json", "metrics.jsonl", "results.json"):
            (tmp_path / f"run{number:04}" / name).symlink_to(runs[number % len(runs)] / name)
    clients, rng = 10_000, np.random.default_rng(0)
    record = RunWriter.create(
        tmp_path / "large", small(num_clients=clients), engine="vectorized", training="a"
    )
    (first, *_, last) = Run.open(runs[0]).rows()
    record.append(first)
    record.append(last)
    scores = {
        f"accuracy{which}": rng.random(clients).tolist() for which in ("", "-common", "-tuned")
    }
    told = {"ids": list(range(clients)), **scores, "queries": [9] * clients}
    record.finish({"method": "local-moml", "accuracy": 0.5, "rounds": 1, "clients": told})
    with served(tmp_path) as board:
        page.goto(board)
        expect(page.locator("main")).to_contain_text("301 runs")
        expect(page.locator("#grid-runs .ag-row").first).to_be_visible()
        page.goto(f"{board}/run?name=large")
        expect(page.locator("main")).to_contain_text("10000 clients")
        expect(page.locator("#figure-clients .gl-canvas").first).to_be_attached()
