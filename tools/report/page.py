"""Writes each page as one HTML file that loads nothing; for screens, phones, keyboards and paper.

page.css styles a page; page.js draws its figures (tools/report/plots.py) and makes its tables sort; page_address.js
keeps the reader's choices in the address; page_save.js saves figures as files.
Without JavaScript a page has its tables and texts, but no pictures.
"""
import base64
import hashlib
import json
import os
import re
from html import escape

HERE = os.path.dirname(os.path.abspath(__file__))


def own_file(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


STYLE = own_file("page.css")
SCRIPT = "\n" + "\n".join(map(own_file, ("page_address.js", "page_save.js", "page.js")))
# The browser runs only this script, and sends no request to other hosts.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + \
    base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode() + \
    "'; connect-src 'self'; form-action 'self'; base-uri 'none'"

TONES = {"better": "good", "worse": "bad", "invalid": "bad", "NOT REPRODUCED": "bad"}
HOW_TO = "Point at a picture to see its values, or focus it and use the arrow keys. Click or tap (key: Enter) to " \
    "pin them. Drag to zoom (keys: + and -); double-click to reset (key: 0). Curves are means over seeds; bands reach " \
    "from the lowest to the highest seed. The vertical range ignores the first tenth of a long " \
    "curve until you zoom."


class Bar(str):
    """A cell with a bar before its text."""
    share = 0

    @classmethod
    def of(cls, share, text=None):
        bar = cls(f"{100 * share:.0f}%" if text is None else text)
        bar.share = share
        return bar


class Link(str):
    """A cell with a link."""
    href = ""

    @classmethod
    def to(cls, href, text):
        link = cls(text)
        link.href = href
        return link


# ---------------------------------------------------------------- tables

def tone(heading, cell):
    """Only "better" is green; "reproduced" has no colour."""
    if heading in ("verdict", "verdict on B"):
        return next((TONES[word] for word in TONES if cell.startswith(word)), "")
    return "bad" if heading == "audits" and ("failed" in cell or "not" in cell) else ""


def bar_html(share):
    return f'<progress value="{share:.3f}" aria-label="{100 * share:.0f}%"></progress> '


def cell_html(cell):
    if isinstance(cell, Bar):
        return bar_html(cell.share) + escape(cell)
    href = getattr(cell, "href", "")
    text = re.sub("(?<=[a-z])[+](?=[a-z])", "+<wbr>", escape(cell))     # long names of steps
    return f'<a href="{escape(href)}">{text}</a>' if href else text


def class_html(*names):
    names = " ".join(filter(None, names))
    return f' class="{names}"' if names else ""


def table_html(headings, cells, is_text, name="extra", is_other=lambda line, i: False):
    """is_other(line, i): should this cell stand out?"""
    def kind(heading):
        return "text" if is_text(heading) else ""
    head = "".join(f'<th scope="col"{class_html(kind(h))}>'
                   f"{escape(h).replace('/token', '/<wbr>token')}</th>" for h in headings)

    def row(line):
        step = f' data-step="{escape(line[0])}"' if headings[0] == "step" else ""
        return f"<tr{step}>" + "".join(
            f"<td{class_html(kind(h), tone(h, cell), 'other' if is_other(line, i) else '')}"
            f' data-head="{escape(h)}">{cell_html(cell)}</td>'
            for i, (h, cell) in enumerate(zip(headings, line))) + "</tr>"
    body = "\n".join(map(row, cells))
    return f'<div class="wide"><table class="{name} sorted"><thead><tr>{head}</tr></thead>\n' \
        f"<tbody>\n{body}\n</tbody></table></div>"


def configuration_html(title, config):
    """A closed list of all symbols."""
    lines = "\n".join(f"{symbol}={value}" for symbol, value in sorted(config.items()))
    return f'<details data-key="{escape(title)}"><summary>{escape(title)}</summary>' \
        f"<pre>{escape(lines)}</pre></details>"


# ---------------------------------------------------------------- text

def list_html(lines):
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def heading_html(title):
    """Links lead to it (contents_html)."""
    return f'<h2 id="{re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")}">{escape(title)}</h2>'


def contents_html(parts, files=(), published=""):
    """Links to the headings of these parts and to (name, address) of files; how to get all runs, as a text or link."""
    def line(name, found):
        return f"<p>{name}: " + " ".join(found) + "</p>" if found else ""
    inside = [f'<a href="#{key}">{title}</a>' for key, title in re.findall('<h2 id="(.*?)">(.*?)</h2>', "".join(parts))]
    outside = [f'<a href="{escape(address)}" download>{escape(name)}</a>' for name, address in files]
    return f'<nav>{line("On this page", inside)}{line("The table as a file", outside)}' \
        f'{line("All runs as a file", [cell_html(published)] * bool(published))}</nav>'


def section_html(title, lines, extra, is_text):
    return heading_html(title) + list_html(lines) \
        + (table_html(*extra, is_text) if extra else "")


def head_html(name, question, facts, compared=""):
    """Facts are (name, text or link)."""
    asked = "".join(f'<p class="question">{escape(text)}</p>' for text in (question, compared) if text)
    return f"<h1>{escape(name)}</h1>" + asked + '<dl class="facts">' + "".join(
        f"<dt>{escape(what)}</dt><dd>{cell_html(text)}</dd>" for what, text in facts) + "</dl>"


# ---------------------------------------------------------------- pictures

def figure_html(figure, key):
    return f'<figure id="{key}" aria-labelledby="{key}-title"><h3 id="{key}-title">' \
        f'{escape(figure["title"])}</h3><p class="about" id="{key}-about">' \
        f'{escape(figure["about"])}</p><div class="plot"></div></figure>'


def group_html(group, number):
    key = f"g{number}"
    figures = [figure_html(figure, f"{key}-f{i}") for i, figure in enumerate(group["figures"])]
    return f"<section>{heading_html(group['heading'])}" \
        + (f'<p class="about">{HOW_TO}</p>' if number == 0 else "") \
        + f'<div class="legend" id="{key}-legend"></div><div class="figures">' \
        + "\n".join(figures) + "</div></section>"


def groups_html(data):
    groups = "\n".join(group_html(group, i) for i, group in enumerate(data["groups"]))
    return groups + \
        "<noscript><p>The pictures need JavaScript, which is switched off.</p></noscript>"


NOTHING = {"groups": [], "runs": [], "x": []}


def document(title, parts, data=None, seconds=None):
    """A whole page; with `seconds`, it asks its server for a newer version that often."""
    packed = json.dumps(data or NOTHING, ensure_ascii=False, separators=(",", ":"))
    packed = packed.replace("<", "\\u003c")     # so it cannot end the script element
    live = f'<p id="live" class="soft" data-seconds="{seconds}"></p>' if seconds else ""
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{STYLE}</style></head>
<body>
{live}<main id="page">
{body}
</main>
<script type="application/json" id="data">{packed}</script>
<script>{SCRIPT}</script>
</body></html>
"""
