"""Look at the site that tools/docs has built as a reader does, in headless Chromium.

    check.py SITE [CHROMIUM]

Each check prints a line, after what is wrong if it has failed.  The last line is "N passed, M
failed".  Links to other hosts are not followed.
"""
import functools
import http.server
import pathlib
import sys
import threading
import urllib.parse

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
NAME, ENTRY = "le_campaign", "doc/reference.html#le_campaign"

READ = """() => ({
    ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    links: [...document.querySelectorAll('a[href]')].map(e => e.href),
    broken: [...document.images].filter(e => !e.complete || e.naturalWidth === 0).map(e => e.src),
})"""

# What reaches over the edge of the page, and is in nothing that scrolls by itself
TOO_WIDE = """() => {
    const edge = document.documentElement.clientWidth + 1;
    const scrolls = e => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
        || scrolls(e.parentElement === document.body ? null : e.parentElement));
    const wide = [...document.querySelectorAll('article *')]
        .filter(e => e.getBoundingClientRect().right > edge && !scrolls(e))
        .map(e => e.tagName.toLowerCase() + ': ' + e.textContent.trim().slice(0, 60));
    if (document.scrollingElement.scrollWidth > edge)
        wide.push('the page scrolls sideways');
    return wide.slice(0, 3);
}"""


class Site:
    """The pages of a site, served on a port of this machine's."""

    def __init__(self, folder):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        self.folder = folder
        handler = functools.partial(Handler, directory=folder)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.root = f"http://127.0.0.1:{self.server.server_port}/"
        self.pages = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.html")
                            if file.name != "404.html")
        self.content, self.wrong = {}, []       # see visit()

    def file_of(self, url):
        """The path of a URL below this site, or None for one elsewhere."""
        url = urllib.parse.urldefrag(url).url
        if not url.startswith(self.root):
            return None
        path = urllib.parse.unquote(url[len(self.root):])
        return path + "index.html" if path.endswith("/") or not path else path


def visit(site, browser):
    """Open each page, and return what is on it, and what was wrong on the way."""
    pages, wrong = {}, set()
    context = browser.new_context(viewport=DESKTOP)
    tab = context.new_page()
    tab.on("response", lambda answer: answer.status < 400
           or wrong.add(f"request failed: {answer.url}"))
    tab.on("request", lambda request: request.url.startswith((site.root, "blob:", "data:"))
           or wrong.add(f"request to another host: {request.url}"))
    for name in site.pages:
        tab.goto(site.root + name)
        pages[name] = tab.evaluate(READ)
        for viewport in DESKTOP, PHONE:
            tab.set_viewport_size(viewport)
            pages[name][viewport["width"]] = tab.evaluate(TOO_WIDE)
        tab.set_viewport_size(DESKTOP)
    context.close()
    return pages, sorted(wrong)


def check_links(site, browser):
    """Yield each dead link and anchor, picture that is not there, and request that fails."""
    yield from site.wrong
    for name, page in site.content.items():
        yield from (f"{name}: picture is not there: {source}" for source in page["broken"])
        for link in dict.fromkeys(page["links"]):
            target, anchor = site.file_of(link), urllib.parse.urldefrag(link).fragment
            if target is None:
                continue
            if not (site.folder / target).is_file():
                yield f"{name}: dead link: {link[len(site.root):]}"
            elif anchor and urllib.parse.unquote(anchor) not in site.content[target]["ids"]:
                yield f"{name}: dead anchor: {link[len(site.root):]}"


def check_widths(site, browser):
    """Yield what does not fit on a desktop's or a phone's screen."""
    for name, page in site.content.items():
        for viewport in DESKTOP, PHONE:
            yield from (f"{name}: too wide for {viewport['width']} px: {what}"
                        for what in page[viewport["width"]])


def check_picture(site, browser):
    """Yield what is wrong with the picture of the first page, in both colour schemes."""
    for scheme in "light", "dark":
        context = browser.new_context(viewport=PHONE, color_scheme=scheme)
        tab = context.new_page()
        tab.goto(site.root)
        picture = tab.locator("article picture img").first
        if picture.count() == 0:
            yield "the first page has no picture"
            return
        source, width = picture.evaluate("e => [e.currentSrc, e.naturalWidth]")
        if not source.endswith(f"-{scheme}.svg"):
            yield f"{scheme}: shows {source}"
        if width == 0 or not picture.is_visible():
            yield f"{scheme}: the picture is not visible"
        page_scheme = tab.locator("body").get_attribute("data-md-color-scheme")
        if page_scheme != {"light": "default", "dark": "slate"}[scheme]:
            yield f"{scheme}: the page is {page_scheme}"
        context.close()


def check_search(site, browser):
    """Yield what is wrong if one searches for a function's name."""
    context = browser.new_context(viewport=DESKTOP)
    tab = context.new_page()
    tab.goto(site.root)
    tab.locator(".md-search__input").click()
    tab.keyboard.type(NAME)
    page, _, anchor = ENTRY.partition("#")
    try:
        tab.locator(".md-search-result__link[href*='#']:visible").first.click()
        tab.wait_for_url(lambda url: "#" in url)
        if site.file_of(tab.url.partition("?")[0]) != page or not tab.url.endswith("#" + anchor):
            yield f"the first result for {NAME} is {tab.url}"
        tab.locator(f"#{anchor}:visible").wait_for()
    except PlaywrightError as error:
        yield f"the search for {NAME} does not lead to its entry: {error}"
    context.close()


def main():
    site = Site(pathlib.Path(sys.argv[1]).resolve())
    chromium = sys.argv[2] if len(sys.argv) > 2 else "/usr/bin/chromium"
    verdicts = {"passed": 0, "FAILED": 0}
    with sync_playwright() as playwright:
        # playwright adds --headless, and a --user-data-dir that is new and empty
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        site.content, site.wrong = visit(site, browser)
        for check in check_links, check_widths, check_picture, check_search:
            wrong = list(check(site, browser))
            print(*wrong, sep="\n", end="\n" if wrong else "")
            verdict = "FAILED" if wrong else "passed"
            verdicts[verdict] += 1
            print(f"{verdict}: {check.__name__.removeprefix('check_')}", flush=True)
        browser.close()
    print(f"{verdicts['passed']} passed, {verdicts['FAILED']} failed")
    sys.exit(verdicts["FAILED"] > 0)


main()
