"""Drawings by gnuplot, as SVG with the colours of the report's page.

The page defines the colours: gnuplot gets a code for each, and the code becomes a CSS variable.  So
one drawing serves light, dark and paper.
"""
import re
import shutil
import subprocess

COLOURS = 8             # of series; more than that share them, with other points
GRID = 99               # the code of the grid's colour
WIDTH, HEIGHT = 440, 300
POINTS = (7, 5, 9, 13)  # gnuplot's filled circle, square, triangle, diamond


def is_there():
    return shutil.which("gnuplot") is not None


def colour(code):
    return f"rgb '#0101{code:02x}'"


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def block(name, rows):
    """Inline data; a missing number is NaN."""
    lines = (" ".join("NaN" if v is None else f"{v:.10g}" for v in row) for row in rows)
    return f"${name} << EOD\n" + "\n".join(lines) + "\nEOD\n"


def clean(svg, name):
    """The SVG for inlining: no prologue, colours and fonts of the page, unique ids."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<title>.*?</title>|<desc>.*?</desc>", "", svg, flags=re.S)
    svg = re.sub(r'<svg\s+width="\d+" height="\d+"', '<svg role="img"', svg, count=1)
    svg = re.sub(rf"rgb\(\s*1,\s*1,\s*{GRID}\)", "var(--grid)", svg)
    svg = re.sub(r"rgb\(\s*1,\s*1,\s*(\d+)\)", r"var(--c\1)", svg)
    svg = re.sub(r"black|#000000|rgb\(\s*0,\s*0,\s*0\)", "currentColor", svg)
    svg = re.sub(r'font-family="[^"]*"', 'font-family="inherit"', svg)
    for old in set(re.findall(r"""\bid=["']([^"']+)["']""", svg)):
        svg = re.sub(rf"""(\bid=["']|#){re.escape(old)}(["')])""", rf"\g<1>{name}-{old}\g<2>", svg)
    return svg.strip()


def run_gnuplot(script, name, height=HEIGHT):
    head = f"""set terminal svg size {WIDTH},{height} noenhanced font 'sans-serif,13' rounded
set border 3 lc {colour(GRID)}
set grid lc {colour(GRID)} lw 0.5 lt 1
set tics nomirror textcolor 'black'
set xtics autofreq
unset key
set style fill transparent solid 0.18 noborder
"""
    done = subprocess.run(["gnuplot", "-"], input=head + script, text=True, capture_output=True,
                          timeout=120, check=False)
    if done.returncode or "</svg>" not in done.stdout:
        raise RuntimeError(f"gnuplot: {done.stderr.strip() or 'no drawing'}")
    return clean(done.stdout, name)


def look(i):
    """Colour and point of a series."""
    return f"lc {colour(i % COLOURS)} pt {POINTS[i // COLOURS % len(POINTS)]}"
