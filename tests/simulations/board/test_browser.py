"""The board in a browser: each page is drawn, and a run that goes on grows before one's eyes."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from federation.addresses import Address
from server.record import RunRecord
from simulations.board.app import board
from simulations.board.serving import server_of
from simulations.board.shelf import Shelf
from tests.network.support import free_port
from tests.support import small

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = 30_000  # milliseconds that a page may take on a busy machine

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@contextmanager
def served(folder, live=None):
    """Serves the board of a folder; yields its address."""
    at = Address("127.0.0.1", free_port())
    server = server_of(board(Shelf(folder), live).server, at, None, None)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"http://{at}"
    finally:
        server.stop()
        thread.join(10)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser):
    """A page on which nothing may go wrong, and that loads nothing from elsewhere."""
    found, wrong = browser.new_page(viewport={"width": 1300, "height": 900}), []
    found.set_default_timeout(LONG)
    expect.set_options(timeout=LONG)
    found.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda asked: None if local(asked.url) else wrong.append(asked.url))
    yield found
    found.close()
    assert wrong == []


def local(address):
    return address.startswith(("http://127.0.0.1:", "data:", "blob:"))


@pytest.mark.parametrize(
    ("address", "drawn"),
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
def test_each_page_is_drawn(folder, page, address, drawn):
    with served(folder) as board:
        page.goto(board + address)
        for one in drawn:
            expect(page.locator(one).first).to_be_attached()
        expect(page.locator(".modebar-btn[data-title^=Share]")).to_have_count(0)


def test_one_walks_from_the_list_to_a_client_and_compares_chosen_runs(folder, page):
    with served(folder) as board:
        page.goto(board)
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


def test_what_is_not_there_is_said(folder, page):
    with served(folder) as board:
        page.goto(f"{board}/run?name=gone")
        expect(page.locator("main")).to_contain_text("there is no gone in")


def test_a_curve_grows_while_its_run_goes_on(tmp_path, page):
    command = [
        sys.executable,
        "-m",
        "simulations",
        "run",
        "fedavg",
        "--out",
        str(tmp_path / "live"),
    ]
    sets = ["num-rounds=100000", "eval-every=5", "num-clients=4", "clients-per-round=2", "hidden=4"]
    sets = [word for one in sets for word in ("--set", one)]
    run = subprocess.Popen(
        [*command, *sets],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
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
        run.kill()
        run.wait()


def test_many_runs_and_ten_thousand_clients(folder, tmp_path, page):
    source = folder / "both"
    runs = sorted(source.glob("*-seed*"))
    for number in range(300):
        (tmp_path / f"run{number:04}").mkdir()
        for name in ("config.json", "metrics.jsonl", "results.json"):
            (tmp_path / f"run{number:04}" / name).symlink_to(runs[number % len(runs)] / name)
    clients, rng = 10_000, np.random.default_rng(0)
    record = RunRecord.create(
        tmp_path / "large", small(num_clients=clients), engine="vectorized", training="a"
    )
    (first, *_, last) = RunRecord.open(runs[0]).rows()
    record.append(first)
    record.append(last)
    scores = {f"accuracy{which}": rng.random(clients).tolist() for which in ("-served", "-before")}
    told = {"ids": list(range(clients)), **scores, "queries": [9] * clients}
    record.finish({"method": "local-moml", "accuracy": 0.5, "rounds": 1, "clients": told})
    with served(tmp_path) as board:
        page.goto(board)
        expect(page.locator("main")).to_contain_text("301 runs")
        expect(page.locator("#grid-runs .ag-row").first).to_be_visible()
        page.goto(f"{board}/run?name=large")
        expect(page.locator("main")).to_contain_text("10000 clients")
        expect(page.locator("#figure-clients .gl-canvas").first).to_be_attached()
