"""Tables in Markdown, of which each says what is asked and marks what misses it."""
import math
import re
import statistics

missed = []						# what has missed what is asked, as text
tables = {}						# lines of each table, by its title
judged = 0						# of how many figures something is asked


def median(values):
    return statistics.median(values)


def median_and_p99(values):
    return median(values), sorted(values)[math.ceil(len(values) * 0.99) - 1]


class Table:
    """A table whose rows are printed as they come.

    The names of columns of text begin with "-"; the others are of figures.
    """

    def __init__(self, title, *columns):
        self.title = title
        self.lines = tables[title] = []
        print(f"\n## {title}\n")
        self.row(*(name.lstrip("-") for name in columns))
        self.print("|" + "|".join("---" if name[0] == "-" else "--:" for name in columns) + "|")

    def print(self, line):
        self.lines.append(line + "\n")
        print(line, flush=True)

    def row(self, *cells):
        self.print("| " + " | ".join(str(cell) for cell in cells) + " |")

    def judge(self, what, value, text, least=None, most=None, over=False):
        """The figure as it is shown: bold if it misses what is asked.

        over tells that the true value is greater than this one.
        """
        global judged

        text = ("> " if over else "") + text
        if least is None and most is None:
            return text
        judged += 1
        if (value >= least) if most is None else (value <= most and not over):
            return text
        missed.append(f"{self.title}: {what}: {text}, asked: "
                      + (f"at most {most:g}" if least is None else f"at least {least:g}"))
        return f"**{text}**"


def print_summary():
    print(f"\n{len(missed)} of {judged} figures miss what is asked"
          + (":" if missed else "."))
    for line in missed:
        print("- " + line)


def record_tables(path):
    """Put the tables into a document, in the place of those with the same titles."""
    with open(path) as file:
        text = file.read()
    for title, lines in tables.items():
        # the first table below the heading
        place = rf"(?m)(^###? {re.escape(title)}\n(?:[^|#\n].*\n|\n)*)(?:^\|.*\n)+"
        text, count = re.subn(place, lambda match: match[1] + "".join(lines), text)
        if count != 1:
            raise RuntimeError(f'{path} has no place for the table "{title}"')
    with open(path, "w") as file:
        file.write(text)


def several(cells, unit=""):
    """Several figures in a cell; one that all share stands once."""
    return " / ".join(cells if len(set(cells)) > 1 else cells[:1]) + unit


def limit(value, digits=2, unit=""):
    """What is asked, as it is shown."""
    return "" if value is None else f"{value:.{digits}f}{unit}"
