"""Reports in a browser: no console errors, no network requests, no horizontal overflow, readable colours."""

import re

import pytest

WIDER = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.table')
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200))"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_report_renders_without_errors_or_overflow(browser, mixed, width, scheme):
    path = mixed / "report.html"
    browser.open(path, width, scheme)
    assert browser.console_errors() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [path.resolve().as_uri()]
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(WIDER) == []
    assert browser.value("[...document.images].every(image => image.naturalWidth > 0)")
    rgb = re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor"))
    assert (sum(map(int, rgb[:3])) < 200) == (scheme == "dark")


@pytest.mark.slow
def test_text_contrast_is_sufficient_in_both_colour_schemes(browser, mixed):
    """Contrast of text and background, by the formula of WCAG, is at least 4.5."""
    contrast = """(() => {
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(v => linear(v / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const page = light(getComputedStyle(document.body).backgroundColor);
        const against = name => e => {
            const colour = light(getComputedStyle(e)[name]);
            return (Math.max(colour, page) + 0.05) / (Math.min(colour, page) + 0.05);
        };
        const words = [...document.querySelectorAll('p, h1, h2, h3, dt, dd, th, td, figcaption, summary, a')];
        return Math.min(...words.map(against('color')));
    })()"""
    for scheme in ("light", "dark"):
        browser.open(mixed / "report.html", 1280, scheme)
        assert browser.value(contrast) >= 4.5
