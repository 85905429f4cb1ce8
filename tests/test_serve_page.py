"""The page of `hip serve` in a real browser, with the real model: a sample is brought, asked, and a citation leads to its page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hipcli import config

SAMPLE = Path(__file__).resolve().parent.parent / "samples/lighthouse.pdf"
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
FACT = "3 March 1874"

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver on this machine")


@pytest.fixture(scope="module")
def served(serve, real_model):
    return serve(SAMPLE, "--max-tokens", "24", HIP_DATA_DIR=str(config.data_dir()), HIP_OFFLINE="1", HIP_MODEL="")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update"
    profile = tmp_path_factory.mktemp("profile")
    for switch in (*switches.split(), "disable-sync", "window-size=1280,900", f"user-data-dir={profile}"):
        options.add_argument(f"--{switch}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def until(browser, what, seconds: float = 120):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(lambda _: what())


def shown(browser, selector: str) -> str:
    found = browser.find_elements("css selector", selector)
    return found[0].text if found and found[0].is_displayed() else ""


def press(browser, *keys: str) -> None:
    """Keys go to whatever has the focus."""
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def focused(browser):
    return browser.switch_to.active_element


def tab_to(browser, wanted: str) -> None:
    """Press Tab until the element has the focus, as someone without a mouse does."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(40):
        if browser.execute_script("return document.activeElement.matches(arguments[0])", wanted):
            return
        press(browser, Keys.TAB)
    raise AssertionError(f"Tab never reaches {wanted}")


def test_a_sample_is_brought_asked_and_its_page_found(served, browser):
    browser.get(served.url)
    until(browser, lambda: shown(browser, "#place"))
    find(browser, "#file").send_keys(str(SAMPLE))
    until(browser, lambda: "is ready: 15 pages" in shown(browser, "#status"))
    # beside the one that the server was started with
    assert len(browser.find_elements("css selector", "#documents option")) == 2 and find(browser, "#remove").is_displayed()
    find(browser, "#question").send_keys("When was the lamp first lit?")
    find(browser, "#send").click()
    # the answer is seen before it is whole
    until(browser, lambda: shown(browser, ".answer.busy"))
    until(browser, lambda: browser.find_elements("css selector", ".cited button"))
    assert FACT in shown(browser, ".answer")
    buttons = browser.find_elements("css selector", ".cited button")
    wanted = next(button for button in buttons if "History" in button.text)
    wanted.click()
    until(browser, lambda: shown(browser, "#place") == 'p. 7 (printed "4"), History')
    assert FACT in shown(browser, "#text mark") and focused(browser).get_attribute("id") == "place"
    bars = browser.find_elements("css selector", "#map span")
    assert len(bars) == 15 and "cited" in bars[6].get_attribute("class") and "here" in bars[6].get_attribute("class")
    heights = [bar.find_element("css selector", "i").size["height"] for bar in bars]
    assert max(heights) > 3 * min(heights)


def test_by_keyboard_alone(served, browser):
    from selenium.webdriver.common.keys import Keys

    browser.get(served.url)
    until(browser, lambda: shown(browser, "#place"))
    tab_to(browser, "#question")
    press(browser, "Who was the first head keeper?", Keys.ENTER)
    until(browser, lambda: browser.find_elements("css selector", ".cited button"))
    until(browser, lambda: focused(browser).get_attribute("id") == "question")
    tab_to(browser, ".cited button")
    place = focused(browser).text.splitlines()[0]
    press(browser, Keys.ENTER)
    until(browser, lambda: shown(browser, "#place") == place and shown(browser, "#text mark"))
    tab_to(browser, "#map")
    press(browser, Keys.HOME)
    until(browser, lambda: shown(browser, "#place").startswith("p. 1 "))
    press(browser, Keys.ARROW_RIGHT)
    until(browser, lambda: shown(browser, "#place").startswith("p. 2 "))
    assert find(browser, "#map").get_attribute("aria-valuenow") == "2"


def test_on_a_phone_nothing_is_cut_off(served, browser):
    from selenium.webdriver.common.by import By

    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})
    try:
        browser.get(served.url)
        until(browser, lambda: shown(browser, "#place"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        for element in browser.find_elements(By.CSS_SELECTOR, "button, select, textarea, #map"):
            if element.is_displayed():
                assert 0 <= element.rect["x"] and element.rect["x"] + element.rect["width"] <= 360
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_error_and_no_other_host(served, browser):
    """Over whatever was done above, and one more visit."""
    browser.get(served.url)
    until(browser, lambda: shown(browser, "#place"))
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {message["params"]["request"]["url"] for message in sent if message["method"] == "Network.requestWillBeSent"}
    fetched = [url for url in urls if url.startswith(("http", "ws"))]
    assert fetched and all(url.startswith(f"{served.url}/") for url in fetched), fetched
