"""The console, in a headless Chromium, through a job's life against a real cluster."""

import json
import os
import re
import sys
import urllib.error
import urllib.request

from browser import Browser
from harness import MODELS, Cluster, give_directories, run_tests, sluice, wait_for, write_lines

MODEL = os.path.join(MODELS, "llama-kjv")
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>'
# Where the pictures go, to be looked at by people.
PICTURES = os.environ.get("SLUICE_PICTURES")


def console_of(cluster):
    return cluster.metrics_url.removesuffix("/metrics") + "/console/"


def request_lines(count):
    """Requests that take long enough to be paused, among them some that are none, with names that are HTML."""
    lines = [json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": "In the beginning", "max_tokens": 400, "ignore_eos": True}})
             for i in range(count)]
    lines[0] = json.dumps({"custom_id": EVIL, "method": "POST", "url": "/v1/completions",
                           "body": {"prompt": "x", EVIL: 1}})
    for i in range(1, 25):
        lines[i] = '{"prompt":'
    return lines


def ask(url, path, method="GET", body=None, token=None, **headers):
    """(status, answer) of a request as another program than a browser sends it."""
    request = urllib.request.Request(url + path, None if body is None else body.encode(), method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def no_sideways_scrolling(browser):
    widths = browser.run("return [document.documentElement.scrollWidth, window.innerWidth,"
                         "...[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && "
                         "!e.closest('.only-read') && e.getBoundingClientRect().right > window.innerWidth + 1)"
                         ".map(e => e.outerHTML.slice(0, 200))]")
    assert widths[0] <= widths[1] and len(widths) == 2, widths


def all_is_right(browser, origin):
    """No error was logged, and nothing was asked of anybody but the coordinator."""
    logged = browser.console()
    assert logged == [], logged
    asked = [url for url in browser.requests() if not url.startswith(("chrome://", "data:"))]
    assert asked and all(url.startswith(origin) for url in asked), asked
    assert browser.run("return window.pwned ?? null") is None


def picture(browser, name):
    if PICTURES:
        browser.picture(os.path.join(PICTURES, f"{name}.png"), whole=True)


def press_until(browser, focused, keys=60):
    """Presses Tab until what has this name has the focus."""
    for _ in range(keys):
        browser.press("Tab")
        if browser.focused() == focused:
            return
    raise AssertionError(f"Tab never comes to {focused!r}")


def background(browser):
    return browser.run("return getComputedStyle(document.body).backgroundColor")


def test_a_jobs_life_in_the_console(directory):
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, request_lines(600))
    with Cluster(MODEL, workers=2) as cluster, Browser() as browser:
        origin = console_of(cluster)
        browser.colors("light")
        browser.open(origin)
        browser.wait_text("#jobs", "No jobs yet")
        browser.wait_text("#cluster", "worker-0")
        light = background(browser)

        def of_job(field):
            return json.loads(ask(origin, f"api/jobs/{job}")[1])["job"][field]

        # Watched.
        job = cluster.submit(path, "--name", EVIL)["id"]
        browser.wait(".jobs tbody tr")
        assert browser.text(".jobs a.name") == EVIL, browser.text(".jobs")
        browser.wait_text(".jobs", "running")
        browser.wait_text("#cluster", "Layers 0–2, stage 1")
        browser.wait_text("#cluster", "Layers 3–5, stage 2")
        wait_for(lambda: browser.run(
            "return Number(document.querySelector('.jobs [role=progressbar]').getAttribute('aria-valuenow'))") > 0,
            "progress to be seen")
        wait_for(lambda: not browser.text(".tile").startswith("Generated\n0"), "tokens a second to be seen")
        picture(browser, "light")

        # Paused, by the keyboard alone.
        press_until(browser, f"Pause {EVIL}")
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        browser.press("Enter")
        browser.wait("#dialog")
        assert browser.focused() == "Go back"
        browser.press("Escape")
        wait_for(lambda: not browser.find("#dialog"), "the dialog to close")
        assert browser.focused() == f"Pause {EVIL}"
        assert not of_job("paused")
        browser.press("Enter")
        browser.wait("#dialog")
        browser.press("Tab", "Enter")
        browser.wait_text(".jobs", "paused")
        wait_for(lambda: of_job("paused"), "the job to be paused")

        # Resumed and moved in priority, from its own page.
        browser.click(".jobs a.name")
        browser.wait("#job button[aria-label^='Resume']")
        assert browser.text("#job h1") == EVIL
        browser.click("#job button[aria-label^='Resume']")
        browser.click("#dialog-yes")
        wait_for(lambda: not of_job("paused"), "the job to be resumed")
        browser.click("#job button[aria-label^='Priority']")
        browser.run("arguments[0].value = '7'", browser.wait("#priority-input"))
        browser.click("#dialog-yes")
        wait_for(lambda: of_job("priority") == 7, "the job's priority")
        browser.wait_text("#job .events", "priority 7 instead of 0")
        browser.wait_text("#job .events", "resumed")
        wait_for(lambda: browser.run("return [...document.querySelectorAll('.timeline rect')].map("
                                     "r => r.getAttribute('class'))").count("lane-paused") > 0, "the pause in the picture")

        # The requests that failed, a page at a time.
        browser.wait_text("#job .errors", EVIL)
        rows = "return document.querySelectorAll('.errors tbody tr').length"
        assert browser.run(rows) == 20
        browser.click("#job .pager button:last-child")
        wait_for(lambda: browser.run(rows) == 5, "the second page of failed requests")

        # Dark, and as narrow as a telephone.
        browser.colors("dark")
        assert background(browser) != light
        picture(browser, "job-dark")
        browser.click("#theme")  # from the system's to light
        assert background(browser) == light
        browser.click("#theme")
        assert background(browser) != light
        browser.resize(375, 800)
        no_sideways_scrolling(browser)
        picture(browser, "job-375")
        browser.click("#home")
        browser.wait(".jobs tbody tr")
        no_sideways_scrolling(browser)
        picture(browser, "dark-375")

        # Cancelled.
        browser.click(".jobs button[aria-label^='Cancel']")
        browser.wait_text("#dialog", "can't be undone")
        no_sideways_scrolling(browser)
        picture(browser, "dialog-375")
        browser.click("#dialog-yes")
        cluster.wait_for_end(job)
        browser.wait_text(".jobs", "cancelled")
        all_is_right(browser, origin)

        # What a page of another site could have a browser send.
        cancel = f"api/jobs/{job}/cancel"
        for headers, code in (({"Content_Type": "text/plain"}, 400),
                              ({"Content_Type": "application/json", "Origin": "http://elsewhere.example"}, 403),
                              ({"Content_Type": "application/json", "Sec_Fetch_Site": "cross-site"}, 403),
                              ({"Content_Type": "application/json", "Host": "elsewhere.example"}, 403),
                              ({"Content_Type": "application/json"}, 200)):
            assert ask(origin, cancel, "POST", "{}", **headers)[0] == code, headers
        assert ask(origin, "api/cluster", Host="elsewhere.example")[0] == 403
        assert ask(origin, "api/jobs/job_99")[0] == 404


