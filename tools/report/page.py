"""The report as one HTML page: no script, nothing loaded; for screens, phones and paper."""
from html import escape

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #59636e; --grid: #d5dae0;
  --band: #f5f7f9; --good: #116329; --bad: #a40e26;
  --c0: #57606a; --c1: #0b62c4; --c2: #b35900; --c3: #0f7b4f; --c4: #b02a8f; --c5: #7a5af5;
  --c6: #a08000; --c7: #c93a3a; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161b; --ink: #e4e8ec; --soft: #9aa5b1;
  --grid: #39424c; --band: #1a2027; --good: #56c271; --bad: #ff8a8a;
  --c0: #aeb7c0; --c1: #62a8ff; --c2: #f2a04d; --c3: #4ec995; --c4: #ee86d3; --c5: #b5a2ff;
  --c6: #dcc04a; --c7: #ff8080; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 84rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; } p, li { max-width: 60rem; } .soft, .about { color: var(--soft); }
.about { font-size: .85rem; margin: 0 0 .3rem; } ul { padding-left: 1.2rem; }
.wide { overflow-x: auto; }
.main th:last-child, .main td:last-child { position: sticky; right: 0; background: var(--paper); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .84rem; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; overflow-wrap: normal; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--grid); }
td { white-space: nowrap; } .text { text-align: left; } tbody tr:hover { background: var(--band); }
td.text:first-child { font-weight: 600; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; }
.legend i[class] { background: none !important; border: 2px dashed; }
.legend i.dotted { border-style: dotted; } .legend i.double { border: 4px double; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr));
  gap: 1.5rem; }
figure { margin: 0; min-width: 0; } svg { width: 100%; height: auto; }
@media (max-width: 40rem) {
  body { padding: .8rem; }
  thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--grid); }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    white-space: normal; text-align: right; }
  .main td:last-child { position: static; }
  td:empty { display: none; } td::before { content: attr(data-head); color: var(--soft);
    text-align: left; font-weight: 400; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --grid: #bbb; --good: #000;
    --bad: #000; --c0: #57606a; --c1: #0b62c4; --c2: #b35900; --c3: #0f7b4f; --c4: #b02a8f;
    --c5: #7a5af5; --c6: #a08000; --c7: #c93a3a; }
  @page { size: A4 landscape; margin: 12mm; }
  body { padding: 0; font-size: 10pt; max-width: none; } table { font-size: 7.5pt; }
  .figures { grid-template-columns: repeat(3, 1fr); } .wide { overflow: visible; }
  figure, tr, li { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""

TONES = {"better": "good", "reproduced": "good", "worse": "bad", "invalid": "bad",
         "NOT REPRODUCED": "bad"}


def tone(heading, cell):
    if heading == "verdict":
        return next((TONES[word] for word in TONES if cell.startswith(word)), "")
    return "bad" if heading == "audits" and ("failed" in cell or "not" in cell) else ""


def table_html(headings, cells, is_text, name="extra"):
    def kind(heading, cell=""):
        names = " ".join(filter(None, ["text" if is_text(heading) else "", tone(heading, cell)]))
        return f' class="{names}"' if names else ""
    head = "".join(f"<th{kind(h)}>{escape(h).replace('/token', '/<wbr>token')}</th>"
                   for h in headings)
    body = "\n".join("<tr>" + "".join(
        f'<td{kind(h, cell)} data-head="{escape(h)}">{escape(cell)}</td>'
        for h, cell in zip(headings, line)) + "</tr>" for line in cells)
    return f'<div class="wide"><table class="{name}"><thead><tr>{head}</tr></thead>\n' \
        f"<tbody>\n{body}\n</tbody></table></div>"


def list_html(lines):
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def figure_html(figure):
    return f"<figure><h3>{escape(figure.title)}</h3><p class=\"about\">{escape(figure.about)}</p>" \
        f"{figure.svg}</figure>"


EDGES = "", " class=dashed", " class=dotted", " class=double"    # of steps that share a colour


def plots_html(heading, legend, figures):
    names = "".join(f'<li><i{EDGES[shared % len(EDGES)]} style="background:var(--c{colour});'
                    f'border-color:var(--c{colour})"></i>{escape(step)}</li>'
                    for colour, shared, step in legend)
    title = f"<h2>{escape(heading or 'Plots')}</h2>"
    return f'{title}<ul class="legend">{names}</ul><div class="figures">' \
        + "\n".join(map(figure_html, figures)) + "</div>"


def section_html(title, lines, extra, is_text):
    return f"<h2>{escape(title)}</h2>" + list_html(lines) \
        + (table_html(*extra, is_text) if extra else "")


def page(name, headline, grid, above, plots, missing, below, is_text):
    """The table, the sections above the plots, the plots (or why there are none), the rest."""
    parts = [f"<h1>{escape(name)}</h1>",
             f'<p class="soft">{escape(headline.removeprefix(name + ": "))}</p>',
             table_html(*grid, is_text, "main")]
    parts += [section_html(*section, is_text) for section in above]
    parts += [plots_html(*group) for group in plots]
    if missing:
        parts.append(f"<h2>Plots</h2><p>{escape(missing)}</p>")
    parts += [section_html(*section, is_text) for section in below]
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: report</title>
<style>{STYLE}</style></head>
<body>
{body}
</body></html>
"""
