"""Bars as SVG, once for light and once for dark pages: these differ in colours only."""
import math
import os
from dataclasses import dataclass

FONT = ("ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',"
        "'Noto Sans','DejaVu Sans',Arial,sans-serif")
COLOURS = {
    "light": {"text": "#1f2328", "faint": "#59636e", "line": "#d1d9e0",
              "ours": "#0b62c4", "theirs": "#818b98"},
    "dark": {"text": "#f0f6fc", "faint": "#9da7b3", "line": "#3d444d",
             "ours": "#1f6feb", "theirs": "#7d8590"},
}
WIDTH = 820
NAMES = 208						# the width of the column of names
GAP = 24						# between panels
ROW = 27
TOP = 62
LABEL = 92						# the width beside the longest bar, for its label


@dataclass
class Bar:
    """A figure as it is drawn."""
    value: float
    label: str
    far: float = None			# where a thin line ends, such as the 99th percentile


@dataclass
class Panel:
    """A column of bars, one for each name; None where there is none."""
    title: str
    subtitle: str
    bars: list
    logarithmic: bool = False

    def scale(self, width):
        """A function from values to widths."""
        values = [end for bar in self.bars if bar for end in (bar.value, bar.far) if end]
        greatest, least = max(values, default=1), min(values, default=1)
        if not self.logarithmic:
            return lambda value: width * value / greatest
        low = math.floor(math.log10(least)) - 0.3
        high = max(math.log10(greatest), low + 1)
        return lambda value: width * (math.log10(value) - low) / (high - low)


def text(x, y, what, colour, size=14, weight=400, anchor="start"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" font-size="{size}"'
            f' font-weight="{weight}" text-anchor="{anchor}">{escape(what)}</text>')


def escape(what):
    return what.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def draw_panel(panel, left, width, ours, colours):
    """The lines of SVG of a panel."""
    bottom = TOP + ROW * len(panel.bars)
    yield text(left, 24, panel.title, colours["text"], 16, 600)
    yield text(left, 43, panel.subtitle, colours["faint"], 13)
    yield (f'<path d="M{left:.0f} {TOP - 6}V{bottom}" stroke="{colours["line"]}"'
           ' stroke-width="1"/>')
    scale = panel.scale(width - LABEL)
    for number, bar in enumerate(panel.bars):
        middle = TOP + ROW * number + 9
        if not bar:
            yield text(left + 6, middle + 5, "–", colours["faint"])
            continue
        colour = colours["ours" if ours[number] else "theirs"]
        length = max(scale(bar.value), 2)
        yield (f'<rect x="{left:.0f}" y="{middle - 8}" width="{length:.1f}" height="16"'
               f' rx="2" fill="{colour}"/>')
        end = length
        if bar.far and scale(bar.far) > length:
            end = scale(bar.far)
            yield (f'<path d="M{left + length:.1f} {middle}H{left + end:.1f}m0 -5v10"'
                   f' stroke="{colour}" stroke-width="2" fill="none"/>')
        yield text(left + end + 6, middle + 5, bar.label, colours["text"], 13)


def draw(directory, name, title, names, ours, panels):
    """Write NAME-light.svg and NAME-dark.svg; ours tells which names are in colour."""
    height = TOP + ROW * len(names) + 6
    width = (WIDTH - NAMES - GAP * len(panels)) / len(panels)
    for scheme, colours in COLOURS.items():
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
                 f' role="img" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}"'
                 ' aria-labelledby="title">', f'<title id="title">{escape(title)}</title>']
        for number, one in enumerate(names):
            lines.append(text(NAMES, TOP + ROW * number + 14, one, colours["text"], 14,
                              600 if ours[number] else 400, "end"))
        for number, panel in enumerate(panels):
            left = NAMES + GAP / 2 + number * (width + GAP)
            lines.extend(draw_panel(panel, left, width, ours, colours))
        with open(os.path.join(directory, f"{name}-{scheme}.svg"), "w") as file:
            file.write("\n".join(lines + ["</svg>"]) + "\n")