def test_tokens_say_what_is_seen_and_done(directory):
    secret = os.path.join(directory, "cluster-token")
    with open(secret, "w") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    tokens = os.path.join(directory, "tokens.json")

    def token(name, tenant, scopes):
        return sluice("token", "create", "--file", tokens, "--name", name, "--tenant", tenant,
                      "--scopes", scopes).stdout.strip()
    user, reader, other = token("user", "lab", "read,submit"), token("reader", "lab", "read"), token("other", "shop", "read")
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, request_lines(200))
    audit = os.path.join(directory, "audit.jsonl")
    with Cluster(MODEL, workers=1, worker_flags=["--cluster-token-file", secret],
                 coordinator_flags=["--cluster-token-file", secret, "--tokens", tokens, "--audit-log", audit]) as cluster:
        os.environ["SLUICE_TOKEN"] = user
        try:
            job = cluster.submit(path, "--name", "Proverbs")["id"]
        finally:
            del os.environ["SLUICE_TOKEN"]
        origin = console_of(cluster)
        with Browser() as browser:
            browser.open(origin)
            browser.wait_text("#signin", "enter a token")
            assert job not in browser.text("body") and "worker" not in browser.text("body")
            browser.type("#signin-token", "sluice_wrong")
            browser.press("Enter")
            browser.wait_text("#signin", "not known")

            browser.type("#signin-token", reader)
            browser.press("Enter")
            browser.wait_text(".jobs", "Proverbs")
            browser.wait_text("#who", "reader (read)")
            assert browser.run("return [...document.querySelectorAll('.jobs button')].every(b => b.disabled)")
            assert browser.run("return [localStorage, document.cookie].every(s => !JSON.stringify(s).includes("
                               "arguments[0]))", reader)
            browser.click("#forget")
            browser.wait_text("#signin", "enter a token")
            assert "Proverbs" not in browser.text("body")

            browser.type("#signin-token", other)
            browser.press("Enter")
            browser.wait_text("#jobs", "No jobs yet")
            all_is_right(browser, origin)

        like_the_page = {"Content_Type": "application/json"}
        assert ask(origin, "api/jobs")[0] == 401
        assert ask(origin, f"api/jobs/{job}/cancel", "POST", "{}", reader, **like_the_page)[0] == 403
        for hidden in (f"api/jobs/{job}", f"api/jobs/{job}/timeline", f"api/jobs/{job}/errors"):
            assert ask(origin, hidden, token=other)[0] == 404
            assert ask(origin, hidden, token=reader)[0] == 200
        code, answer = ask(origin, f"api/jobs/{job}/pause", "POST", "{}", user, **like_the_page)
        assert code == 200 and json.loads(answer)["job"]["paused"], answer
        assert ask(origin, f"api/jobs/{job}/cancel", "POST", "{}", user, **like_the_page)[0] == 200
    with open(audit) as file:
        entries = [json.loads(line) for line in file]
    done = {(e["who"], e["what"], e["outcome"] == "allowed") for e in entries}
    assert ("user", f"POST /console/api/jobs/{job}/pause", True) in done, done
    assert ("reader", f"POST /console/api/jobs/{job}/cancel", False) in done, done
    assert not any(re.search(reader, json.dumps(e)) for e in entries)


give_directories(globals())

if __name__ == "__main__":
    run_tests(sys.modules[__name__])
